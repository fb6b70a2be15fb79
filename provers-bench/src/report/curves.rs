//! The curves of a sweep, one table per workload: a row per point, a column per arm.

use super::table::{Style, drawn};
use crate::results::format;
use crate::results::record::{ArmResult, Run, Sweep, WorkloadResult};

/// One table per workload, each with its heading; empty if the run is not a sweep.
pub(crate) fn curves(run: &Run, style: Style) -> String {
    let Some(sweep) = run.sweep else { return String::new() };
    let of_workload = |points: &[WorkloadResult]| {
        let first = &points[0];
        let title =
            format!("{} over {}: warm time, as a ratio to {} [95%]", first.workload, axis(sweep), first.baseline);
        let table = drawn(&rows(sweep, points), style).trim_fmt();
        match style {
            Style::Terminal => format!("{title}\n{table}\n\n"),
            Style::Markdown => format!("\n### {title}\n\n{table}\n"),
        }
    };
    run.workloads.chunk_by(|one, next| one.workload == next.workload).map(of_workload).collect()
}

/// The header, followed by the points.
fn rows(sweep: Sweep, points: &[WorkloadResult]) -> Vec<Vec<String>> {
    let arms = points[0].arms.iter().map(|arm| arm.label.clone());
    let header = [axis(sweep).to_owned()].into_iter().chain(arms).collect();
    let row = |point: &WorkloadResult| {
        let at = match sweep {
            Sweep::LogRows => format!("2^{} rows", point.log_rows),
            Sweep::Threads => point.threads.to_string(),
        };
        [at].into_iter().chain(point.arms.iter().map(|arm| cell(arm, &point.baseline))).collect()
    };
    [header].into_iter().chain(points.iter().map(row)).collect()
}

fn axis(sweep: Sweep) -> &'static str {
    match sweep {
        Sweep::LogRows => "log-rows",
        Sweep::Threads => "threads",
    }
}

/// A ratio, or the time for the baseline.
fn cell(arm: &ArmResult, baseline: &str) -> String {
    let Some(summary) = &arm.summary else { return "failed".into() };
    match (&summary.wall_ratio, summary.warm_wall_ns) {
        (Some(ratio), _) => format::ratio(ratio),
        (None, Some(ns)) if arm.label == baseline => format::time(ns),
        (None, _) => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::record::{Ended, Outcome};
    use crate::results::record::{summarise, tests::arm};
    use crate::results::timed::Timed;

    fn point(log_rows: u32, threads: usize, ours: Outcome) -> WorkloadResult {
        let mut arms =
            vec![arm("glibc", Outcome::Finished, &[200_000_000; 9]), arm("zk-alloc", ours, &[100_000_000; 9])];
        summarise(&mut arms, 0, 1);
        let (workload, about, baseline) = ("w".into(), String::new(), "glibc".into());
        WorkloadResult {
            workload,
            about,
            timed: Timed::Proofs,
            log_rows,
            threads,
            live_peak_bytes: None,
            baseline,
            arms,
            ended: Ended::AllRounds,
        }
    }

    /// A curve is read down a column, so every point must be a row, even a failed one.
    #[test]
    fn every_point_is_a_row_with_a_cell_an_arm() {
        let failed = Outcome::Failed { round: 1, reason: String::new() };
        let points = [point(10, 2, Outcome::Finished), point(11, 2, failed)];
        let expected = [
            ["log-rows", "glibc", "zk-alloc"],
            ["2^10 rows", "200 ms", "0.500 [0.500, 0.500]"],
            ["2^11 rows", "200 ms", "failed"],
        ];
        assert_eq!(rows(Sweep::LogRows, &points), expected);
        assert_eq!(rows(Sweep::Threads, &points)[1][0], "2");
    }
}
