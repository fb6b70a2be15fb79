//! Recording and replaying, from the command line to the table, with real proofs under the recorder.

mod common;

use common::{Bench, interrupt, stderr, stdout, wait_for};
use std::process::Command;

/// A recorder that misses requests or phases would give a wrong table.
#[test]
fn what_was_recorded_of_real_proofs_can_be_replayed() {
    let bench = Bench::new("record");
    let recorded = bench.run("record plonky3 --workloads keccak --log-rows 10 --proofs 2 --threads 2");
    let progress = stderr(&recorded);
    assert_eq!(recorded.status.code(), Some(0), "{progress}");
    assert!(progress.contains("proof 2 of 2: verified") && progress.contains(" 0 lost: "), "{progress}");
    let path = stdout(&recorded);
    assert!(path.trim_end().ends_with("plonky3-keccak-10.trace"), "{path}");

    let mut replay = Command::new(env!("CARGO_BIN_EXE_prove-bench"));
    replay.args(["replay", path.trim_end(), "--allocators", "zk-alloc"]).env_remove("CARGO");
    let replayed = replay.output().unwrap();
    let table = stdout(&replayed);
    assert_eq!(replayed.status.code(), Some(0), "{}", stderr(&replayed));
    assert!(table.starts_with("plonky3 keccak 2^10, 2 proofs"), "{table}");
    let operations = table.split("; ").nth(1).and_then(|text| text.split(' ').next()?.parse::<u64>().ok()).unwrap();
    let row = table.lines().find(|line| line.starts_with("| zk-alloc ")).expect("a row for each allocator");
    let live_peak_mib = row.split('|').nth(4).and_then(|cell| cell.trim().parse::<f64>().ok()).unwrap();
    // The trace of the proof alone takes 21 MB.
    assert!(live_peak_mib > 15.0 && operations > 50, "{table}");
}

/// Ctrl-C is not a failure, and the exit code must say so.
#[test]
fn an_interrupted_recording_exits_as_shells_expect() {
    let bench = Bench::new("record-interrupt");
    let arguments = "record plonky3 --workloads keccak --log-rows 10 --proofs 10000 --threads 1";
    let mut driver = bench.command(arguments).spawn().unwrap();
    wait_for(&mut driver, "proof 1 of");
    interrupt(&mut driver, 130);
}
