//! Starts the service's binary on a free port, with and without workers, and requests real proofs over HTTP. `cargo make soak` runs the
//! ignored tests.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rustix::process::{Pid, Signal, kill_process};

const MIB: f64 = 1048576.0;
const PANIC_SEED: u64 = 13;
const CANCELLED: &str = r#"service_proofs_total{outcome="cancelled"}"#;

struct Server {
    child: Child,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// An HTTP response of the service.
struct Reply {
    status: u16,
    /// The status line, the headers and the body.
    text: String,
}

impl Reply {
    /// Reads a response to its end.
    fn receive(mut stream: TcpStream) -> Self {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("the service answers");
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Self { status, text }
    }

    /// Returns the body as JSON; null if it is not JSON.
    fn json(&self) -> serde_json::Value {
        self.text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok()).unwrap_or_default()
    }

    #[track_caller]
    fn expect(&self, status: u16, text: &str) {
        assert!(self.status == status && self.text.contains(text), "not {status} with {text}: {}", self.text);
    }
}

fn command(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proving-service"));
    command.args(["--port", "0"]).args(args.split_whitespace()).stdout(Stdio::piped());
    command.env("PROVING_SERVICE_PANIC_SEED", PANIC_SEED.to_string());
    // Limits the number of threads, because each thread's stack counts towards a worker's budget.
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

    /// Sends a request without waiting for the answer. Dropping the connection cancels it.
    fn send(&self, request: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        let head = format!("{request} HTTP/1.1\r\nHost: {}\r\nConnection: close", self.address);
        write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    }

    fn ask(&self, log_rows: u32, seed: u64) -> TcpStream {
        self.send("POST /proofs", &format!(r#"{{"log_rows":{log_rows},"seed":{seed}}}"#))
    }

    fn get(&self, path: &str) -> Reply {
        Reply::receive(self.send(&format!("GET {path}"), ""))
    }

    fn post(&self, body: &str) -> Reply {
        Reply::receive(self.send("POST /proofs", body))
    }

    fn prove(&self, log_rows: u32, seed: u64) -> Reply {
        Reply::receive(self.ask(log_rows, seed))
    }

    /// Returns the metric with this name and these labels.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }

    /// Returns the number of requests with this outcome.
    fn proofs(&self, outcome: &str) -> f64 {
        self.metric(&format!("service_proofs_total{{outcome=\"{outcome}\"}}"))
    }

    /// Waits until a metric has this value.
    fn until(&self, name: &str, value: f64) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.metric(name) != value {
            assert!(Instant::now() < deadline, "{name} is {} and not {value}", self.metric(name));
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends two requests: the first proof runs, and the second waits.
    fn one_runs_and_one_waits(&self) -> [TcpStream; 2] {
        let running = self.ask(11, 1);
        self.until("service_running_proofs", 1.0);
        let waiting = self.ask(9, 1);
        self.until("service_waiting_proofs", 1.0);
        [running, waiting]
    }
}

/// Equal requests must give equal proofs. A different digest would show corruption that verification does not detect.
#[test]
fn proofs_are_verified_repeatable_and_reported() {
    let server = Server::start("--proofs 1");
    let [first, second, other] = [1, 1, 2].map(|seed| server.prove(9, seed).json());
    assert_eq!(first["digest"], second["digest"]);
    assert_ne!(first["digest"], other["digest"]);
    assert!(first["proof_bytes"].as_u64().unwrap() > 10_000 && first["peak_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!((&first["log_rows"], &first["is_alone"]), (&9.into(), &true.into()));
    // The second proof reuses pages of the first one.
    assert!(second["reused_bytes"].as_f64().unwrap() > 2.0 * second["fresh_bytes"].as_f64().unwrap(), "{second}");
    let page = server.get("/memory").text;
    assert!(page.contains("largest peak of 2^9 ") && page.contains("service_outside_bytes"), "{page}");
    assert_eq!(server.proofs("done"), 3.0);
    assert!(server.metric("zk_alloc_retained_bytes") > 0.0);
    assert!(server.metric("service_limit_bytes") > server.metric("service_rss_bytes"));
}

/// A panic must fail only its own request. The soak test checks that panics leak no memory.
#[test]
fn errors_for_bad_requests_say_what_is_allowed() {
    let server = Server::start("");
    let neighbour = server.ask(9, 1);
    server.prove(9, PANIC_SEED).expect(500, "the request asked for this panic");
    Reply::receive(neighbour).expect(200, "digest");
    assert_eq!(server.proofs("failed"), 1.0);
    for (body, status, expected) in [
        ("{", 400, "send JSON such as"),
        (r#"{"seed":1}"#, 422, "missing field `log_rows`"),
        (r#"{"log_rows":30}"#, 422, "use 5 to 20"),
        (&" ".repeat(5000), 413, "length limit"),
    ] {
        server.post(body).expect(status, expected);
    }
    server.get("/proof").expect(404, "GET /memory");
}

/// A client that disconnects must not keep its place in the queue. Without workers, its running proof is finished and discarded.
#[test]
fn a_full_queue_refuses_and_clients_that_go_away_cancel_their_proofs() {
    let server = Server::start("--proofs 1 --queue 1");
    let [running, waiting] = server.one_runs_and_one_waits();
    let page = server.get("/memory").text;
    assert!(page.contains("#2 2^9") && page.contains("as many proofs run as --proofs allows"), "{page}");
    let refused = server.prove(9, 1);
    refused.expect(503, "the queue is full (1 waiting)");
    refused.expect(503, "retry-after: ");
    assert_eq!(server.proofs("rejected"), 1.0);
    drop(waiting);
    server.until("service_waiting_proofs", 0.0);
    drop(running);
    server.until(CANCELLED, 2.0);
    server.prove(9, 1).expect(200, "digest");
    assert_eq!(server.proofs("done"), 1.0);
}

/// If a service starts a proof that does not fit, the kernel kills the service together with all running proofs. Here the first proof shows
/// that the limit has room for only one proof of its size, so the service must not start two at once, although two slots are free.
#[test]
fn a_proof_waits_until_its_peak_fits_and_one_that_never_fits_is_refused() {
    let server = Server::start("--proofs 2 --memory-limit 96");
    server.prove(18, 1).expect(507, "estimated from smaller proofs");
    assert_eq!(server.proofs("rejected"), 1.0);
    let peak = server.prove(11, 1).json()["peak_bytes"].as_f64().unwrap();
    assert!(peak > 35.0 * MIB && peak < 75.0 * MIB, "the limit of this test is for other peaks than {peak}");
    let both = [server.ask(11, 1), server.ask(11, 1)];
    server.until("service_waiting_proofs", 1.0);
    let page = server.get("/memory").text;
    assert!(page.contains("it needs") || !page.contains("#3"), "{page}");
    for stream in both {
        Reply::receive(stream).expect(200, r#""is_alone":true"#);
    }
    server.prove(13, 1).expect(507, "estimated from smaller proofs");
}

/// The allocation that exceeds the budget may occur at any point of a proof, on any thread. The response must always be a proof or an error
/// with status 507. The neighbour's small proof fits every budget.
#[test]
fn a_worker_over_its_budget_fails_alone_at_any_point_of_the_proof() {
    let statuses = [80, 96, 104, 112, 120, 160, 256].map(|budget| {
        let server = Server::start(&format!("--isolate {budget}"));
        let neighbour = server.ask(5, 1);
        let reply = server.prove(12, 1);
        assert!([200, 507].contains(&reply.status), "{budget} MiB: {}", reply.text);
        let reason = if reply.status == 507 { "within its budget of" } else { "digest" };
        reply.expect(reply.status, reason);
        Reply::receive(neighbour).expect(200, "digest");
        reply.status
    });
    assert!(statuses.contains(&200) && statuses.contains(&507), "{statuses:?}");
}

/// A worker may panic, or be killed by the kernel or by an operator. When a client disconnects, the service kills its worker, which frees
/// the worker's memory and CPU time immediately.
#[test]
fn a_worker_that_is_lost_costs_only_its_proof() {
    let server = Server::start("--proofs 1 --isolate 2048");
    server.prove(9, PANIC_SEED).expect(500, "the request asked for this panic");
    server.prove(8, 1).expect(200, "digest");

    let running = server.ask(13, 1);
    server.until("service_worker_processes_total", 3.0);
    drop(running);
    server.until(CANCELLED, 1.0);
    server.prove(8, 1).expect(200, "digest");

    let running = server.ask(13, 1);
    server.until("service_worker_processes_total", 5.0);
    let threads = fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap().flatten();
    let children: String = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap()).collect();
    kill_process(Pid::from_raw(children.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    Reply::receive(running).expect(500, "worker was lost: signal: 9");
    server.prove(8, 1).expect(200, "digest");
}

#[test]
fn sigterm_and_ctrl_c_let_running_proofs_finish() {
    for (args, signal) in [("", Signal::TERM), ("", Signal::INT), ("--isolate 1024", Signal::TERM)] {
        let mut server = Server::start(&format!("--proofs 1 {args}"));
        let [running, waiting] = server.one_runs_and_one_waits();
        kill_process(Pid::from_child(&server.child), signal).unwrap();
        Reply::receive(waiting).expect(503, "shutting down");
        // Soon after the refusal, the service accepts no more connections.
        while TcpStream::connect(server.address).is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
        Reply::receive(running).expect(200, "digest");
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn workers_that_do_not_fit_below_the_limit_are_refused() {
    let output = command("--isolate 1024 --proofs 3 --memory-limit 2048").stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it started");
    assert!(text.contains("3 workers with 1024 MiB each do not fit below the limit of 2048 MiB"), "{text}");
}

/// The digest of the proof of each statement (size and seed). Equal statements have equal proofs.
type Digests = Mutex<BTreeMap<(u32, u64), String>>;

/// Sends one random request and checks the answer. Returns whether the answer was a proof.
fn act(server: &Server, digests: &Digests, rng: &mut SmallRng) -> bool {
    let (log_rows, seed) = (rng.random_range(7..=10), rng.random_range(0..4));
    let (reply, allowed) = match rng.random_range(0..100) {
        0..70 => (server.prove(log_rows, seed), [200, 503]),
        70..82 => {
            let _stream = server.ask(log_rows, seed);
            thread::sleep(Duration::from_millis(rng.random_range(0..200)));
            return false;
        }
        82..90 => (server.prove(9, PANIC_SEED), [500, 503]),
        // Too large for both the memory limit and a worker's budget.
        90..93 => (server.prove(13, seed), [507, 503]),
        93..97 => (server.post("{\"log_rows\":"), [400; 2]),
        _ => (server.get(if rng.random() { "/memory" } else { "/metrics" }), [200; 2]),
    };
    assert!(allowed.contains(&reply.status), "{}", reply.text);
    let json = reply.json();
    let Some(digest) = json["digest"].as_str() else { return false };
    let mut digests = digests.lock().unwrap();
    let first = digests.entry((log_rows, seed)).or_insert_with(|| digest.to_owned());
    assert_eq!(*first, digest, "2^{log_rows}, seed {seed}");
    true
}

/// Sends a random mix of proof requests, cancellations, panics and invalid requests to a service without workers, then to one whose workers
/// have budgets, for `SOAK_MINUTES` each.
#[test]
#[ignore = "takes minutes"]
fn the_service_survives_random_load() {
    let minutes = std::env::var("SOAK_MINUTES").map_or(0.2, |minutes| minutes.parse().expect("a number"));
    for (args, most_rss_bytes) in [("--memory-limit 120", 120 << 20), ("--isolate 128", 64 << 20)] {
        let mut server = Server::start(args);
        // After these proofs, the service knows the peak of each size, and its caches are full.
        for log_rows in (7..=10).chain(7..=10) {
            server.prove(log_rows, 0).expect(200, "digest");
        }
        let live_before = server.metric("zk_alloc_live_bytes");
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
        server.until("service_running_proofs", 0.0);
        let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let peak_rss = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
        let rss = peak_rss.trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
        let live = server.metric("zk_alloc_live_bytes");
        println!("{args}: {proofs} proofs; {live_before} bytes live before, {live} after; RSS reached {rss} bytes");
        assert!(proofs > 0 && server.proofs("done") >= proofs as f64);
        assert!(live < live_before + MIB, "{live_before} bytes were live before, and {live} after");
        assert!(rss < most_rss_bytes, "RSS reached {rss} bytes");
        kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
        assert!(server.child.wait().unwrap().success());
    }
}
