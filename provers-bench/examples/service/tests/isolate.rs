//! `--isolate`: a proof that needs too much fails alone.

mod common;

use common::Server;
use proving_service::client;

const MIB: u64 = 1 << 20;

/// A small proof fits into 128 MiB, and one of 2^14 rows does not.
const ARGS: &str = "--isolate --workers 2 --budget 128M --allow-faults";

fn check_over_budget(server: &Server) {
    let reply = server.prove("poseidon2", 14, 1);
    assert_eq!(reply.status, 507, "{}", reply.body);
    let report = reply.json()["over_budget"].clone();
    let bytes = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", reply.body));
    assert_eq!(bytes("budget_bytes"), 128 * MIB);
    // The request did not fit next to the mapped memory.
    assert!(bytes("refused_bytes") + bytes("mapped_bytes") > 128 * MIB, "{}", reply.body);
    assert!(bytes("mapped_bytes") <= 128 * MIB && bytes("live_bytes") <= bytes("mapped_bytes"), "{}", reply.body);
    assert!(reply.body.contains("The worker was replaced"), "{}", reply.body);
}

fn check_many(times: usize) {
    let server = Server::start(ARGS);
    for round in 0..times {
        let neighbour = server.ask("poseidon2", 10);
        check_over_budget(&server);
        let reply = client::receive(neighbour).unwrap();
        assert_eq!(reply.status, 200, "round {round}: {}", reply.body);
    }
    assert_eq!(server.metric("service_proofs_total", "failed"), times as f64);
    assert_eq!(server.metric("service_proofs_total", "done"), times as f64);
    assert_eq!(server.prove("keccak", 10, 1).status, 200);
}

#[test]
fn a_proof_over_its_budget_fails_alone_with_a_report() {
    check_many(5);
}

/// `cargo test --test isolate -- --ignored`: half a minute on 2 cores.
#[test]
#[ignore = "takes half a minute"]
fn a_hundred_proofs_over_their_budget_fail_alone() {
    check_many(100);
}

/// The request that does not fit comes first, in the middle or at the end of a proof, from any thread. Each time, the
/// answer must be a proof or a report.
#[test]
fn a_budget_that_ends_anywhere_in_a_proof_gives_a_report() {
    let statuses: Vec<u16> = [96, 112, 114, 116, 118, 120, 160]
        .into_iter()
        .map(|budget| {
            let server = Server::start(&format!("--isolate --workers 1 --budget {budget}M"));
            let reply = server.prove("poseidon2", 13, 1);
            let has_report = reply.json()["over_budget"]["refused_bytes"].as_u64().is_some_and(|bytes| bytes > 0);
            assert!(reply.status == 200 || reply.status == 507 && has_report, "{budget} MiB: {}", reply.body);
            assert_eq!(server.prove("poseidon2", 8, 1).status, 200);
            reply.status
        })
        .collect();
    assert_eq!((statuses.first(), statuses.last()), (Some(&507), Some(&200)), "{statuses:?}");
}

/// A worker that made proofs of several sizes has more memory mapped than any one of them needs: here, a huge run and
/// shorter ones lie in different zones of the arena. A proof that fits into a fresh worker must not fail because of that.
#[test]
fn a_used_worker_does_not_fail_a_proof_that_fits() {
    let server = Server::start("--isolate --workers 1 --budget 136M");
    for (kind, log_rows) in [("keccak", 11), ("poseidon2", 13)] {
        let reply = server.prove(kind, log_rows, 1);
        assert_eq!(reply.status, 200, "{kind} 2^{log_rows}: {}", reply.body);
    }
    assert_eq!(server.metric("service_worker_processes_total", ""), 2.0, "the used worker had room for both");
    assert_eq!(server.metric("service_proofs_total", "failed"), 0.0);
}

/// An idle worker must be able to answer a purge, and must still prove afterwards.
#[test]
fn a_purge_reaches_the_workers() {
    let server = Server::start("--isolate --workers 1 --budget 256M");
    assert_eq!(server.prove("poseidon2", 12, 1).status, 200);
    let resident = server.metric("service_worker_resident_bytes", "worker=\"0\"");
    let purged = server.post("/purge", "").json();
    assert_eq!(purged["idle_workers"], 1);
    assert!(purged["bytes"].as_f64().unwrap() > 0.8 * resident, "{purged}, of {resident}");
    assert!(server.metric("service_worker_resident_bytes", "worker=\"0\"") < 0.2 * resident);
    assert_eq!(server.post("/soften", "").json()["idle_workers"], 1);
    assert_eq!(server.prove("poseidon2", 12, 1).status, 200);
    assert_eq!(server.metric("service_worker_processes_total", ""), 1.0);
}

#[test]
fn a_panic_in_a_worker_fails_its_own_request_and_the_worker_lives() {
    let server = Server::start("--isolate --workers 1 --budget 128M --allow-faults");
    let reply = server.post("/proofs", r#"{"kind":"keccak","log_rows":10,"fault":"panic"}"#);
    assert_eq!(reply.status, 500, "{}", reply.body);
    assert!(reply.body.contains("the request asked for this panic"), "{}", reply.body);
    assert_eq!(server.prove("keccak", 10, 1).status, 200);
    assert_eq!(server.metric("service_worker_processes_total", ""), 1.0);
}

/// The worker of a client that went away is ended, so that its memory and its processor are free at once.
#[test]
fn a_client_that_goes_away_ends_its_worker() {
    let server = Server::start("--isolate --workers 1 --budget 1G");
    let running = server.ask("keccak", 13);
    server.until("service_running_proofs", "", 1.0);
    drop(running);
    server.until("service_proofs_total", "cancelled", 1.0);
    server.until("service_worker_processes_total", "", 2.0);
    assert_eq!(server.prove("keccak", 8, 1).status, 200);
}

/// A worker may be killed by the kernel or by an operator.
#[test]
fn a_killed_worker_fails_its_proof_and_is_replaced() {
    use rustix::process::{Pid, Signal, kill_process};
    let server = Server::start("--isolate --workers 1 --budget 1G");
    let running = server.ask("keccak", 13);
    server.until("service_running_proofs", "", 1.0);
    let page = server.get("/memory").body;
    let pid = page.split("pid ").nth(1).and_then(|rest| rest.split(',').next()).and_then(|pid| pid.parse().ok());
    kill_process(Pid::from_raw(pid.expect("the page names the worker's process")).unwrap(), Signal::KILL).unwrap();
    let reply = client::receive(running).unwrap();
    assert_eq!(reply.status, 500, "{}", reply.body);
    assert!(reply.body.contains("the worker was lost") && reply.body.contains("signal: 9"), "{}", reply.body);
    assert_eq!(server.prove("keccak", 8, 1).status, 200);
}
