//! The gate, from its command line to its exit code: real proofs, against a baseline that the same test blessed. The
//! child itself makes figures worse on request.

mod common;

use common::{Bench, stderr, stdout};
use std::fs;
use std::path::PathBuf;
use std::process::Output;

/// A gate with its own baseline.
struct Gate {
    bench: Bench,
    baseline: PathBuf,
}

impl Gate {
    fn new(name: &str) -> Self {
        let baseline = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.toml", std::process::id()));
        Self { bench: Bench::new(name), baseline }
    }

    /// Checks the smallest workload.
    fn check(&self, arguments: &str, fault: Option<&str>) -> Output {
        let line = format!("check --workloads poseidon2 --baseline {} {arguments}", self.baseline.display());
        match fault {
            Some(fault) => self.bench.run_with_fault(&line, fault),
            None => self.bench.run(&line),
        }
    }

    /// Blesses the baseline, with a reason of one word.
    fn bless(&self, reason: &str) {
        let output = self.check(&format!("--rounds 6 --bless --reason {reason}"), None);
        assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.baseline).expect("a baseline was written")
    }

    /// Sets the baseline's time to a value that no busy machine reaches by chance. With the measured value this would
    /// be a timing test.
    fn set_warm_time_ratio(&self, median: f64) {
        let mut baseline: toml::Table = self.text().parse().expect("a baseline is TOML");
        let ratio =
            baseline["workloads"]["plonky3/poseidon2"]["warm_time_ratio"].as_table_mut().expect("time was judged");
        for figure in ["median", "low", "high"] {
            ratio.insert(figure.into(), median.into());
        }
        fs::write(&self.baseline, baseline.to_string()).unwrap();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.baseline);
    }
}

/// Runs the check with `fault` in every proof of zk-alloc. The check must name `figure` and fail.
#[track_caller]
fn fails_by(gate: &Gate, fault: &str, figure: &str) {
    let output = gate.check("--rounds 6", Some(&format!("zk-alloc:*:{fault}")));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{fault}: {text}\n{}", stderr(&output));
    let named = text.lines().find(|line| line.starts_with(&format!("plonky3/poseidon2: {figure}: ")));
    assert!(named.is_some_and(|line| line.contains("baseline") && line.contains("too much")), "{fault}: {text}");
    assert!(text.contains("--bless --reason"), "{text}");
}

/// Unchanged code must pass. A slower prover must fail, and so must one that faults in its memory again.
#[test]
fn unchanged_code_passes_and_a_slowdown_and_a_storm_of_faults_do_not() {
    let gate = Gate::new("gate");
    gate.bless("first");
    gate.set_warm_time_ratio(1.5);
    let output = gate.check("--rounds 6", None);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", stderr(&output));
    for figure in ["minor faults", "system calls", "escaped bytes", "live peak", "peak RSS", "warm time"] {
        assert!(text.contains(figure), "{figure}: {text}");
    }
    // More than twice the allowed time; `cargo make prove-check-soak` tests a small slowdown.
    fails_by(&gate, "slow=300", "warm time / glibc's");
    fails_by(&gate, "page-faults", "minor faults");

    gate.bless("second");
    let text = gate.text();
    assert!(text.contains("reason = \"first\"") && text.contains("reason = \"second\""), "reasons are kept: {text}");
    assert_eq!(text.matches("log_rows").count(), 1, "the figures are not: {text}");
}

/// A proof that does not verify has no figures. It must neither pass nor be blessed.
#[test]
fn a_failing_arm_fails_the_check_and_is_not_blessed() {
    let gate = Gate::new("gate-failing");
    let output = gate.check("--rounds 6 --bless --reason no", Some("zk-alloc:2:bad-proof"));
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stdout(&output).contains("Nothing was blessed"), "{}", stdout(&output));
    assert!(!gate.baseline.exists());
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
        let gate = Gate::new("gate-unusable");
        if let Some(content) = content {
            fs::write(&gate.baseline, content).unwrap();
        }
        let output = gate.check(options, None);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{names}: {message}");
        assert!(message.lines().count() == 1 && message.contains(names), "{names}: {message}");
        assert!(output.stdout.is_empty());
    }
}

/// A removed workload's figures in the baseline would never be checked again, and nobody would notice.
#[test]
fn an_unknown_workload_in_the_baseline_is_named() {
    let gate = Gate::new("gate-unknown");
    fs::write(&gate.baseline, baseline_of("plonky3/poseidon9", 13)).unwrap();
    let output = gate.bench.run(&format!("check --baseline {}", gate.baseline.display()));
    assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
    assert!(stderr(&output).contains("plonky3/poseidon9, which is no workload"), "{}", stderr(&output));
}
