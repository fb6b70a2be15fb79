//! The whole bench, from the command line to its files and exit codes: a run under every allocator, its reports, and the
//! gate against a baseline that the same test blessed. The proofs are real. On request, the child makes its own figures worse.

mod common;

use common::{Bench, Outcome, arm, list};
use scraper::{Html, Selector};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Every arm proves every workload in every round. Table, CSV and JSON must describe the same proofs.
#[test]
fn every_arm_proves_and_the_files_hold_every_sample() {
    let bench = Bench::new("end-to-end");
    let Outcome { out: table, err: progress } = bench.run("plonky3 --log-rows 10 --rounds 3 --seed 5 --threads 2", 0);

    let result = bench.result();
    let samples = bench.samples();
    assert_eq!(samples.len(), 3 * 3 * 6, "workloads x arms x (3 processes of a cold and a warm proof)");
    for workload in ["poseidon2", "keccak", "whir"] {
        assert!(table.contains(&format!("{workload}, 2^10 rows")), "{table}");
        let last = format!("{workload} 2^10, threads 2, round 3 of 3 (process 3 of 3): ");
        assert!(progress.contains(&last), "{progress}");
        for name in ["glibc", "jemalloc", "zk-alloc"] {
            let arm = arm(&result, workload, name);
            assert_eq!(arm["outcome"]["outcome"], "finished", "{arm}");
            assert_eq!(arm["identity"]["allocator"], name);
            assert!(!arm["identity"]["version"].as_str().unwrap().is_empty());
            let place = |sample: &Value| ["process", "round"].map(|field| sample[field].as_u64().unwrap());
            let places: Vec<_> = list(&arm["samples"]).iter().map(place).collect();
            assert_eq!(places, [[0, 0], [0, 1], [1, 0], [1, 2], [2, 0], [2, 3]]);
            let curve = list(&arm["rss_over_time"]);
            let of_round = |round: u64| curve.iter().filter(|point| point["round"] == round).count();
            assert!(of_round(0) > 0 && of_round(1) > 0 && of_round(0) + of_round(1) == curve.len(), "{curve:?}");
            same_samples(arm, samples.iter().filter(|row| row["workload"] == workload && row["arm"] == name));
        }
        // Only our allocator reports these figures.
        let mut workloads = list(&result["workloads"]).iter();
        let result_of = workloads.find(|item| item["workload"] == workload).unwrap();
        // At this size WHIR holds a fifth of a MiB; the AIRs also hold a trace.
        let least_bytes = if workload == "whir" { 1 << 17 } else { 1 << 20 };
        assert!(result_of["live_peak_bytes"].as_u64().unwrap() > least_bytes, "{result_of}");
        // If the arena served nothing, our row would describe the system allocator.
        for sample in list(&arm(&result, workload, "zk-alloc")["samples"]) {
            let is_counted = |name: &str| sample["counters"][name].as_u64() > Some(0);
            assert!(is_counted("arena_allocations") && is_counted("phases"), "{sample}");
        }
        // 3 rounds give an interval, but no verdict.
        let ours = &arm(&result, workload, "zk-alloc")["summary"];
        assert_eq!(ours["verdict"], "too_few_rounds");
        assert!(ours["wall_ratio"]["interval"]["low"].is_f64(), "{ours}");
        assert!(ours["cold_ratio"]["processes"] == 3 && ours["warm_system_calls"].is_u64(), "{ours}");
        assert!(ours["peak_rss_ratio"].is_f64(), "{ours}");
        assert_eq!(arm(&result, workload, "glibc")["summary"]["wall_ratio"], Value::Null);
    }
    assert_eq!((&result["seed"], &result["threads"]), (&5.into(), &2.into()));
    assert!(result["machine"]["build"]["rustc"].as_str().unwrap().starts_with("rustc "));
    let markdown = fs::read_to_string(bench.folder().join("table.md")).unwrap();
    assert!(markdown.contains("| zk-alloc") && markdown.contains("--seed 5"), "{markdown}");
}

/// Different code writes JSON and CSV at different times. They must agree.
fn same_samples<'a>(arm: &Value, rows: impl Iterator<Item = &'a Value>) {
    let samples = list(&arm["samples"]);
    let mut count = 0;
    for (sample, row) in samples.iter().zip(rows) {
        for name in
            ["process", "round", "order", "wall_ns", "user_ns", "sys_ns", "minflt", "rss_bytes", "peak_rss_bytes"]
        {
            assert_eq!(sample[name].to_string(), row[name].as_str().unwrap(), "{name}");
        }
        assert_eq!((&row["verified"], &row["threads"]), (&"true".into(), &"2".into()));
        assert!(sample["wall_ns"].as_u64().unwrap() > 0 && sample["peak_rss_bytes"].as_u64().unwrap() > 0);
        count += 1;
    }
    assert_eq!(count, samples.len());
}

/// A run must be repeatable: its seed decides the order of arms in every round.
#[test]
fn the_same_seed_repeats_the_order_of_arms() {
    let order = |name: &str| {
        let options = "--workloads poseidon2 --allocators glibc,glibc,zk-alloc --log-rows 10 --rounds 4 --processes 2";
        let (bench, ..) = Bench::proved(name, &format!("{options} --seed 77"));
        let placed = |row: &Value| ["process", "round", "order", "arm"].map(|field| row[field].clone());
        bench.samples().iter().map(placed).collect::<Vec<_>>()
    };
    let first = order("order-1");
    assert_eq!(first, order("order-2"));
    assert!(first.iter().any(|[_, _, _, arm]| arm == "glibc-2"), "an A/A run has two rows");
}

const SMALL: &str = "--log-rows 10 --rounds 6 --seed 5 --threads 2";

/// A reader who has only the page must find every measured figure there.
#[test]
fn the_report_page_shows_every_arm_figure_and_sample() {
    let (bench, result, table) = Bench::proved("report", SMALL);
    let path = bench.folder().join("report.html");
    assert!(table.contains(path.to_str().unwrap()), "the run prints the path of its page: {table}");

    let html = fs::read_to_string(&path).unwrap();
    let page = Html::parse_document(&html);
    assert_eq!(page.errors, Vec::<String>::new());
    let selected = |what: &str| -> Vec<String> {
        let found = Selector::parse(what).unwrap();
        page.select(&found).map(|element| element.text().collect()).collect()
    };
    let text: String = page.root_element().text().collect();
    let (rows, labels) = (selected("details tbody tr"), selected("tbody th"));
    let mut samples = 0;
    for workload in list(&result["workloads"]) {
        for arm in list(&workload["arms"]) {
            let label = arm["label"].as_str().unwrap();
            assert!(labels.iter().any(|name| name == label), "{label}");
            for sample in list(&arm["samples"]) {
                let wall_ns = sample["wall_ns"].to_string();
                assert!(rows.iter().any(|row| row.contains(label) && row.contains(&wall_ns)), "{label} {wall_ns}");
                samples += 1;
            }
            if let Value::Object(ratio) = &arm["summary"]["wall_ratio"] {
                let number = |value: &Value| value.as_f64().unwrap();
                let (low, high) = (number(&ratio["interval"]["low"]), number(&ratio["interval"]["high"]));
                let figure = format!("{:.3} [{low:.3}, {high:.3}]", number(&ratio["median"]));
                assert!(text.contains(&figure), "{label}: {figure}");
            }
        }
    }
    assert_eq!(rows.len(), samples);
    for part in ["--seed 5", result["machine"]["build"]["rustc"].as_str().unwrap(), "95% confidence interval"] {
        assert!(text.contains(part), "{part}");
    }
}

/// A page that cannot be regenerated byte for byte contains data that the result lacks.
#[test]
fn a_report_can_be_regenerated_from_the_result_alone() {
    let (bench, ..) = Bench::proved("regenerate", &format!("{SMALL} --workloads keccak"));
    let folder = bench.folder();
    let paths = ["report.html", "table.md"].map(|name| folder.join(name));
    let files = || paths.each_ref().map(|path| fs::read_to_string(path).unwrap());
    let first = files();
    let result = folder.join("result.json");
    for run in ["latest", folder.file_name().unwrap().to_str().unwrap(), result.to_str().unwrap()] {
        paths.iter().for_each(|path| fs::remove_file(path).unwrap());
        let text = bench.run(&format!("report {run}"), 0).out;
        assert!(text.contains("report.html"), "{text}");
        assert!(files() == first, "{run}");
    }
}

/// A comparison of two runs of the same code must find the arms of both and state their seeds.
#[test]
fn two_real_runs_are_compared_arm_by_arm() {
    let benches =
        [("compare-a", "--seed 1"), ("compare-b", "--seed 2 --allocators glibc,zk-alloc")].map(|(name, options)| {
            Bench::proved(name, &format!("--log-rows 10 --rounds 6 --workloads keccak {options}")).0
        });
    let [before, after] = [&benches[0], &benches[1]].map(|bench| bench.folder().display().to_string());
    let text = benches[0].run(&format!("compare {before} {after}"), 0).out;
    let row = text.lines().find(|line| line.contains(" warm time ")).expect("a row for the arm of both");
    assert_eq!(row.matches('[').count(), 2, "{text}");
    assert!(text.contains(" zk-alloc |"), "{text}");
    assert!(text.contains("- seed: A 1, B 2") && text.contains("- jemalloc: not in B"), "{text}");
}

/// If a run does not exist, one line says what was searched for.
#[test]
fn a_missing_run_is_a_one_line_error() {
    for (arguments, code, says) in [
        ("report nonsense", 1, "no run \"nonsense\""),
        ("report latest", 1, "no run in"),
        ("compare nonsense latest", 1, "no run \"nonsense\""),
        ("compare one", 2, "required"),
        ("report", 2, "required"),
    ] {
        Bench::new("no-run").refuses(arguments, code, says);
    }
}

/// The test's own baseline.
const BASELINE: &str = "baseline.toml";

/// The arguments that check the smallest workload.
fn check_line(bench: &Bench, arguments: &str) -> String {
    format!("check --workloads poseidon2 --baseline {} {arguments}", bench.path(BASELINE))
}

/// Blesses the baseline, with a reason of one word.
fn bless(bench: &Bench, reason: &str) {
    bench.run(&check_line(bench, &format!("--rounds 6 --bless --reason {reason}")), 0);
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
    let text = bench.run_with_fault(&check_line(bench, "--rounds 6"), &format!("zk-alloc:*:{fault}"), 1).out;
    let named = text.lines().find(|line| line.starts_with(&format!("plonky3/poseidon2: {figure}: ")));
    assert!(named.is_some_and(|line| line.contains("baseline") && line.contains("too much")), "{fault}: {text}");
    assert!(text.contains("--bless --reason"), "{text}");
}

/// Unchanged code must pass. A slower prover must fail, and so must a prover that faults its memory in again.
#[test]
fn unchanged_code_passes_but_a_slowdown_or_many_page_faults_fail() {
    let bench = Bench::new("gate");
    bless(&bench, "first");
    set_warm_time_ratio(&bench, 1.5);
    let text = bench.run(&check_line(&bench, "--rounds 6"), 0).out;
    for figure in ["minor faults", "system calls", "escaped bytes", "live peak", "peak RSS", "warm time"] {
        assert!(text.contains(figure), "{figure}: {text}");
    }
    // More than twice the allowed time; `cargo make prove-check-soak` tests a small slowdown.
    fails_by(&bench, "slow=300", "warm time / glibc's");
    fails_by(&bench, "page-faults", "minor faults");

    bless(&bench, "second");
    let text = fs::read_to_string(bench.path(BASELINE)).unwrap();
    assert!(text.contains("reason = \"first\"") && text.contains("reason = \"second\""), "reasons are kept: {text}");
    assert_eq!(text.matches("log_rows").count(), 1, "new figures replace the old ones: {text}");
}

/// A proof that does not verify has no figures. It must neither pass nor be blessed.
#[test]
fn a_failing_arm_fails_the_check_and_is_not_blessed() {
    let bench = Bench::new("gate-failing");
    let line = check_line(&bench, "--rounds 6 --bless --reason no");
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
fn an_unusable_baseline_is_a_one_line_error_with_exit_code_2() {
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
        bench.refuses(&check_line(&bench, options), 2, names);
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
