//! The gate, from its command line to its exit code: real proofs, against a baseline that the same test blessed. The
//! child itself makes figures worse on request.

mod common;

use common::{Bench, Outcome};
use std::fs;
use std::path::Path;

/// The test's own baseline.
const BASELINE: &str = "baseline.toml";

/// The arguments that check the smallest workload.
fn check(bench: &Bench, arguments: &str) -> String {
    format!("check --workloads poseidon2 --baseline {} {arguments}", bench.path(BASELINE))
}

/// Blesses the baseline, with a reason of one word.
fn bless(bench: &Bench, reason: &str) {
    bench.run(&check(bench, &format!("--rounds 6 --bless --reason {reason}")), 0);
}

/// Sets the baseline's time to a value that no busy machine reaches by chance. With the measured value this would
/// be a timing test.
fn set_warm_time_ratio(bench: &Bench, median: f64) {
    let text = fs::read_to_string(bench.path(BASELINE)).expect("a baseline was written");
    let mut baseline: toml::Table = text.parse().expect("a baseline is TOML");
    let ratio = baseline["workloads"]["plonky3/poseidon2"]["warm_time_ratio"].as_table_mut().expect("time was judged");
    for figure in ["median", "low", "high"] {
        ratio.insert(figure.into(), median.into());
    }
    bench.write(BASELINE, &baseline.to_string());
}

/// Runs the check with `fault` in every proof of zk-alloc. The check must name `figure` and fail.
#[track_caller]
fn fails_by(bench: &Bench, fault: &str, figure: &str) {
    let text = bench.run_with_fault(&check(bench, "--rounds 6"), &format!("zk-alloc:*:{fault}"), 1).out;
    let named = text.lines().find(|line| line.starts_with(&format!("plonky3/poseidon2: {figure}: ")));
    assert!(named.is_some_and(|line| line.contains("baseline") && line.contains("too much")), "{fault}: {text}");
    assert!(text.contains("--bless --reason"), "{text}");
}

/// Unchanged code must pass. A slower prover must fail, and so must one that faults in its memory again.
#[test]
fn unchanged_code_passes_and_a_slowdown_and_a_storm_of_faults_do_not() {
    let bench = Bench::new("gate");
    bless(&bench, "first");
    set_warm_time_ratio(&bench, 1.5);
    let text = bench.run(&check(&bench, "--rounds 6"), 0).out;
    for figure in ["minor faults", "system calls", "escaped bytes", "live peak", "peak RSS", "warm time"] {
        assert!(text.contains(figure), "{figure}: {text}");
    }
    // More than twice the allowed time; `cargo make prove-check-soak` tests a small slowdown.
    fails_by(&bench, "slow=300", "warm time / glibc's");
    fails_by(&bench, "page-faults", "minor faults");

    bless(&bench, "second");
    let text = fs::read_to_string(bench.path(BASELINE)).unwrap();
    assert!(text.contains("reason = \"first\"") && text.contains("reason = \"second\""), "reasons are kept: {text}");
    assert_eq!(text.matches("log_rows").count(), 1, "the figures are not: {text}");
}

/// A proof that does not verify has no figures. It must neither pass nor be blessed.
#[test]
fn a_failing_arm_fails_the_check_and_is_not_blessed() {
    let bench = Bench::new("gate-failing");
    let line = check(&bench, "--rounds 6 --bless --reason no");
    let text = bench.run_with_fault(&line, "zk-alloc:2:bad-proof", 1).out;
    assert!(text.contains("Nothing was blessed"), "{text}");
    assert!(!Path::new(&bench.path(BASELINE)).exists());
}

/// A baseline of one workload. Only its name and size matter.
fn baseline_of(key: &str, log_rows: u32) -> String {
    format!(
        "schema = 1\n[workloads.\"{key}\"]\nlog_rows = {log_rows}\nthreads = 2\nmachine = \"m\"\nprofile = \"p\"\n\
         minor_faults = 1\nsystem_calls = 0\nescaped_bytes = 0\npeak_rss_ratio = 1.0\n"
    )
}

/// A gate without a usable baseline must say so before it proves anything. Its exit code must differ from that of a
/// regression.
#[test]
fn a_baseline_that_cannot_be_used_is_one_line_and_exit_code_2() {
    for (content, options, names) in [
        (None, "", "does not exist"),
        (Some("schema = 99\n".to_owned()), "", "schema 99"),
        (Some("schema = 99\n".to_owned()), "--bless --reason new", "schema 99"),
        (Some("not TOML".to_owned()), "", "is no baseline"),
        (Some(baseline_of("plonky3/poseidon9", 13)), "", "no figures of plonky3/poseidon2"),
        (Some(baseline_of("plonky3/poseidon2", 20)), "", "2^20 rows"),
        (None, "--bless", "--reason"),
        (None, "--reason why", "--bless"),
        (None, "--bless --reason why --rounds 2", "6 rounds"),
        (None, "--workloads sha", "plonky3/keccak"),
    ] {
        let bench = Bench::new("gate-unusable");
        if let Some(content) = content {
            bench.write(BASELINE, &content);
        }
        bench.refuses(&check(&bench, options), 2, names);
    }
}

/// A removed workload's figures in the baseline would never be checked again, and nobody would notice.
#[test]
fn an_unknown_workload_in_the_baseline_is_named() {
    let bench = Bench::new("gate-unknown");
    let baseline = bench.write(BASELINE, &baseline_of("plonky3/poseidon9", 13));
    let Outcome { err, .. } = bench.run(&format!("check --baseline {baseline}"), 2);
    assert!(err.contains("plonky3/poseidon9, which is no workload"), "{err}");
}
