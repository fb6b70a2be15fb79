//! Defines the columns of all tables: their headings, their cells, and which tables show them. Also `samples.csv`.
//!
//! To add a measured column, add a field to [`Sample`](crate::sample::Sample) and a row to [`COLUMNS`] or to [`SAMPLES`].

use crate::results::{ArmResult, Proof, Ratio, Summary, Timed, WorkloadResult, format, view, whole_median};
use anyhow::Context;
use serde_json::Value;
use std::fs::File;
use std::path::Path;

/// A column of a table.
pub(crate) struct Column {
    /// Heading, in which [`heading`] replaces `{baseline}` by the name of the baseline, and `{warm}` by `time` for runs of a command and by
    /// `warm` otherwise.
    heading: &'static str,
    /// Returns the arm's value; `None` if the arm has no such value.
    figure: fn(&Seen<'_>) -> Option<String>,
    /// Returns a ratio to show in brackets after the value, if there is one.
    beside: fn(&Seen<'_>, Medium) -> Option<String>,
    /// Whether only the report's page shows the column.
    only_page: bool,
}

/// The medium in which a table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// On the terminal and in Markdown.
    Text,
    Page,
}

/// An arm of a workload, with its summary.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) workload: &'a WorkloadResult,
    pub(crate) arm: &'a ArmResult,
    pub(crate) summary: &'a Summary,
}

/// All columns except the first, which contains the arm's name. Every table has them in this order.
const COLUMNS: &[Column] = &[
    Column::new("cold (ratio)", |seen| seen.summary.cold_wall_ns.map(format::time))
        .beside(|seen, medium| medium.ratio(seen.summary.cold_ratio)),
    Column::new("first proof alone (ratio)", |seen| {
        view::alone_median(seen.arm, |proof| Some(proof.sample.wall_ns)).map(format::time)
    })
    .beside(|seen, medium| medium.ratio(view::alone_ratio(seen.workload, seen.arm))),
    Column::new("{warm}", |seen| seen.summary.warm_wall_ns.map(format::time)),
    Column::new("time vs {baseline} (95% CI)", |seen| seen.summary.wall_ratio.as_ref().map(format::ratio)),
    Column::new("p95", |seen| view::latency_ns(seen.workload, seen.arm, 0.95).map(format::time)),
    Column::new("worst", |seen| view::latency_ns(seen.workload, seen.arm, 1.0).map(format::time)),
    Column::new(VERDICT, |seen| Some(view::verdict(seen.workload, seen.arm, seen.summary))),
    Column::new("CPU vs {baseline} (95% CI)", |seen| {
        let ratio = seen.summary.cpu_ratio.as_ref().filter(|_| view::has_exact_cpu_time(seen.workload, seen.summary));
        ratio.map(format::ratio)
    }),
    Column::new("kernel time", |seen| {
        seen.summary.warm_sys_ns.filter(|_| seen.workload.timed != Timed::Proofs).map(format::time)
    }),
    Column::new("minor faults", |seen| seen.summary.warm_minflt.map(format::count)),
    Column::new("TLB shootdowns", |seen| {
        whole_median(view::warm(seen.arm).filter_map(|proof| proof.sample.tlb_shootdowns)).map(format::count)
    }),
    Column { only_page: true, ..Column::new("system calls", |seen| seen.summary.warm_system_calls.map(format::count)) },
    Column::new("peak RSS (ratio)", |seen| seen.summary.peak_rss_bytes.map(format::bytes))
        .beside(|seen, _| seen.summary.peak_rss_ratio.map(|ratio| format!("{ratio:.2}"))),
    Column::new("idle RSS", |seen| {
        seen.summary.resting_rss_bytes.filter(|_| seen.workload.timed.rests()).map(format::bytes)
    }),
    Column::new("RSS after 1 s", |seen| {
        view::alone_median(seen.arm, |proof| proof.rss_after_1_s_bytes).map(format::bytes)
    }),
    Column::new("RSS after 10 s", |seen| {
        view::alone_median(seen.arm, |proof| proof.rss_after_10_s_bytes).map(format::bytes)
    }),
    Column::new("memory \u{d7} time (GB\u{b7}s)", |seen| seen.summary.warm_byte_seconds.map(format::gigabyte_seconds))
        .beside(|seen, _| {
            let ratio = view::byte_seconds_ratio(seen.workload, seen.arm);
            ratio.filter(|_| seen.workload.timed == Timed::Slots).map(|ratio| format!("{ratio:.2}"))
        }),
];

/// Heading of the column that shows the verdict, or why an arm has no results.
const VERDICT: &str = "verdict";

/// Returns the columns in which at least one arm of `workload` has a value. The verdict is always included, because failed arms have no
/// values.
pub(crate) fn filled(workload: &WorkloadResult, medium: Medium) -> impl Iterator<Item = &'static Column> {
    let seen = |arm| Some(Seen { workload, arm, summary: view::figures(arm)? });
    let seen: Vec<_> = workload.arms.iter().filter_map(seen).collect();
    COLUMNS.iter().filter(move |column| {
        let is_filled = || seen.iter().any(|seen| (column.figure)(seen).is_some());
        (medium == Medium::Page || !column.only_page) && (column.is_verdict() || is_filled())
    })
}

/// Returns the heading of a column for `workload`.
pub(crate) fn heading(column: &Column, workload: &WorkloadResult) -> String {
    let warm = if workload.timed == Timed::Runs { "time" } else { "warm" };
    column.heading.replace("{warm}", warm).replace("{baseline}", &workload.baseline)
}

impl Column {
    const fn new(heading: &'static str, figure: fn(&Seen<'_>) -> Option<String>) -> Self {
        Self { heading, figure, beside: |_, _| None, only_page: false }
    }

    const fn beside(self, beside: fn(&Seen<'_>, Medium) -> Option<String>) -> Self {
        Self { beside, ..self }
    }

    pub(crate) fn is_verdict(&self) -> bool {
        self.heading == VERDICT
    }

    /// Returns the arm's cell as plain text; `None` if the arm has no such value.
    pub(crate) fn text(&self, seen: &Seen<'_>, medium: Medium) -> Option<String> {
        let figure = (self.figure)(seen)?;
        Some(match (self.beside)(seen, medium) {
            Some(ratio) => format!("{figure} ({ratio})"),
            None => figure,
        })
    }
}

impl Medium {
    /// Formats a ratio that follows a value. Only the page includes the ratio's interval.
    fn ratio(self, ratio: Option<Ratio>) -> Option<String> {
        let ratio = ratio?;
        Some(if self == Self::Page { format::ratio(&ratio) } else { format!("{:.2}", ratio.median) })
    }
}

/// The columns of a proof in `samples.csv`: its point, its position in the run, and its measurements. The names of the last two groups are
/// also field names in `result.json`.
const POINT: [&str; 4] = ["workload", "log_rows", "threads", "arm"];
const PLACE: [&str; 3] = ["process", "round", "order"];
const SAMPLES: [&str; 8] =
    ["wall_ns", "user_ns", "sys_ns", "minflt", "tlb_shootdowns", "rss_bytes", "peak_rss_bytes", "verified"];

/// Returns the names of these columns.
pub(crate) fn sample_names() -> impl Iterator<Item = &'static str> {
    POINT.into_iter().chain(PLACE).chain(SAMPLES)
}

/// Returns the cells of a proof as text. The first argument is its point: workload, size and number of threads.
pub(crate) fn sample_cells(
    (workload, log_rows, threads): (&str, u32, usize),
    arm: &str,
    proof: &Proof,
) -> impl Iterator<Item = String> {
    let fields = serde_json::to_value(proof).unwrap_or_default();
    let cell = move |name| match &fields[name] {
        Value::Null => String::new(),
        value => value.to_string(),
    };
    let point = [workload.into(), log_rows.to_string(), threads.to_string(), arm.into()];
    point.into_iter().chain(PLACE.into_iter().chain(SAMPLES).map(cell))
}

/// The file `samples.csv`, with one row per proof. A row is written as soon as its proof is measured, so a later failure loses no rows.
pub(crate) struct SampleLog {
    run: String,
    writer: csv::Writer<File>,
}

impl SampleLog {
    /// Creates `samples.csv` in the folder of the run called `run`.
    pub(crate) fn create(folder: &Path, run: String) -> anyhow::Result<Self> {
        let path = folder.join("samples.csv");
        let mut writer = csv::Writer::from_path(&path).with_context(|| format!("cannot write {}", path.display()))?;
        writer.write_record(["run"].into_iter().chain(sample_names())).context("cannot write a sample")?;
        Ok(Self { run, writer })
    }

    /// Adds a row and flushes it to the file.
    pub(crate) fn append(&mut self, point: (&str, u32, usize), arm: &str, proof: &Proof) -> anyhow::Result<()> {
        let row = [self.run.clone()].into_iter().chain(sample_cells(point, arm, proof));
        self.writer.write_record(row).context("cannot write a sample")?;
        self.writer.flush().context("cannot write a sample")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/benchmarking.md must explain every column heading.
    #[test]
    fn benchmarking_md_explains_every_column() {
        let page = include_str!("../../../docs/benchmarking.md");
        let (_, table) = page.split_once("| column | meaning |\n").expect("the table of columns");
        let (table, _) = table.split_once("\n\n").expect("its end");
        let cells = table.lines().filter_map(|row| row.trim_start_matches("| ").split(" | ").next());
        let explained: Vec<_> =
            cells.flat_map(|cell| cell.split(", ")).filter_map(|name| name.split(" (").next()).collect();
        for column in COLUMNS {
            let heading = column.heading.replace("{baseline}", "glibc").replace("{warm}", "warm");
            let name = heading.split(" (").next().unwrap_or_default();
            assert!(explained.contains(&name), "{name} is not in {explained:?}");
        }
    }
}
