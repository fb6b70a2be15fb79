//! The columns of every table: heading, content of the cells, and the tables that show them; and `samples.csv`.
//!
//! To add a measured column, add a field to [`Sample`] and a row to [`COLUMNS`] or to [`SAMPLES`].

use crate::results::record::{ArmResult, Proof, Summary, Timed, WorkloadResult};
use crate::results::stats::Ratio;
use crate::results::{format, view};
use crate::sample::Sample;
use anyhow::Context;
use std::fs::File;
use std::path::Path;

/// One column.
pub(crate) struct Column {
    /// `{baseline}` stands for the baseline arm, `{warm}` for the time of the samples that decide the verdict.
    heading: &'static str,
    pub(crate) cell: Cell,
    /// A ratio in brackets after the figure.
    beside: Option<Cell>,
    /// Whether it is in the report's page alone.
    only_page: bool,
}

/// The figure that an arm shows in a column.
pub(crate) enum Cell {
    Time(fn(&Seen<'_>) -> Option<u64>),
    Bytes(fn(&Seen<'_>) -> Option<u64>),
    /// Shown in gigabyte seconds.
    ByteSeconds(fn(&Seen<'_>) -> Option<u64>),
    Count(fn(&Seen<'_>) -> Option<u64>),
    Part(fn(&Seen<'_>) -> Option<f64>),
    /// A ratio with its interval.
    Ratio(fn(&Seen<'_>) -> Option<Ratio>),
    Verdict,
}

/// The kind of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// On the terminal and in Markdown.
    Text,
    Page,
}

/// An arm and its figures, as a table reads it.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) workload: &'a WorkloadResult,
    pub(crate) arm: &'a ArmResult,
    pub(crate) summary: &'a Summary,
}

/// All columns, in the order of every table. The arm's name precedes them.
const COLUMNS: &[Column] = &[
    Column::new("cold (ratio)", Cell::Time(|seen| seen.summary.cold_wall_ns))
        .beside(Cell::Ratio(|seen| seen.summary.cold_ratio)),
    Column::new(
        "first proof alone (ratio)",
        Cell::Time(|seen| view::alone_median(seen.arm, |proof| Some(proof.sample.wall_ns))),
    )
    .beside(Cell::Ratio(|seen| view::alone_ratio(seen.workload, seen.arm))),
    Column::new("{warm}", Cell::Time(|seen| seen.summary.warm_wall_ns)),
    Column::new("ratio to {baseline} [95%]", Cell::Ratio(|seen| seen.summary.wall_ratio)),
    Column::new("p95", Cell::Time(|seen| view::latency_ns(seen.workload, seen.arm, 0.95))),
    Column::new("worst", Cell::Time(|seen| view::latency_ns(seen.workload, seen.arm, 1.0))),
    Column::new("verdict", Cell::Verdict),
    Column::new("CPU ratio [95%]", Cell::Ratio(|seen| seen.summary.cpu_ratio)),
    Column::new(
        "kernel time",
        Cell::Time(|seen| seen.summary.warm_sys_ns.filter(|_| seen.workload.timed != Timed::Proofs)),
    ),
    Column::new("minor faults", Cell::Count(|seen| seen.summary.warm_minflt)),
    Column::new("TLB shootdowns", Cell::Count(|seen| view::warm_median(seen.arm, |sample| sample.tlb_shootdowns))),
    Column::new("system calls", Cell::Count(|seen| seen.summary.warm_system_calls)).only_page(),
    Column::new("peak RSS (ratio)", Cell::Bytes(|seen| seen.summary.peak_rss_bytes))
        .beside(Cell::Part(|seen| seen.summary.peak_rss_ratio)),
    Column::new("peak by best peer's", Cell::Part(|seen| view::peak_to_best_peer(seen.workload, seen.arm))).only_page(),
    Column::new(
        "peak / live",
        Cell::Part(|seen| {
            let live = seen.workload.live_peak_bytes.filter(|live| *live > 0)?;
            Some(seen.summary.peak_rss_bytes? as f64 / live as f64)
        }),
    )
    .only_page(),
    Column::new(
        "resting RSS",
        Cell::Bytes(|seen| seen.summary.resting_rss_bytes.filter(|_| seen.workload.timed.rests())),
    ),
    Column::new("RSS after 1 s", Cell::Bytes(|seen| view::alone_median(seen.arm, |proof| proof.rss_after_1_s_bytes))),
    Column::new("RSS after 10 s", Cell::Bytes(|seen| view::alone_median(seen.arm, |proof| proof.rss_after_10_s_bytes))),
    Column::new("GB s", Cell::ByteSeconds(|seen| seen.summary.warm_byte_seconds)).beside(Cell::Part(|seen| {
        view::byte_seconds_ratio(seen.workload, seen.arm).filter(|_| seen.workload.timed == Timed::Slots)
    })),
];

/// The columns in which `workload` has a figure. An arm that failed has no figures, so it keeps no column.
pub(crate) fn filled(workload: &WorkloadResult, medium: Medium) -> impl Iterator<Item = &'static Column> {
    let seen = |arm| Some(Seen { workload, arm, summary: view::figures(arm)? });
    let seen: Vec<_> = workload.arms.iter().filter_map(seen).collect();
    COLUMNS.iter().filter(move |column| {
        // The verdict column always has text, because it also shows the outcomes of arms without figures.
        let is_filled = || seen.iter().any(|seen| column.text(seen, medium).is_some());
        (medium == Medium::Page || !column.only_page) && (matches!(column.cell, Cell::Verdict) || is_filled())
    })
}

/// The heading of a column for `workload`.
pub(crate) fn heading(column: &Column, workload: &WorkloadResult) -> String {
    let warm = if workload.timed == Timed::Runs { "time" } else { "warm" };
    column.heading.replace("{warm}", warm).replace("{baseline}", &workload.baseline)
}

impl Column {
    const fn new(heading: &'static str, cell: Cell) -> Self {
        Self { heading, cell, beside: None, only_page: false }
    }

    const fn beside(self, ratio: Cell) -> Self {
        Self { beside: Some(ratio), ..self }
    }

    const fn only_page(self) -> Self {
        Self { only_page: true, ..self }
    }

    /// The arm's cell as plain text; `None` if the arm has no such figure. Only the page has the interval of a ratio
    /// next to a figure.
    pub(crate) fn text(&self, seen: &Seen<'_>, medium: Medium) -> Option<String> {
        let figure = self.cell.text(seen)?;
        let beside = match (&self.beside, medium) {
            (Some(Cell::Ratio(ratio)), Medium::Text) => ratio(seen).map(|ratio| format!("{:.2}", ratio.median)),
            (beside, _) => beside.as_ref().and_then(|cell| cell.text(seen)),
        };
        Some(beside.map_or(figure.clone(), |ratio| format!("{figure} ({ratio})")))
    }
}

impl Cell {
    fn text(&self, seen: &Seen<'_>) -> Option<String> {
        match self {
            Self::Time(figure) => figure(seen).map(format::time),
            Self::Bytes(figure) => figure(seen).map(format::bytes),
            Self::ByteSeconds(figure) => figure(seen).map(format::gigabyte_seconds),
            Self::Count(figure) => figure(seen).map(format::count),
            Self::Part(figure) => figure(seen).map(|part| format!("{part:.2}")),
            Self::Ratio(figure) => figure(seen).map(|ratio| format::ratio(&ratio)),
            Self::Verdict => Some(view::verdict(seen.workload, seen.arm, seen.summary)),
        }
    }
}

/// A column of `samples.csv`: its name, with its unit, and its cell.
type SampleColumn = (&'static str, fn(&Sample) -> String);

/// The figures of a proof in `samples.csv`.
const SAMPLES: [SampleColumn; 8] = [
    ("wall_ns", |sample| sample.wall_ns.to_string()),
    ("user_ns", |sample| sample.user_ns.to_string()),
    ("sys_ns", |sample| sample.sys_ns.to_string()),
    ("minflt", |sample| sample.minflt.to_string()),
    ("tlb_shootdowns", |sample| sample.tlb_shootdowns.map_or_else(String::new, |count| count.to_string())),
    ("rss_bytes", |sample| sample.rss_bytes.to_string()),
    ("peak_rss_bytes", |sample| sample.peak_rss_bytes.to_string()),
    ("verified", |sample| sample.verified.to_string()),
];

/// A proof's place in the run.
pub(crate) const PLACE: [&str; 7] = ["workload", "log_rows", "threads", "arm", "process", "round", "order"];

/// The cells of [`PLACE`].
pub(crate) fn place(workload: &str, log_rows: u32, threads: usize, arm: &str, proof: &Proof) -> [String; 7] {
    let [process, round, order] = [proof.process, proof.round, proof.order].map(|number| number.to_string());
    [workload.into(), log_rows.to_string(), threads.to_string(), arm.into(), process, round, order]
}

/// The names of the figures of a proof.
pub(crate) fn of_samples() -> impl Iterator<Item = &'static str> {
    SAMPLES.iter().map(|(name, _)| *name)
}

/// The figures of one proof, as text.
pub(crate) fn of_proof(proof: &Proof) -> impl Iterator<Item = String> {
    SAMPLES.iter().map(|(_, value)| value(&proof.sample))
}

/// `samples.csv`: one row per proof. Each row is written as soon as it is measured, so a later failure loses none.
pub(crate) struct SampleLog {
    run: String,
    writer: csv::Writer<File>,
}

impl SampleLog {
    /// Creates `samples.csv` in the folder of the run called `run`.
    pub(crate) fn create(folder: &Path, run: String) -> anyhow::Result<Self> {
        let path = folder.join("samples.csv");
        let mut writer = csv::Writer::from_path(&path).with_context(|| format!("cannot write {}", path.display()))?;
        writer.write_record(["run"].into_iter().chain(PLACE).chain(of_samples())).context("cannot write a sample")?;
        Ok(Self { run, writer })
    }

    /// Adds a row and flushes it to the kernel.
    pub(crate) fn append(
        &mut self,
        workload: &str,
        log_rows: u32,
        threads: usize,
        arm: &str,
        proof: &Proof,
    ) -> anyhow::Result<()> {
        let place = place(workload, log_rows, threads, arm, proof);
        let row = [self.run.clone()].into_iter().chain(place).chain(of_proof(proof));
        self.writer.write_record(row).context("cannot write a sample")?;
        self.writer.flush().context("cannot write a sample")
    }
}
