//! Tests runs in which an arm fails: its row must state the reason, the exit code must be 1, and the other arms must finish. The child
//! fails on purpose, in the way that the test requests; everything else is real.

mod common;

use common::{Bench, arm, interrupt, list, wait_for};

const SMALL: &str = "plonky3 --workloads poseidon2 --log-rows 10 --rounds 3 --processes 2";

/// Runs all arms and injects `fault` into jemalloc in round 2. Returns the reason for jemalloc's failure.
fn reason_of(fault: &str, options: &str) -> String {
    let bench = Bench::new(fault);
    let table = bench.run_with_fault(&format!("{SMALL} {options}"), &format!("jemalloc:2:{fault}"), 1).out;
    assert!(table.contains("jemalloc: FAILED in round 2: "), "{table}");

    let result = bench.result();
    let failed = arm(&result, "poseidon2", "jemalloc");
    assert_eq!(failed["outcome"]["round"], 2);
    assert!(failed["summary"].is_null(), "a failed arm shows no figures: {failed}");
    for name in ["glibc", "zk-alloc"] {
        let other = arm(&result, "poseidon2", name);
        assert_eq!(other["outcome"]["outcome"], "finished", "{other}");
        assert_eq!(list(&other["samples"]).len(), 5, "{name} proves in every round of both processes");
    }
    let kept = bench.samples().iter().filter(|row| row["arm"] == "jemalloc").count();
    assert!(kept >= 2, "samples from before the failure are kept");
    failed["outcome"]["reason"].as_str().unwrap().to_owned()
}

/// An allocator may abort, hang forever, or hand out the same memory twice, so that a proof fails verification. The arm's row must state
/// which.
#[test]
fn a_failing_child_has_its_reason_in_the_table() {
    for (fault, options, reason) in [
        ("die", "", "died of SIGABRT"),
        ("hang", "--timeout 3", "hung: no answer within 3 s, killed"),
        ("bad-proof", "", "proof 3 does not verify: "),
        ("garbage", "", "answered garbage: \"this is no reply\", killed"),
    ] {
        let found = reason_of(fault, options);
        assert!(found.starts_with(reason), "{fault}: {found}");
    }
}

/// If glibc, the baseline, fails, there are no ratios, but the other arms must still be measured.
#[test]
fn the_other_arms_keep_their_figures_if_the_baseline_fails() {
    let bench = Bench::new("baseline");
    let table = bench.run_with_fault(SMALL, "glibc:0:die", 1).out;
    assert!(table.contains("no glibc to compare with"), "{table}");
    let result = bench.result();
    let ours = &arm(&result, "poseidon2", "zk-alloc")["summary"];
    assert!(ours["warm_wall_ns"].is_u64() && ours["wall_ratio"].is_null(), "{ours}");
}

/// After Ctrl-C in a long run, the driver must exit soon, stop its children, and write the samples measured so far.
#[test]
fn an_interrupted_run_ends_its_children_and_keeps_its_samples() {
    let bench = Bench::new("interrupt");
    let mut driver = bench.command("plonky3 --log-rows 10 --rounds 10000 --processes 10000").spawn().unwrap();
    wait_for(&mut driver, "round 2 of");
    interrupt(&mut driver, 130);
    assert!(bench.samples().len() >= 12, "two processes, each with a cold and a warm proof, of three arms");
    let result = bench.result();
    assert_eq!(result["interrupted"], true);
    let ours = arm(&result, "poseidon2", "zk-alloc");
    assert_eq!(ours["outcome"]["outcome"], "interrupted");
    assert!(ours["summary"]["warm_wall_ns"].is_u64(), "{ours}");
}
