//! The cost of a missing mechanism, or of another value of a constant: a row for each, a column for each workload.

use crate::arms::tuned;
use crate::results::format;
use crate::results::record::{ArmResult, Run, WorkloadResult};
use crate::results::summary::Summary;
use crate::results::view;

/// A table's heading, and its cell for an arm, given the baseline unless the arm is it.
type Figure = (&'static str, fn(&Summary, Option<&Summary>) -> Option<String>);

const FIGURES: [Figure; 5] = [
    ("CPU time of a warm proof, as a ratio to the first row's [95%]", |arm, baseline| match baseline {
        Some(_) => arm.cpu_ratio.as_ref().map(format::ratio),
        None => arm.warm_cpu_ns.map(format::time),
    }),
    ("Page faults of a warm proof", |arm, _| arm.warm_minflt.map(format::count)),
    ("CPU time of a process's first proof, as a ratio to the first row's", |arm, baseline| match baseline {
        Some(_) => arm.cold_cpu_ratio.map(|ratio| format!("{:.3}", ratio.median)),
        None => arm.cold_cpu_ns.map(format::time),
    }),
    ("Page faults of a process's first proof", |arm, _| arm.cold_minflt.map(format::count)),
    ("Peak RSS, as a ratio to the first row's", |arm, baseline| match baseline {
        Some(_) => arm.peak_rss_ratio.map(|ratio| format!("{ratio:.3}")),
        None => arm.peak_rss_bytes.map(format::bytes),
    }),
];

/// The tables of these runs, one for each figure.
pub(super) fn tables(runs: &[&Run]) -> String {
    let columns: Vec<(&Run, &WorkloadResult)> =
        runs.iter().flat_map(|run| run.workloads.iter().map(|workload| (*run, workload))).collect();
    let mut labels: Vec<&str> = Vec::new();
    for label in columns.iter().flat_map(|(_, workload)| workload.arms.iter().map(|arm| arm.label.as_str())) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    let tables = FIGURES.map(|(heading, cell)| {
        let names = columns.iter().map(|(run, workload)| format!(" {} |", view::name(run, workload)));
        let mut table =
            format!("{heading}:\n\n| |{}\n|---|{}\n", names.collect::<String>(), "--:|".repeat(columns.len()));
        for label in &labels {
            let cells =
                columns.iter().map(|(_, workload)| format!(" {} |", of(workload, label, cell).unwrap_or("-".into())));
            table += &format!("| {} |{}\n", shown(label), cells.collect::<String>());
        }
        table
    });
    tables.join("\n")
}

/// The cell of an arm; `None` if it did not prove.
fn of(
    workload: &WorkloadResult,
    label: &str,
    cell: fn(&Summary, Option<&Summary>) -> Option<String>,
) -> Option<String> {
    let arm: &ArmResult = workload.arms.iter().find(|arm| arm.label == label)?;
    let baseline = view::baseline(workload).filter(|_| !view::is_baseline(workload, arm)).map(|(_, figures)| figures);
    cell(view::figures(arm)?, baseline)
}

/// The constants alone, as code.
fn shown(label: &str) -> String {
    label
        .strip_prefix(tuned::PREFIX)
        .map_or_else(|| label.to_owned(), |constants| format!("`{}`", constants.replace('+', " ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, run, workload};

    /// A mechanism's row must not show another's figures, nor a workload that it did not run.
    #[test]
    fn a_row_has_the_figures_of_its_arm_in_each_workload() {
        let one = run(vec![workload(&[("zk-alloc", &EVEN), ("zk-alloc:max_resident_probes=0", &EVEN)])]);
        let other = run(vec![workload(&[("zk-alloc", &EVEN), ("zk-alloc:caches_runs=0", &EVEN)])]);
        let text = tables(&[&one, &other]);
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with("| `max_resident_probes=0` |")).collect();
        assert_eq!(rows.len(), FIGURES.len(), "{text}");
        assert!(rows.iter().all(|row| row.ends_with("| - |") && !row.contains("| - | - |")), "{text}");
        assert!(text.contains("| `caches_runs=0` | - | "), "{text}");
    }
}
