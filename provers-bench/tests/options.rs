//! Tests the options of a run: sweeps, predictions, JSON, and limits. The proofs are real, at the smallest size.

mod common;

use common::{Bench, list};
use serde_json::Value;

/// A sweep that loses a point or mixes up two points would draw a wrong curve.
#[test]
fn a_sweep_has_a_result_for_each_point_and_a_table_of_ratios() {
    let options = "--workloads keccak --sweep threads=1,2 --log-rows 10 --rounds 1 --allocators glibc,zk-alloc";
    let (bench, result, table) = Bench::proved("sweep", options);
    let points: Vec<_> = list(&result["workloads"]).iter().map(|point| point["threads"].clone()).collect();
    assert_eq!((&result["sweep"], points), (&"threads".into(), vec![1.into(), 2.into()]));
    assert!(table.contains("keccak over threads"), "{table}");
    let rows: Vec<_> = bench.samples().iter().map(|row| row["threads"].clone()).collect();
    assert_eq!(rows, [["1"; 4], ["2"; 4]].concat());
}

/// Operators choose container sizes by this table. The live peak hardly varies between runs, so its prediction must be close.
#[test]
fn a_larger_size_is_predicted_from_smaller_ones() {
    let ours = |result: &Value| result["workloads"][0]["live_peak_bytes"].as_f64().unwrap();
    let options = "--workloads keccak --allocators glibc,zk-alloc --rounds 1";
    let (_, result, table) = Bench::proved("predict", &format!("{options} --predict 14"));
    for part in ["keccak at 2^14 rows", "error at 2^13", "predicted from 2^10, 2^11, 2^12", " MiB"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let predictions = list(&result["predictions"]);
    assert_eq!(predictions.len(), 2, "one for each arm");
    assert!(predictions[0]["live_peak_bytes"].is_null() && predictions[0]["peak_rss_bytes"]["predicted"].is_f64());
    assert!(predictions[1]["container_bytes"].as_f64() > predictions[1]["peak_rss_bytes"]["interval"]["high"].as_f64());
    let (_, measured, _) = Bench::proved("predicted", &format!("{options} --log-rows 14"));
    let ratio = predictions[1]["live_peak_bytes"]["predicted"].as_f64().unwrap() / ours(&measured);
    assert!((0.97..1.03).contains(&ratio), "{ratio}: {predictions:?}");
}

/// Each arm proves at each tick and is idle in between. The measurements must include its memory during that idle time.
#[test]
fn proofs_at_fixed_times_are_made_one_arm_after_the_other() {
    let options = "--workloads keccak --log-rows 10 --every 1s --for 3s --allocators glibc,zk-alloc";
    let (_, result, table) = Bench::proved("slots", options);
    for heading in ["p95", "worst", "memory \u{d7} time (GB\u{b7}s)"] {
        assert!(table.contains(heading), "{heading}: {table}");
    }
    let result = &result["workloads"][0];
    assert_eq!(result["timed"], "slots");
    for arm in list(&result["arms"]) {
        let samples = list(&arm["samples"]);
        let rounds: Vec<_> = samples.iter().map(|sample| sample["round"].as_u64().unwrap()).collect();
        assert_eq!(rounds, [0, 1, 2], "{arm}");
        // The value covers a second of a process that holds at least 1 MB, not only the milliseconds of its proof.
        assert!(samples.iter().all(|sample| sample["byte_seconds"].as_u64().unwrap() > 1_000_000), "{arm}");
        let curve = list(&arm["rss_over_time"]);
        assert!(curve.last().unwrap()["at_ms"].as_u64().unwrap() > 2_500, "{arm}");
    }
    Bench::new("no-slots").refuses("plonky3 --every 4s --for 5s", 2, "--for");
}

/// Returns the workload's result, its table, and the number of processes of its first arm.
fn ended(name: &str, options: &str) -> (Value, String, u64) {
    let (_, result, table) = Bench::proved(name, &format!("--workloads poseidon2 --log-rows 10 {options}"));
    let workload = result["workloads"][0].clone();
    let processes = list(&workload["arms"][0]["samples"]).iter().map(|sample| sample["process"].as_u64().unwrap() + 1);
    let processes = processes.max().unwrap();
    (workload, table, processes)
}

/// Rounds must be added while an interval is too wide, and the report must say why the run ended. How many are added depends on the
/// machine. A run with a single arm has no intervals, so it must end after the planned rounds.
#[test]
fn until_precise_adds_processes_until_the_intervals_are_narrow_or_the_time_is_over() {
    let (result, table, processes) =
        ended("imprecise", "--allocators glibc,glibc --rounds 1 --until-precise 0.1% --max-time 20");
    assert_eq!(result["ended"], "out_of_time");
    assert!(table.contains("Ended because the time limit passed: "), "{table}");
    assert!(processes > 1, "there was time for more processes than planned");

    let (result, table, processes) =
        ended("precise", "--allocators glibc,glibc --rounds 6 --processes 4 --until-precise 100%");
    assert_eq!(result["ended"], "precise");
    assert!(processes >= 4, "fewer processes than planned");
    let interval = &result["arms"][1]["summary"]["wall_ratio"]["interval"];
    let width = interval["high"].as_f64().unwrap() - interval["low"].as_f64().unwrap();
    assert!(width <= 1.0, "{interval}");
    assert!(table.contains("Ended because every interval was narrow enough: "), "{table}");

    let (result, text, processes) =
        ended("planned", "--allocators glibc --rounds 6 --processes 4 --until-precise 0.1% --json");
    assert_eq!((&result["ended"], processes), (&"precise".into(), 4));
    // A script must be able to parse stdout.
    let printed: Value = serde_json::from_str(&text).expect("stdout is JSON");
    assert_eq!(printed["workloads"][0], result);
}

/// A run that reaches the time limit must report the samples measured so far, with the same number of rounds for both arms.
#[test]
fn a_run_out_of_time_reports_its_samples() {
    let (result, ..) = ended("short", "--allocators glibc,glibc --rounds 5000 --max-time 8");
    assert_eq!(result["ended"], "out_of_time");
    let counts: Vec<_> = list(&result["arms"]).iter().map(|arm| list(&arm["samples"]).len()).collect();
    assert!(counts[0] == counts[1] && counts[0] > 1, "{counts:?}");
    assert!(result["arms"][0]["summary"]["warm_wall_ns"].is_u64());
}
