//! Plonky3's provers with `libzk_alloc.so` preloaded.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod common;
#[path = "../../integrations/preload/tests/support/mod.rs"]
mod support;

use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;
use support::Arm;

/// Has a child of the bench make two proofs. Returns its replies and its stderr.
fn prove(child: &str, workload: &str, arm: Arm) -> (Vec<Value>, String) {
    let mut command = arm.command(child);
    command.env("ZK_ALLOC_REPORT", "1").env("RAYON_NUM_THREADS", "2");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().expect("a child of the bench starts");
    let set_up = json!({
        "request": "setup", "arm": "it", "prover": "plonky3", "workload": workload, "log_rows": 10, "requires": [], "stack_bytes": 0
    });
    let proofs = [0, 1].map(|round| json!({"request": "prove", "round": round, "seed": 7}));
    let mut requests = running.stdin.take().expect("it is piped");
    for request in std::iter::once(&set_up).chain(&proofs) {
        writeln!(requests, "{request}").expect("it reads");
    }
    drop(requests);
    let output = running.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{child}: {printed}");
    let replies = String::from_utf8(output.stdout).expect("its replies are text");
    (replies.lines().map(|line| serde_json::from_str(line).expect("a reply is JSON")).collect(), printed)
}

/// Every proof must verify, in the arm that links the arena and in the arm that the preloaded library serves.
#[test]
fn provers_that_allocate_from_glibc_prove_with_the_library() {
    for workload in ["poseidon2", "keccak", "whir"] {
        for child in [common::plonky3("with-glibc"), common::plonky3("with-zk-alloc")] {
            let child = child.to_str().expect("its path is text");
            for arm in support::ARMS {
                let (replies, printed) = prove(child, workload, arm);
                let proofs: Vec<_> = replies.iter().filter(|reply| reply["reply"] == "proved").collect();
                assert_eq!(proofs.len(), 2, "{child} {workload} {arm:?}: {replies:?}");
                assert!(proofs.iter().all(|proof| proof["sample"]["verified"] == true), "{proofs:?}");
                let is_served = printed.lines().any(|line| line.contains("report of") && line.contains(": served "));
                assert_eq!(is_served, arm != Arm::Without, "{child} {workload} {arm:?}: {printed}");
            }
        }
    }
}
