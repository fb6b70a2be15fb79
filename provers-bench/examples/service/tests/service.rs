//! The service in one process, and with workers: real proofs over HTTP.

mod common;

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use common::{Server, receive, refused};
use rustix::process::{Signal, kill_process};

const MIB: f64 = 1048576.0;
const PANIC: &str = r#"{"log_rows":9,"panic":true}"#;

/// A proof that is the same each time it is made shows corruption that its own verification would not.
#[test]
fn proofs_are_verified_repeatable_and_reported() {
    let server = Server::start("--proofs 1");
    let [first, second, other] = [1, 1, 2].map(|seed| server.prove(9, seed));
    assert_eq!((first.status, second.status, other.status), (200, 200, 200), "{}", first.body);
    let (first, second, other) = (first.json(), second.json(), other.json());
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
        let reply = receive(server.send(method, path, body)).unwrap();
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.body);
        assert!(reply.body.contains(expected), "{method} {path}: {}", reply.body);
    }
}

/// The requests of a proof that runs and of one that waits.
fn one_runs_and_one_waits(server: &Server) -> [TcpStream; 2] {
    let running = server.ask(11);
    server.until("service_running_proofs", "", 1.0);
    let waiting = server.ask(9);
    server.until("service_waiting_proofs", "", 1.0);
    [running, waiting]
}

#[test]
fn a_full_queue_refuses_and_says_when_to_try_again() {
    let server = Server::start("--proofs 1 --queue 1");
    let streams = one_runs_and_one_waits(&server);
    let page = server.get("/memory").body;
    assert!(page.contains("#2 2^9") && page.contains("as many proofs run as may"), "{page}");
    let refused = server.prove(9, 1);
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    assert!(refused.body.contains("the queue is full (1 waiting)"), "{}", refused.body);
    assert_eq!(server.metric("service_proofs_total", "rejected"), 1.0);
    assert_eq!(streams.map(|stream| receive(stream).unwrap().status), [200, 200]);
}

/// A client that goes away must not keep its place. In this process, a running proof is finished and thrown away.
#[test]
fn clients_that_go_away_cancel_their_proofs() {
    let server = Server::start("--proofs 1 --queue 1");
    let [running, waiting] = one_runs_and_one_waits(&server);
    drop(waiting);
    server.until("service_waiting_proofs", "", 0.0);
    drop(running);
    server.until("service_proofs_total", "cancelled", 2.0);
    assert_eq!(server.prove(9, 1).status, 200);
    assert_eq!(server.metric("service_proofs_total", "done"), 1.0);
}

/// A panic unwinds through the phase while the trace is alive. It must cost that request only, and no memory.
#[test]
fn a_panic_fails_its_own_request_and_frees_its_memory() {
    let server = Server::start("--proofs 2");
    assert_eq!([1, 2].map(|seed| server.prove(9, seed).status), [200, 200]);
    let live = server.metric("zk_alloc_live_bytes", "");
    for _ in 0..5 {
        let neighbour = server.ask(9);
        let reply = server.post(PANIC);
        assert_eq!(reply.status, 500, "{}", reply.body);
        assert!(reply.body.contains("the request asked for this panic"), "{}", reply.body);
        assert_eq!(receive(neighbour).unwrap().status, 200);
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
        let reply = receive(stream).unwrap();
        assert_eq!(reply.json()["is_alone"], true, "{}", reply.body);
    }
    let refused = server.prove(13, 1);
    assert_eq!(refused.status, 507, "{}", refused.body);
    assert!(refused.body.contains("estimated from smaller proofs"), "{}", refused.body);
}

#[test]
fn a_request_that_takes_too_long_is_answered_and_cancelled() {
    let server = Server::start("--proofs 1 --timeout 1");
    let reply = server.prove(15, 1);
    assert_eq!(reply.status, 504, "{}", reply.body);
    server.until("service_proofs_total", "cancelled", 1.0);
}

/// A small proof fits into 128 MiB, and one of 2^14 rows does not.
#[test]
fn a_proof_over_its_budget_fails_alone() {
    let server = Server::start("--isolate 128");
    for round in 0..3 {
        let neighbour = server.ask(8);
        let reply = server.prove(14, 1);
        assert_eq!(reply.status, 507, "{}", reply.body);
        assert!(reply.body.contains("of 128.0 MiB in all. The worker is replaced"), "{}", reply.body);
        let reply = receive(neighbour).unwrap();
        assert_eq!(reply.status, 200, "round {round}: {}", reply.body);
    }
    assert_eq!(server.metric("service_proofs_total", "failed"), 3.0);
    assert_eq!(server.metric("service_proofs_total", "done"), 3.0);
}

/// The request that does not fit comes first, in the middle or at the end of a proof, from any thread. Each time, the
/// answer must be a proof or a report.
#[test]
fn a_budget_that_ends_anywhere_in_a_proof_gives_a_report() {
    let statuses = [80, 96, 104, 112, 120, 160, 256].map(|budget| {
        let server = Server::start(&format!("--proofs 1 --isolate {budget}"));
        let reply = server.prove(12, 1);
        assert!([200, 507].contains(&reply.status), "{budget} MiB: {}", reply.body);
        reply.status
    });
    assert!(statuses.contains(&200) && statuses.contains(&507), "{statuses:?}");
}

#[test]
fn a_panic_in_a_worker_fails_its_own_request_and_the_worker_lives() {
    let server = Server::start("--proofs 1 --isolate 256");
    let reply = server.post(PANIC);
    assert_eq!(reply.status, 500, "{}", reply.body);
    assert!(reply.body.contains("the request asked for this panic"), "{}", reply.body);
    assert_eq!(server.prove(9, 1).status, 200);
    assert_eq!(server.metric("service_worker_processes_total", ""), 1.0);
}

/// The worker of a client that went away is ended, so that its memory and its processor are free at once.
#[test]
fn a_client_that_goes_away_ends_its_worker() {
    let server = Server::start("--proofs 1 --isolate 2048");
    let running = server.ask(13);
    server.until("service_running_proofs", "", 1.0);
    drop(running);
    server.until("service_proofs_total", "cancelled", 1.0);
    assert_eq!(server.prove(8, 1).status, 200);
    assert_eq!(server.metric("service_worker_processes_total", ""), 2.0);
}

/// A worker may be killed by the kernel or by an operator.
#[test]
fn a_killed_worker_fails_its_proof_and_is_replaced() {
    let server = Server::start("--proofs 1 --isolate 2048");
    let running = server.ask(13);
    server.until("service_running_proofs", "", 1.0);
    kill_process(server.workers()[0], Signal::KILL).unwrap();
    let reply = receive(running).unwrap();
    assert_eq!(reply.status, 500, "{}", reply.body);
    assert!(reply.body.contains("worker was lost") && reply.body.contains("signal: 9"), "{}", reply.body);
    assert_eq!(server.prove(8, 1).status, 200);
}

#[test]
fn sigterm_and_ctrl_c_let_running_proofs_finish() {
    for (args, signal) in [("", Signal::TERM), ("", Signal::INT), ("--isolate 1024", Signal::TERM)] {
        let server = Server::start(&format!("--proofs 1 {args}"));
        let [running, waiting] = one_runs_and_one_waits(&server);
        server.signal(signal);
        let refused = receive(waiting).unwrap();
        assert_eq!(refused.status, 503, "{}", refused.body);
        assert!(refused.body.contains("shutting down"), "{}", refused.body);
        // It takes no more connections, from a moment after the refusal on.
        while TcpStream::connect(server.address).is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(receive(running).unwrap().status, 200);
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// A proof that would take minutes must not hold up the shutdown beyond its grace.
#[test]
fn proofs_that_outlast_the_grace_are_given_up_with_another_exit_code() {
    let server = Server::start("--proofs 1 --grace 1");
    let _running = server.ask(16);
    server.until("service_running_proofs", "", 1.0);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(1));
}

#[test]
fn workers_that_do_not_fit_below_the_limit_are_refused() {
    let text = refused("--isolate 1024 --proofs 3 --memory-limit 2048");
    assert!(text.contains("3 workers with 1024 MiB each do not fit below the limit of 2048 MiB"), "{text}");
}
