//! The service in one process: real proofs over HTTP.

mod common;

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use common::{Server, body};
use proving_service::client;

const MIB: f64 = 1024.0 * 1024.0;

/// A proof that is the same each time it is made shows corruption that its own verification would not.
#[test]
fn proofs_of_both_kinds_are_verified_repeatable_and_reported() {
    let server = Server::start("--proofs 1");
    for (kind, log_rows) in [("poseidon2", 10), ("keccak", 10)] {
        let [first, second, other] = [1, 1, 2].map(|seed| server.prove(kind, log_rows, seed));
        assert_eq!((first.status, second.status, other.status), (200, 200, 200), "{}", first.body);
        let (first, second, other) = (first.json(), second.json(), other.json());
        assert_eq!(first["digest"], second["digest"]);
        assert_ne!(first["digest"], other["digest"]);
        assert_eq!((&first["kind"], &first["log_rows"]), (&kind.into(), &log_rows.into()));
        assert!(first["proof_bytes"].as_u64().unwrap() > 10_000 && first["peak_bytes"].as_u64().unwrap() > 1 << 20);
        assert_eq!(first["is_alone"], true);
        // The second proof finds pages of the first.
        assert!(second["reused_bytes"].as_f64().unwrap() > 2.0 * second["fresh_bytes"].as_f64().unwrap(), "{second}");
    }
    let page = server.get("/memory").body;
    assert!(page.contains("poseidon2 2^10") && page.contains("proofs that count: 3"), "{page}");
    assert_eq!(server.metric("service_proofs_total", "done"), 6.0);
    assert_eq!(server.get("/health").body, "ok\n");
}

#[test]
fn bad_requests_are_refused_with_what_is_allowed() {
    let server = Server::start("");
    let cases = [
        ("POST", "/proofs", "{".to_owned(), 400, "send JSON such as"),
        ("POST", "/proofs", body("sha3", 10, 1), 422, "use poseidon2 or keccak"),
        ("POST", "/proofs", body("keccak", 30, 1), 422, "use 5 to 20"),
        ("POST", "/proofs", " ".repeat(5000), 413, "4096 bytes"),
        ("GET", "/proofs", String::new(), 405, "POST /proofs"),
        ("GET", "/proof", String::new(), 404, "GET /memory"),
    ];
    for (method, path, body, status, expected) in cases {
        let reply = client::request(server.address, method, path, &body).unwrap();
        let error = reply.json()["error"].as_str().unwrap_or_default().to_owned();
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.body);
        assert!(error.contains(expected), "{method} {path}: {error}");
    }
}

/// The requests of a proof that runs and of one that waits.
fn one_runs_and_one_waits(server: &Server) -> (TcpStream, TcpStream) {
    let running = server.ask("poseidon2", 12);
    server.until("service_running_proofs", "", 1.0);
    let waiting = server.ask("poseidon2", 10);
    server.until("service_waiting_proofs", "", 1.0);
    (running, waiting)
}

/// One proof runs, one waits, and the third must be told to come back.
#[test]
fn a_full_queue_refuses_and_says_when_to_try_again() {
    let server = Server::start("--proofs 1 --queue 1");
    let (running, waiting) = one_runs_and_one_waits(&server);
    assert!(server.get("/memory").body.contains("#2 poseidon2 2^10"));

    let refused = server.prove("poseidon2", 10, 1);
    assert_eq!(refused.status, 503, "{}", refused.body);
    let seconds = client::header(&refused.head, "retry-after").and_then(|value| value.parse::<u64>().ok());
    assert!(seconds.is_some_and(|seconds| seconds >= 1), "{}", refused.head);
    assert!(refused.body.contains("the queue is full (1 waiting)"), "{}", refused.body);
    assert_eq!(server.metric("service_proofs_total", "rejected"), 1.0);
    assert_eq!([running, waiting].map(|stream| client::receive(stream).unwrap().status), [200, 200]);
}

/// A client that goes away must not keep its place. In this process, a running proof is finished and thrown away.
#[test]
fn clients_that_go_away_cancel_their_proofs() {
    let server = Server::start("--proofs 1 --queue 1");
    let (running, waiting) = one_runs_and_one_waits(&server);
    drop(waiting);
    server.until("service_waiting_proofs", "", 0.0);
    drop(running);
    server.until("service_proofs_total", "cancelled", 2.0);
    assert_eq!(server.prove("poseidon2", 10, 1).status, 200);
    assert_eq!(server.metric("service_proofs_total", "done"), 1.0);
}

/// A panic unwinds through the phase while the trace is alive. It must cost that request only, and no memory.
#[test]
fn a_panic_fails_its_own_request_and_frees_its_memory() {
    let server = Server::start("--proofs 2 --allow-faults");
    for _ in 0..2 {
        assert_eq!(server.prove("keccak", 10, 1).status, 200);
    }
    let live = server.metric("zk_alloc_live_bytes", "");
    for _ in 0..5 {
        let neighbour = server.ask("keccak", 10);
        let reply = server.post("/proofs", r#"{"kind":"keccak","log_rows":10,"fault":"panic"}"#);
        assert_eq!(reply.status, 500, "{}", reply.body);
        assert!(reply.body.contains("the request asked for this panic"), "{}", reply.body);
        assert_eq!(client::receive(neighbour).unwrap().status, 200);
    }
    let now = server.metric("zk_alloc_live_bytes", "");
    assert!(now < live + 0.25 * MIB, "{live} bytes were live, and {now} are after five panics");
    assert_eq!(server.metric("service_proofs_total", "failed"), 5.0);
}

#[test]
fn a_purge_returns_the_memory_of_earlier_proofs_and_the_next_proof_works() {
    let server = Server::start("--proofs 1");
    assert_eq!(server.prove("poseidon2", 12, 1).status, 200);
    let retained = server.metric("zk_alloc_retained_bytes", "");
    assert!(retained > 20.0 * MIB, "{retained} bytes are retained");
    let softened = server.post("/soften", "").json();
    assert!(softened["bytes"].as_f64().unwrap() > 0.8 * retained, "{softened}");
    assert_eq!(server.prove("poseidon2", 12, 1).status, 200);

    let purged = server.post("/purge", "").json();
    let fell = purged["rss_before_bytes"].as_f64().unwrap() - purged["rss_bytes"].as_f64().unwrap();
    assert!(fell > 0.8 * retained, "RSS fell by {fell} bytes: {purged}");
    assert!(server.metric("zk_alloc_retained_bytes", "") < 0.1 * retained);
    assert_eq!(server.prove("poseidon2", 12, 1).status, 200);
}

/// Prometheus refuses a scrape with one malformed line.
#[test]
fn the_metrics_are_prometheus_text() {
    let server = Server::start("");
    assert_eq!(server.prove("keccak", 10, 1).status, 200);
    let reply = server.get("/metrics");
    assert!(client::header(&reply.head, "content-type").is_some_and(|kind| kind.starts_with("text/plain")));
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut samples = 0;
    for line in reply.body.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            assert!(comment.starts_with("HELP ") || comment.starts_with("TYPE "), "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        assert!(is_name(series.split('{').next().unwrap()), "{line}");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        samples += 1;
    }
    assert!(samples >= 18, "{}", reply.body);
    for name in ["zk_alloc_resident_bytes", "service_reserved_bytes", "service_limit_bytes", "service_rss_bytes"] {
        assert!(client::metric(&reply.body, name, "").is_some(), "no {name}");
    }
}

/// Continuous profilers ask for this path, and take gzip.
#[test]
fn the_heap_profile_is_gzip_and_only_on_request() {
    let server = Server::start("");
    let reply = server.get("/debug/pprof/heap");
    assert!(reply.status == 404 && reply.body.contains("--profile"), "{reply:?}");

    let server = Server::start("--profile");
    assert_eq!(server.prove("keccak", 10, 1).status, 200);
    let mut answer = Vec::new();
    client::send(server.address, "GET", "/debug/pprof/heap", "").unwrap().read_to_end(&mut answer).unwrap();
    let body = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer[body..].starts_with(&[0x1f, 0x8b]));
}

/// The service learns that a proof fits only alone, and must not start two at once, although two slots are free.
#[test]
fn a_proof_waits_until_its_learned_peak_fits() {
    let server = Server::start("--proofs 2 --memory-limit 96M");
    let first = server.prove("poseidon2", 12, 1).json();
    let peak = first["peak_bytes"].as_f64().unwrap();
    assert!(peak > 35.0 * MIB && peak < 60.0 * MIB, "the limit of this test is for other peaks than {peak}");
    let both = [server.ask("poseidon2", 12), server.ask("poseidon2", 12)];
    server.until("service_waiting_proofs", "", 1.0);
    let page = server.get("/memory").body;
    assert!(page.contains("it needs") || !page.contains("#3"), "{page}");
    for stream in both {
        let reply = client::receive(stream).unwrap();
        assert_eq!(reply.json()["is_alone"], true, "{}", reply.body);
    }

    let refused = server.prove("poseidon2", 14, 1);
    assert_eq!(refused.status, 507, "{}", refused.body);
    assert!(refused.body.contains("estimated from smaller proofs"), "{}", refused.body);
    assert!(refused.json()["need_bytes"].as_f64().unwrap() > 3.9 * peak);
}

#[test]
fn a_request_that_takes_too_long_is_answered_and_cancelled() {
    let server = Server::start("--proofs 1 --timeout 1");
    let reply = server.prove("keccak", 15, 1);
    assert_eq!(reply.status, 504, "{}", reply.body);
    server.until("service_proofs_total", "cancelled", 1.0);
    assert_eq!(server.prove("keccak", 8, 1).status, 200);
}

/// A client that sends half a head must not hold its connection for ever.
#[test]
fn a_client_that_never_finishes_its_request_is_disconnected() {
    use std::io::{Read, Write};
    let server = Server::start("");
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    stream.write_all(b"POST /proofs HTTP/1.1\r\nHost: x\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the service closes the connection");
}
