//! The real binary on a port of its own, in one process and with workers: real proofs over HTTP. `cargo make soak` runs the tests that
//! are ignored.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rustix::process::{Pid, Signal, kill_process};

const MIB: f64 = 1048576.0;
const PANIC: &str = r#"{"log_rows":9,"panic":true}"#;

struct Server {
    child: Child,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The answer of the service.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    /// The body as JSON; null if it is none.
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    #[track_caller]
    fn expect(&self, status: u16, text: &str) {
        assert!(
            self.status == status && self.body.contains(text),
            "{} instead of {status}: {}",
            self.status,
            self.body
        );
    }
}

fn command(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proving-service"));
    command.args(["--port", "0", "--allow-faults"]).args(args.split_whitespace()).stdout(Stdio::piped());
    // Each thread has a stack, which counts against the budget of a worker.
    command.env("RAYON_NUM_THREADS", "2");
    command
}

impl Server {
    fn start(args: &str) -> Self {
        let mut child = command(args).spawn().expect("the service starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").expect("it prints its address").parse().unwrap();
        Self { child, address }
    }

    /// Sends a request, and does not wait for the answer. Dropping the connection cancels it.
    fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        let (host, length) = (self.address, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        stream
    }

    fn get(&self, path: &str) -> Reply {
        receive(self.send("GET", path, "")).expect("the service answers")
    }

    fn post(&self, body: &str) -> Reply {
        receive(self.send("POST", "/proofs", body)).expect("the service answers")
    }

    fn ask(&self, log_rows: u32) -> TcpStream {
        self.send("POST", "/proofs", &body(log_rows, 1))
    }

    fn prove(&self, log_rows: u32, seed: u64) -> Reply {
        self.post(&body(log_rows, seed))
    }

    /// A metric. `label` occurs in its line.
    fn metric(&self, name: &str, label: &str) -> f64 {
        let text = self.get("/metrics").body;
        let is_it = |line: &&str| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
        };
        let value = text.lines().find(is_it).and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} with {label} in\n{text}"))
    }

    /// Waits until a metric has a value.
    fn until(&self, name: &str, label: &str, value: f64) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.metric(name, label) != value {
            assert!(Instant::now() < deadline, "{name} is {} and not {value}", self.metric(name, label));
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The requests of a proof that runs and of one that waits.
    fn one_runs_and_one_waits(&self) -> [TcpStream; 2] {
        let running = self.ask(11);
        self.until("service_running_proofs", "", 1.0);
        let waiting = self.ask(9);
        self.until("service_waiting_proofs", "", 1.0);
        [running, waiting]
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

fn body(log_rows: u32, seed: u64) -> String {
    format!(r#"{{"log_rows":{log_rows},"seed":{seed}}}"#)
}

/// Reads an answer.
fn receive(mut stream: TcpStream) -> io::Result<Reply> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Reply { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}

/// A proof that is the same each time it is made shows corruption that its own verification would not.
#[test]
fn proofs_are_verified_repeatable_and_reported() {
    let server = Server::start("--proofs 1");
    let [first, second, other] = [1, 1, 2].map(|seed| server.prove(9, seed).json());
    assert_eq!(first["digest"], second["digest"]);
    assert_ne!(first["digest"], other["digest"]);
    assert!(first["proof_bytes"].as_u64().unwrap() > 10_000 && first["peak_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!((&first["log_rows"], &first["is_alone"]), (&9.into(), &true.into()));
    // The second proof finds pages of the first.
    assert!(second["reused_bytes"].as_f64().unwrap() > 2.0 * second["fresh_bytes"].as_f64().unwrap(), "{second}");
    let page = server.get("/memory").body;
    assert!(page.contains("learned peaks\n  2^9 ") && page.contains("live in the arena"), "{page}");
    assert_eq!(server.metric("service_proofs_total", "done"), 3.0);
    assert!(server.metric("zk_alloc_retained_bytes", "") > 0.0);
    assert!(server.metric("service_limit_bytes", "") > server.metric("service_rss_bytes", ""));
}

/// A service that tries what can't fit is killed, with all that it does.
#[test]
fn a_size_that_was_never_proved_is_refused_if_it_cannot_fit() {
    let server = Server::start("--memory-limit 96");
    server.prove(18, 1).expect(507, "estimated from smaller proofs");
    assert_eq!(server.metric("service_proofs_total", "rejected"), 1.0);
    server.prove(9, 1).expect(200, "digest");
}

#[test]
fn bad_requests_are_refused_with_what_is_allowed() {
    let server = Server::start("");
    for (method, path, body, status, expected) in [
        ("POST", "/proofs", "{", 400, "send JSON such as"),
        ("POST", "/proofs", r#"{"seed":1}"#, 422, "missing field `log_rows`"),
        ("POST", "/proofs", r#"{"log_rows":30}"#, 422, "use 5 to 20"),
        ("POST", "/proofs", &" ".repeat(5000), 413, "length limit"),
        ("GET", "/proof", "", 404, "GET /memory"),
    ] {
        receive(server.send(method, path, body)).unwrap().expect(status, expected);
    }
}

/// A client that goes away must not keep its place. In this process, a running proof is finished and thrown away.
#[test]
fn a_full_queue_refuses_and_clients_that_go_away_cancel_their_proofs() {
    let server = Server::start("--proofs 1 --queue 1");
    let [running, waiting] = server.one_runs_and_one_waits();
    let page = server.get("/memory").body;
    assert!(page.contains("#2 2^9") && page.contains("as many proofs run as may"), "{page}");
    let refused = server.prove(9, 1);
    refused.expect(503, "the queue is full (1 waiting)");
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    assert_eq!(server.metric("service_proofs_total", "rejected"), 1.0);
    drop(waiting);
    server.until("service_waiting_proofs", "", 0.0);
    drop(running);
    server.until("service_proofs_total", "cancelled", 2.0);
    server.prove(9, 1).expect(200, "digest");
    assert_eq!(server.metric("service_proofs_total", "done"), 1.0);
}

/// A panic unwinds through the phase while the trace is alive. It must cost that request only, and no memory.
#[test]
fn a_panic_fails_its_own_request_and_frees_its_memory() {
    let server = Server::start("--proofs 2");
    for seed in [1, 2] {
        server.prove(9, seed).expect(200, "digest");
    }
    let live = server.metric("zk_alloc_live_bytes", "");
    for _ in 0..5 {
        let neighbour = server.ask(9);
        server.post(PANIC).expect(500, "the request asked for this panic");
        receive(neighbour).unwrap().expect(200, "digest");
    }
    let now = server.metric("zk_alloc_live_bytes", "");
    assert!(now < live + 0.25 * MIB, "{live} bytes were live, and {now} are after five panics");
    assert_eq!(server.metric("service_proofs_total", "failed"), 5.0);
}

/// The service learns that a proof fits only alone, and must not start two at once, although two slots are free.
#[test]
fn a_proof_waits_until_its_learned_peak_fits() {
    let server = Server::start("--proofs 2 --memory-limit 96");
    let first = server.prove(11, 1).json();
    let peak = first["peak_bytes"].as_f64().unwrap();
    assert!(peak > 35.0 * MIB && peak < 75.0 * MIB, "the limit of this test is for other peaks than {peak}");
    let both = [server.ask(11), server.ask(11)];
    server.until("service_waiting_proofs", "", 1.0);
    let page = server.get("/memory").body;
    assert!(page.contains("it needs") || !page.contains("#3"), "{page}");
    for stream in both {
        receive(stream).unwrap().expect(200, r#""is_alone":true"#);
    }
    server.prove(13, 1).expect(507, "estimated from smaller proofs");
}

/// A small proof fits into 128 MiB, and one of 2^14 rows does not.
#[test]
fn a_proof_over_its_budget_fails_alone() {
    let server = Server::start("--isolate 128");
    for _ in 0..3 {
        let neighbour = server.ask(8);
        server.prove(14, 1).expect(507, "of 128.0 MiB in all");
        receive(neighbour).unwrap().expect(200, "digest");
    }
    assert_eq!(server.metric("service_proofs_total", "failed"), 3.0);
    assert_eq!(server.metric("service_proofs_total", "done"), 3.0);
}

/// The request that does not fit comes first, in the middle or at the end of a proof, from any thread. Each time, the
/// answer must be a proof or a report.
#[test]
fn a_worker_over_its_budget_answers_507_wherever_in_the_proof_it_fails() {
    let statuses = [80, 96, 104, 112, 120, 160, 256].map(|budget| {
        let server = Server::start(&format!("--proofs 1 --isolate {budget}"));
        let reply = server.prove(12, 1);
        assert!([200, 507].contains(&reply.status), "{budget} MiB: {}", reply.body);
        reply.status
    });
    assert!(statuses.contains(&200) && statuses.contains(&507), "{statuses:?}");
}

/// A worker may panic, lose its client, or be killed by the kernel or by an operator. It survives a panic. The worker of a client that
/// went away is ended, so that its memory and its processor are free at once.
#[test]
fn a_worker_that_is_lost_is_replaced() {
    let server = Server::start("--proofs 1 --isolate 2048");
    server.post(PANIC).expect(500, "the request asked for this panic");
    server.prove(8, 1).expect(200, "digest");
    assert_eq!(server.metric("service_worker_processes_total", ""), 1.0);

    let running = server.ask(13);
    server.until("service_running_proofs", "", 1.0);
    drop(running);
    server.until("service_proofs_total", "cancelled", 1.0);
    server.prove(8, 1).expect(200, "digest");
    assert_eq!(server.metric("service_worker_processes_total", ""), 2.0);

    let running = server.ask(13);
    server.until("service_running_proofs", "", 1.0);
    let threads = fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap().flatten();
    let children: String = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap()).collect();
    kill_process(Pid::from_raw(children.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    receive(running).unwrap().expect(500, "worker was lost: signal: 9");
    server.prove(8, 1).expect(200, "digest");
}

#[test]
fn sigterm_and_ctrl_c_let_running_proofs_finish() {
    for (args, signal) in [("", Signal::TERM), ("", Signal::INT), ("--isolate 1024", Signal::TERM)] {
        let server = Server::start(&format!("--proofs 1 {args}"));
        let [running, waiting] = server.one_runs_and_one_waits();
        server.signal(signal);
        receive(waiting).unwrap().expect(503, "shutting down");
        // It takes no more connections, from a moment after the refusal on.
        while TcpStream::connect(server.address).is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
        receive(running).unwrap().expect(200, "digest");
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn workers_that_do_not_fit_below_the_limit_are_refused() {
    let output = command("--isolate 1024 --proofs 3 --memory-limit 2048").stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it started");
    assert!(text.contains("3 workers with 1024 MiB each do not fit below the limit of 2048 MiB"), "{text}");
}

/// The digest of each statement: its proof is the same each time.
type Digests = Mutex<BTreeMap<(u32, u64), String>>;

/// Sends one random request, and checks its answer. Returns whether it was a proof.
fn act(server: &Server, digests: &Digests, rng: &mut SmallRng) -> bool {
    let (log_rows, seed) = (rng.random_range(7..=10), rng.random_range(0..4));
    match rng.random_range(0..100) {
        0..70 => {
            let reply = server.prove(log_rows, seed);
            assert!(matches!(reply.status, 200 | 503), "{}", reply.body);
            if reply.status == 200 {
                let digest = reply.json()["digest"].as_str().unwrap().to_owned();
                let mut digests = digests.lock().unwrap();
                let first = digests.entry((log_rows, seed)).or_insert_with(|| digest.clone());
                assert_eq!(*first, digest, "2^{log_rows}, seed {seed}");
            }
            return reply.status == 200;
        }
        70..82 => {
            let stream = server.send("POST", "/proofs", &body(log_rows, seed));
            thread::sleep(Duration::from_millis(rng.random_range(0..200)));
            drop(stream);
        }
        82..90 => assert!(matches!(server.post(PANIC).status, 500 | 503)),
        // Too large for the limit and for the budget.
        90..93 => assert!(matches!(server.prove(13, seed).status, 507 | 503)),
        93..97 => assert_eq!(server.post("{\"log_rows\":").status, 400),
        _ => assert_eq!(server.get(if rng.random() { "/memory" } else { "/metrics" }).status, 200),
    }
    false
}

/// Proofs, cancellations, panics and nonsense for some minutes, in one process and in workers that the kernel holds to their budgets.
#[test]
#[ignore = "takes minutes"]
fn the_service_survives_random_load() {
    for (args, most_rss_bytes) in [("--memory-limit 120", 120 << 20), ("--isolate 128", 64 << 20)] {
        soak(args, most_rss_bytes);
    }
}

fn soak(args: &str, most_rss_bytes: usize) {
    let minutes = std::env::var("SOAK_MINUTES").unwrap_or_else(|_| "0.2".into());
    let minutes: f64 = minutes.parse().expect("SOAK_MINUTES in minutes");
    let server = Server::start(args);
    // The service knows the peak of each size, and has filled its caches.
    for log_rows in (7..=10).chain(7..=10) {
        server.prove(log_rows, 0).expect(200, "digest");
    }
    let live_before = server.metric("zk_alloc_live_bytes", "");
    let (digests, deadline) = (Digests::default(), Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let client = &|number| {
        let mut rng = SmallRng::seed_from_u64(number);
        let requests = std::iter::repeat_with(|| act(&server, &digests, &mut rng));
        requests.take_while(|_| Instant::now() < deadline).filter(|is_proof| *is_proof).count()
    };
    let proofs: usize = thread::scope(|scope| {
        let clients = [1, 2, 3, 4].map(|number| scope.spawn(move || client(number)));
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    server.until("service_running_proofs", "", 0.0);
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let peak_rss = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
    let rss = peak_rss.trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
    let live = server.metric("zk_alloc_live_bytes", "");
    println!("{args}: {proofs} proofs; {live_before} bytes were live, and {live} are; RSS reached {rss} bytes");
    assert!(proofs > 0 && server.metric("service_proofs_total", "done") >= proofs as f64);
    assert!(live < live_before + MIB, "{live_before} bytes were live, and {live} are");
    assert!(rss < most_rss_bytes, "RSS reached {rss} bytes");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
}
