//! SIGTERM and Ctrl-C: running proofs finish, waiting ones are refused, the exit code tells.

mod common;

use common::{Server, refused};
use proving_service::client;
use rustix::process::Signal;

fn finishes_what_runs(args: &str, signal: Signal) {
    let server = Server::start(args);
    let running = server.ask("poseidon2", 12);
    server.until("service_running_proofs", "", 1.0);
    let waiting = server.ask("poseidon2", 12);
    server.until("service_waiting_proofs", "", 1.0);
    let address = server.address;
    server.signal(signal);
    let refused = client::receive(waiting).unwrap();
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("shutting down"), "{}", refused.body);
    assert!(client::request(address, "GET", "/health", "").is_err(), "it takes no more connections");
    assert_eq!(client::receive(running).unwrap().status, 200);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn sigterm_lets_a_running_proof_finish() {
    finishes_what_runs("--proofs 1", Signal::TERM);
}

#[test]
fn ctrl_c_lets_a_running_proof_finish() {
    finishes_what_runs("--proofs 1", Signal::INT);
}

#[test]
fn sigterm_lets_a_worker_finish_its_proof() {
    finishes_what_runs("--isolate --workers 1 --budget 512M", Signal::TERM);
}

/// A proof that would take minutes must not hold up the shutdown beyond its grace.
#[test]
fn proofs_that_outlast_the_grace_are_given_up_with_another_exit_code() {
    let server = Server::start("--proofs 1 --grace 1");
    let _running = server.ask("keccak", 16);
    server.until("service_running_proofs", "", 1.0);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(1));
}

#[test]
fn a_service_that_cannot_work_says_why_and_does_not_start() {
    let text = refused("--isolate --workers 3 --budget 1G --memory-limit 2G");
    assert!(text.contains("3 workers with 1.00 GiB each do not fit below the limit of 2.00 GiB"), "{text}");
    let other = Server::start("");
    let text = refused(&format!("--port {}", other.address.port()));
    assert!(text.contains("listening on 127.0.0.1"), "{text}");
}
