//! The whole bench, from the command line to its files, with real proofs under every allocator.

mod common;

use common::{Bench, Outcome, arm, list};
use serde_json::Value;

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
    let markdown = std::fs::read_to_string(bench.folder().join("table.md")).unwrap();
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

/// The same seed must give the same order of arms in every round.
#[test]
fn a_seed_repeats_the_order() {
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

/// Wrong usage is reported before anything is built or run: exit code 2, one line, nothing on stdout.
#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    for (arguments, names) in [
        ("plonky9", "plonky3"),
        ("plonky3 --allocators hoard", "quick, peers, all, glibc, glibc-tuned"),
        ("plonky3 --sweep log-rows=12..9", "from 0 to 63"),
        ("plonky3 --until-precise 0%", "0.1% to 100%"),
        ("plonky3 --log-rows 40", "10 to 22"),
        ("plonky3 --threads none", "1 to 1024"),
    ] {
        Bench::new("usage").refuses(arguments, 2, names);
    }
}
