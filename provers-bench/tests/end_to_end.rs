//! Tests the whole bench, from the command line to its files and exit codes: a run under every allocator, its reports, and `check` against
//! a baseline that the same test blessed. The proofs are real. To test `check`, a child makes its own measurements worse on request.

mod common;

use common::{Bench, Outcome, arm, list};
use scraper::{Html, Selector};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Every arm proves every workload in every round. The table, CSV and JSON must describe the same proofs.
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
        // Only our allocator reports these values.
        let mut workloads = list(&result["workloads"]).iter();
        let result_of = workloads.find(|item| item["workload"] == workload).unwrap();
        // At this size WHIR's live peak is a fifth of a MiB; the other two workloads also keep a trace.
        let least_bytes = if workload == "whir" { 1 << 17 } else { 1 << 20 };
        assert!(result_of["live_peak_bytes"].as_u64().unwrap() > least_bytes, "{result_of}");
        // The arena must have served requests; otherwise our row would show the backing allocator.
        for sample in list(&arm(&result, workload, "zk-alloc")["samples"]) {
            let counters = &sample["counters"];
            assert!(counters["arena_allocations"].as_u64() > Some(0) && counters["phases"] == 1, "{sample}");
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

    // It must be possible to regenerate each report byte for byte from `result.json`; otherwise a report contains data that the result
    // lacks.
    let folder = bench.folder();
    let paths = ["report.html", "table.md"].map(|name| folder.join(name));
    let files = || paths.each_ref().map(|path| fs::read_to_string(path).unwrap());
    let first = files();
    assert!(table.contains(paths[0].to_str().unwrap()), "the run prints the path of its page: {table}");
    assert!(first[1].contains("| zk-alloc") && first[1].contains("--seed 5"), "{}", first[1]);
    let result = folder.join("result.json");
    for run in ["latest", folder.file_name().unwrap().to_str().unwrap(), result.to_str().unwrap()] {
        paths.iter().for_each(|path| fs::remove_file(path).unwrap());
        let text = bench.run(&format!("report {run}"), 0).out;
        assert!(text.contains("report.html"), "{text}");
        assert!(files() == first, "{run}");
    }
}

/// Compares the rows of the CSV file, written during the run, with the samples in the JSON file, written after it.
fn same_samples<'a>(arm: &Value, rows: impl Iterator<Item = &'a Value>) {
    let (samples, rows) = (list(&arm["samples"]), rows.collect::<Vec<_>>());
    assert_eq!(samples.len(), rows.len());
    for (sample, row) in samples.iter().zip(rows) {
        for name in ["process", "round", "order", "wall_ns", "minflt", "peak_rss_bytes", "verified"] {
            assert_eq!(sample[name].to_string(), row[name].as_str().unwrap(), "{name}");
        }
        assert_eq!((&sample["verified"], &row["threads"]), (&true.into(), &"2".into()));
        assert!(sample["wall_ns"].as_u64().unwrap() > 0 && sample["peak_rss_bytes"].as_u64().unwrap() > 0);
    }
}

/// The seed must determine the order of the arms in every round, so that a run can be repeated.
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

/// Returns a saved run from which the documentation is generated.
fn saved(name: &str) -> Value {
    let path = format!("{}/../docs/data/runs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Writes a run into a folder of the test and returns the folder's path.
fn folder_of(bench: &Bench, name: &str, run: &Value) -> String {
    fs::create_dir_all(bench.path(name)).unwrap();
    bench.write(&format!("{name}/result.json"), &run.to_string());
    bench.path(name)
}

/// Returns the texts of the elements that match the CSS selector `what`.
fn selected(page: &Html, what: &str) -> Vec<String> {
    page.select(&Selector::parse(what).unwrap()).map(|element| element.text().collect()).collect()
}

/// Returns the page and the tables of a run. The page must not load anything, because users send it by mail and open it offline.
fn reported(bench: &Bench, name: &str, run: &Value) -> (Html, String) {
    let folder = folder_of(bench, name, run);
    bench.run(&format!("report {folder}"), 0);
    let [text, tables] =
        ["report.html", "table.md"].map(|file| fs::read_to_string(format!("{folder}/{file}")).unwrap());
    assert!(["url(", "@import", "http:", "https:"].iter().all(|outside| !text.contains(outside)), "{text}");
    let page = Html::parse_document(&text);
    assert_eq!(page.errors, Vec::<String>::new());
    let loaded = selected(&page, "link, script, img, iframe, object, [onerror], [src], [href]");
    assert_eq!(loaded, Vec::<String>::new());
    let drawn = Selector::parse("svg *").unwrap();
    let mut drawn = page.select(&drawn).flat_map(|element| element.value().attrs());
    assert!(drawn.all(|(_, value)| !value.contains("NaN") && !value.contains("inf")), "{text}");
    (page, tables)
}

const HOSTILE: &str = "</li><script>alert(1)</script><img src=x onerror='alert(2)'>&amp;\"";

/// The page must contain every measurement, because a reader may have no other file. Reasons quote the output of dying processes, which
/// must not become markup.
#[test]
fn the_report_shows_every_figure_and_its_text_stays_text() {
    let mut run = saved("scaling-8-16");
    run["machine"]["cpu"] = HOSTILE.into();
    let workload = &mut run["workloads"][0];
    workload["about"] = format!("\0\u{1b}[31m{HOSTILE}").into();
    let point = |at: u32| json!({ "round": at / 5, "at_ms": at * 20, "rss_bytes": 9_000_000 });
    workload["arms"][1]["rss_over_time"] = (0..10).map(point).collect();
    workload["arms"][2]["label"] = HOSTILE.into();
    workload["arms"][3]["outcome"] = json!({ "outcome": "failed", "round": 1, "reason": format!("a|b\nc{HOSTILE}") });
    workload["arms"][3]["summary"] = Value::Null;
    let bench = Bench::new("report");
    let (page, tables) = reported(&bench, "full", &run);

    let text: String = page.root_element().text().collect();
    let (rows, labels) = (selected(&page, "details tbody tr"), selected(&page, "tbody th"));
    let mut samples = 0;
    for arm in list(&run["workloads"]).iter().flat_map(|workload| list(&workload["arms"])) {
        let label = arm["label"].as_str().unwrap();
        assert!(labels.iter().any(|name| name == label), "{label}");
        for sample in list(&arm["samples"]) {
            let wall_ns = sample["wall_ns"].to_string();
            assert!(rows.iter().any(|row| row.contains(label) && row.contains(&wall_ns)), "{label} {wall_ns}");
            samples += 1;
        }
        let ratio = &arm["summary"]["wall_ratio"];
        let figures = [&ratio["median"], &ratio["interval"]["low"], &ratio["interval"]["high"]].map(Value::as_f64);
        if let [Some(median), Some(low), Some(high)] = figures {
            let figure = format!("{median:.3} [{low:.3}, {high:.3}]");
            assert!(text.contains(&figure), "{label}: {figure}");
        }
    }
    // Besides the samples, each arm has a row in the table of its point.
    assert_eq!(rows.len(), samples + 14);
    for part in ["--rounds 8", "rustc ", "95% confidence interval", "Memory, first warm proof", "live peak 2.91 GB"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(selected(&page, ".notes li").iter().any(|note| note.contains(HOSTILE)));
    let failed = tables.lines().find(|line| line.contains("FAILED in round 1: a\\|b c&lt;/li>")).expect(&tables);
    assert!(!failed.contains(" s "), "{failed}");
    for table in tables.split("\n\n").filter(|part| part.starts_with('|')) {
        let cells: Vec<_> = table.lines().map(|line| line.replace("\\|", "").matches('|').count()).collect();
        assert!(cells.iter().all(|count| *count == cells[0]), "{table}");
    }

    // Empty fields must not break the page.
    let arm = &mut run["workloads"][1]["arms"][0];
    (arm["samples"], arm["summary"]) = (json!([]), Value::Null);
    run["workloads"] = json!([run["workloads"][1]]);
    reported(&bench, "bare", &run);
    run["workloads"] = json!([]);
    reported(&bench, "empty", &run);
}

/// An arm that failed in one run, or is missing there, must not be shown as unchanged. All other differences between the runs must be
/// listed too.
#[test]
fn two_runs_are_compared_arm_by_arm() {
    let bench = Bench::new("compare");
    let before = saved("together");
    let mut after = before.clone();
    after["seed"] = 9.into();
    let arms = after["workloads"][0]["arms"].as_array_mut().unwrap();
    arms.remove(1);
    arms[3]["outcome"] = json!({ "outcome": "failed", "round": 3, "reason": "hung" });
    arms[3]["summary"] = Value::Null;
    let compared = |after: &Value| {
        let [before, after] = [("a", &before), ("b", after)].map(|(name, run)| folder_of(&bench, name, run));
        bench.run(&format!("compare {before} {after}"), 0).out
    };
    let text = compared(&after);
    for part in ["- jemalloc: not in B\n", "- zk-alloc, B: FAILED in round 3: hung\n", "- seed: A 3404401058, B 9\n"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let row = text.lines().find(|line| line.contains(" warm time ")).expect("a row for the arm of both");
    assert!(row.matches('[').count() == 2 && !text.contains(" zk-alloc |"), "{text}");
    after["workloads"][0]["log_rows"] = 16.into();
    let text = compared(&after);
    assert!(text.contains("only A has poseidon2 2^13") && text.contains("only B has poseidon2 2^16"), "{text}");
}

/// If a run does not exist, a one-line error must name what the driver looked for.
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

/// Returns the command line that checks the smallest workload against [`BASELINE`].
fn check_line(bench: &Bench, arguments: &str) -> String {
    format!("check --workloads poseidon2 --baseline {} {arguments}", bench.path(BASELINE))
}

/// Runs `check --bless` with a one-word reason.
fn bless(bench: &Bench, reason: &str) {
    bench.run(&check_line(bench, &format!("--rounds 6 --bless --reason {reason}")), 0);
}

/// Sets the time ratio in the baseline to `median`, which the measured ratio does not exceed by chance even on a busy machine. With the
/// ratio that was just measured, the test would depend on timing.
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

/// Unchanged code must pass the check. A wrong proof, a slowdown, or a proof that faults memory in again must fail it.
#[test]
fn unchanged_code_passes_but_a_wrong_proof_a_slowdown_or_many_page_faults_fail() {
    let bench = Bench::new("gate");
    // No measurements are recorded for a proof that fails verification. It must neither pass nor be blessed.
    let line = check_line(&bench, "--rounds 6 --bless --reason no");
    let text = bench.run_with_fault(&line, "zk-alloc:2:bad-proof", 1).out;
    assert!(text.contains("Nothing was blessed") && !Path::new(&bench.path(BASELINE)).exists(), "{text}");

    bless(&bench, "first");
    set_warm_time_ratio(&bench, 1.5);
    let text = bench.run(&check_line(&bench, "--rounds 6"), 0).out;
    for figure in ["minor faults", "system calls", "escaped bytes", "live peak", "peak RSS", "warm time"] {
        assert!(text.contains(figure), "{figure}: {text}");
    }
    // This slowdown leads to more than twice the allowed time; `cargo make prove-check-soak` tests a small one.
    fails_by(&bench, "slow=300", "warm time / glibc's");
    fails_by(&bench, "page-faults", "minor faults");

    bless(&bench, "second");
    let text = fs::read_to_string(bench.path(BASELINE)).unwrap();
    assert!(text.contains("reason = \"first\"") && text.contains("reason = \"second\""), "reasons are kept: {text}");
    assert_eq!(text.matches("log_rows").count(), 1, "new figures replace the old ones: {text}");
}

/// Returns a baseline of one workload. Only its name and size matter.
fn baseline_of(key: &str, log_rows: u32) -> String {
    format!(
        "schema = 1\n[workloads.\"{key}\"]\nlog_rows = {log_rows}\nthreads = 2\nmachine = \"m\"\nprofile = \"p\"\n\
         minor_faults = 1\nsystem_calls = 0\nescaped_bytes = 0\npeak_rss_ratio = 1.0\n"
    )
}

/// If the baseline is unusable, `check` must say so before it proves anything, and its exit code must differ from that of a regression.
#[test]
fn an_unusable_baseline_is_a_one_line_error_with_exit_code_2() {
    for (content, options, names) in [
        (None, "", "does not exist"),
        (Some("schema = 99\n".to_owned()), "", "schema 99"),
        (Some("schema = 99\n".to_owned()), "--bless --reason new", "schema 99"),
        (Some(String::new()), "", "no schema"),
        (Some("not TOML".to_owned()), "", "is no baseline"),
        (Some("schema = 1\nworkload = {}".to_owned()), "", "is no baseline"),
        (Some(baseline_of("p/w", 13).replace("minor_faults", "minor_fault")), "", "it lacks the minor faults of p/w"),
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
    // An entry for an unknown workload must be an error; otherwise nobody would notice that a renamed workload is no longer checked.
    let bench = Bench::new("gate-unknown");
    let baseline = bench.write(BASELINE, &baseline_of("plonky3/poseidon9", 13));
    bench.refuses(&format!("check --baseline {baseline}"), 2, "plonky3/poseidon9, which is no workload");
}
