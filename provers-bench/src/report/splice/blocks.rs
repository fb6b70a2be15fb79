//! The text between two markers.

use super::kept::Kept;
use super::picture::{self, PICTURE};
use super::row::Row;
use crate::report::{facts, text};
use crate::results::format;
use crate::results::record::{Run, WorkloadResult};
use crate::results::summary::Summary;
use anyhow::{Context, bail};
use std::collections::BTreeMap;

/// Width of the terminal that pages show.
const TERMINAL_COLUMNS: u16 = 80;

/// A block of a page.
pub(super) struct Block {
    pub(super) text: String,
    pub(super) picture: Option<String>,
}

/// The block that `what` requests. If its run is not saved yet, the block shows the command that would fill it.
pub(super) fn block(what: &str, kept: &Kept) -> anyhow::Result<Block> {
    let (kind, sources) = what.split_once(' ').with_context(|| format!("{what:?} names no run"))?;
    let sources: Vec<Source> = sources.split(' ').map(Source::parse).collect();
    let mut found = Vec::new();
    for source in &sources {
        match kept.run(source.run) {
            Some(run) => found.push(run),
            None => return Ok(Block { text: not_yet(source.run), picture: None }),
        }
    }
    match (kind, &sources[..], &found[..]) {
        ("tables", [Source { workload: None, .. }], [run]) => Ok(Block { text: tables(run), picture: None }),
        ("terminal", [source @ Source { workload: Some(_), .. }], [run]) => {
            let text = format!(
                "```text\n{}```\n\n{}",
                text::on_a_terminal(run, source.of(run)?, TERMINAL_COLUMNS),
                provenance(&found)
            );
            Ok(Block { text, picture: None })
        }
        ("summary", ..) => {
            let rows: Vec<_> = sources
                .iter()
                .zip(&found)
                .map(|(source, run)| Row::of(run, source.of(run)?))
                .collect::<Result<_, _>>()?;
            let picture =
                format!("![Time of a warm proof against peak memory, every prover under every allocator]({PICTURE})");
            let text = format!("{}\n{picture}\n\n{}", summary(&rows), provenance(&found));
            Ok(Block { text, picture: Some(picture::picture(&rows)) })
        }
        _ => bail!("{what:?} is none of: tables RUN, terminal RUN/WORKLOAD, summary RUN/WORKLOAD ..."),
    }
}

fn not_yet(run: &str) -> String {
    format!("*Not measured yet: `cargo prove-bench report RUN --splice {run}` fills this in.*\n")
}

/// A source `RUN` or `RUN/WORKLOAD`.
struct Source<'a> {
    run: &'a str,
    workload: Option<&'a str>,
}

impl<'a> Source<'a> {
    fn parse(text: &'a str) -> Self {
        match text.split_once('/') {
            Some((run, workload)) => Self { run, workload: Some(workload) },
            None => Self { run: text, workload: None },
        }
    }

    fn of<'r>(&self, run: &'r Run) -> anyhow::Result<&'r WorkloadResult> {
        let wanted = self.workload.with_context(|| format!("{}: which workload? {0}/NAME", self.run))?;
        let found = run.workloads.iter().find(|workload| workload.workload == wanted);
        found.with_context(|| format!("the run {} has no workload {wanted}", self.run))
    }
}

/// The tables of a run, without the run's own heading.
fn tables(run: &Run) -> String {
    let text = text::markdown(run);
    let body = text.split_once("\n\n").map_or(text.as_str(), |(_, body)| body);
    format!("{body}\n{}", on(run))
}

/// A table with one row per workload: glibc's figures and ours.
fn summary(rows: &[Row<'_>]) -> String {
    let mut text = "| warm proof | time, glibc | time, zk-alloc | ratio [95%] | page faults | peak RSS |\n|---|--:|--:|--:|--:|--:|\n".to_owned();
    for row in rows {
        let both = |value: fn(&Summary) -> Option<u64>, shown: fn(u64) -> String| {
            [row.before, row.ours].map(|summary| value(summary).map_or("-".into(), shown))
        };
        let [time_before, time] = both(|summary| summary.warm_wall_ns, format::time);
        let faults = both(|summary| summary.warm_minflt, format::count).join(" → ");
        let peak = both(|summary| summary.peak_rss_bytes, format::bytes).join(" → ");
        let ratio = row.ours.wall_ratio.as_ref().map_or("-".into(), format::ratio);
        let verdict = row.ours.verdict.map_or("", format::verdict);
        text += &format!("| {} | {time_before} | {time} | {ratio} {verdict} | {faults} | {peak} |\n", row.name());
    }
    text
}

/// The commands, machines and commits of these runs, each once.
fn provenance(runs: &[&Run]) -> String {
    let distinct: BTreeMap<_, _> = runs.iter().map(|run| (&run.run, *run)).collect();
    let lines = distinct.values().map(|run| format!("`{}`: {}", facts::command(run), on(run)));
    lines.collect::<Vec<_>>().join("\n")
}

/// The machine, commit and date of a run.
fn on(run: &Run) -> String {
    let machine = &run.machine;
    let day = machine.started_at.strftime("%Y-%m-%d");
    let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
    let commit = machine.git_commit.as_deref().unwrap_or("unknown");
    let changes = if machine.git_dirty == Some(true) { " with changes" } else { "" };
    format!("{cpu}, {} cores, commit {commit:.12}{changes}, {day}.\n", machine.cores)
}
