//! Recording and simulation, from the command line to the table, with real proofs under the recorder.

mod common;

use common::{Bench, interrupt, stderr, stdout, wait_for};
use std::process::Command;

/// A recorder that misses requests or phases would give a wrong table.
#[test]
fn what_was_recorded_of_real_proofs_can_be_replayed() {
    let bench = Bench::new("placement");
    let recorded = bench.run("record plonky3 --workloads keccak --log-rows 10 --proofs 2 --threads 2");
    let progress = stderr(&recorded);
    assert_eq!(recorded.status.code(), Some(0), "{progress}");
    assert!(progress.contains("proof 2 of 2: verified") && progress.contains(" 0 lost: "), "{progress}");
    let path = stdout(&recorded);
    assert!(path.trim_end().ends_with("plonky3-keccak-10.trace"), "{path}");

    let mut simulate = Command::new(env!("CARGO_BIN_EXE_prove-bench"));
    let simulated = simulate.args(["simulate", path.trim_end(), "--policy", "zk-alloc,one-zone"]).output().unwrap();
    let table = stdout(&simulated);
    assert_eq!(simulated.status.code(), Some(0), "{}", stderr(&simulated));
    assert!(table.starts_with("plonky3 keccak 2^10, 2 proofs"), "{table}");
    let row = table.lines().find(|line| line.starts_with("| zk-alloc ")).expect("a row a policy");
    let cells: Vec<_> = row.split('|').map(str::trim).collect();
    // The trace of the proof alone takes 21 MB.
    let (live_peak_mib, allocations) = (cells[4].parse::<f64>().unwrap(), cells[10].parse::<u64>().unwrap());
    assert!(live_peak_mib > 15.0 && allocations > 50, "{row}");
}

/// Ctrl-C is not a failure, and the exit code must say so.
#[test]
fn an_interrupted_recording_exits_as_shells_expect() {
    let bench = Bench::new("placement-interrupt");
    let arguments = "record plonky3 --workloads keccak --log-rows 10 --proofs 10000 --threads 1";
    let mut driver = bench.command(arguments).spawn().unwrap();
    wait_for(&mut driver, "proof 1 of");
    interrupt(&mut driver, 130);
}
