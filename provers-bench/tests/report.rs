//! Reports of real runs: the page beside the result, made again, and two runs compared.

mod common;

use common::{Bench, stderr, stdout};
use scraper::{Html, Selector};
use serde_json::Value;
use std::fs;

const SMALL: &str = "plonky3 --log-rows 10 --rounds 6 --seed 5 --threads 2";

/// Whoever gets only the page must find everything there that was measured.
#[test]
fn the_page_holds_every_arm_figure_and_sample_of_the_result() {
    let bench = Bench::new("report");
    let output = bench.run(SMALL);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let path = bench.folder().join("report.html");
    assert!(
        stdout(&output).contains(path.to_str().unwrap()),
        "the run ends with where its page is: {}",
        stdout(&output)
    );

    let html = fs::read_to_string(&path).unwrap();
    let page = Html::parse_document(&html);
    assert_eq!(page.errors, Vec::<String>::new());
    let selected = |what: &str| -> Vec<String> {
        let found = Selector::parse(what).unwrap();
        page.select(&found).map(|element| element.text().collect()).collect()
    };
    let text: String = page.root_element().text().collect();
    let (rows, findings) = (selected("details tbody tr"), selected(".findings li"));
    let result = bench.result();
    let mut samples = 0;
    for workload in result["workloads"].as_array().unwrap() {
        for arm in workload["arms"].as_array().unwrap() {
            let label = arm["label"].as_str().unwrap();
            assert!(findings.iter().any(|finding| finding.starts_with(&format!("{label}: "))), "{label}");
            for sample in arm["samples"].as_array().unwrap() {
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
    for part in ["--seed 5", result["machine"]["build"]["rustc"].as_str().unwrap(), "Known biases"] {
        assert!(text.contains(part), "{part}");
    }
}

/// A page that cannot be made again, byte for byte, holds something that the result does not.
#[test]
fn a_report_is_made_again_from_the_result_alone() {
    let bench = Bench::new("regenerate");
    let output = bench.run(&format!("{SMALL} --workloads keccak"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let folder = bench.folder();
    let files = || ["report.html", "table.md"].map(|name| fs::read_to_string(folder.join(name)).unwrap());
    let first = files();
    let result = folder.join("result.json");
    for run in ["latest", folder.file_name().unwrap().to_str().unwrap(), result.to_str().unwrap()] {
        for name in ["report.html", "table.md"] {
            fs::remove_file(folder.join(name)).unwrap();
        }
        let output = bench.run(&format!("report {run}"));
        assert_eq!(output.status.code(), Some(0), "{run}: {}", stderr(&output));
        assert!(stdout(&output).contains("report.html"), "{}", stdout(&output));
        assert!(files() == first, "{run}");
    }
}

/// Between two runs of the same code, the comparison must find the arms of both and say which seeds they had.
#[test]
fn two_real_runs_are_compared_arm_by_arm() {
    let benches = [("compare-a", ""), ("compare-b", "--allocators glibc,zk-alloc")].map(|(name, options)| {
        let bench = Bench::new(name);
        let seed = if options.is_empty() { 1 } else { 2 };
        let output = bench.run(&format!("plonky3 --log-rows 10 --rounds 6 --workloads keccak --seed {seed} {options}"));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        bench
    });
    let [before, after] = [&benches[0], &benches[1]].map(|bench| bench.folder().display().to_string());
    let output = benches[0].run(&format!("compare {before} {after}"));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let row = text.lines().find(|line| line.starts_with("| zk-alloc ")).expect("a row for the arm of both");
    assert!(row.contains(" → ") && row.contains('['), "{row}");
    assert!(text.contains("- seed: A 1, B 2") && text.contains("- jemalloc: not in B"), "{text}");
}

/// Wrong names of runs are answered by one line that says what was looked for.
#[test]
fn a_run_that_is_not_there_is_one_line_and_exit_code_1() {
    for (arguments, code, says) in [
        ("report nonsense", 1, "no run \"nonsense\""),
        ("report latest", 1, "no run in"),
        ("compare nonsense latest", 1, "no run \"nonsense\""),
        ("compare one", 2, "required"),
        ("report", 2, "required"),
    ] {
        let output = Bench::new("no-run").run(arguments);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {message}");
        assert!(message.lines().count() == 1 && message.contains(says), "{arguments}: {message}");
        assert!(output.stdout.is_empty(), "{arguments}");
    }
}
