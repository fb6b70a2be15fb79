//! The text between two markers.

use super::ablation;
use super::kept::Kept;
use super::picture::{self, PICTURE};
use super::row::Row;
use crate::report::{facts, text};
use crate::results::format;
use crate::results::record::{Run, WorkloadResult};
use crate::results::summary::Summary;
use anyhow::{Context, bail};
use std::collections::{BTreeMap, BTreeSet};
use zk_alloc::tuning::CONSTANTS;

/// A block of a page.
pub(super) struct Block {
    pub(super) text: String,
    pub(super) picture: Option<String>,
}

/// The block that `what` requests. If its run is not saved yet, the block shows the command that would fill it.
pub(super) fn block(what: &str, kept: &Kept) -> anyhow::Result<Block> {
    if what == "constants" {
        return Ok(Block { text: constants(), picture: None });
    }
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
        ("rows", ..) => {
            let text = format!("{}\n{}", summary(&rows(&sources, &found)?), provenance_in_brief(&found));
            Ok(Block { text, picture: None })
        }
        ("summary", ..) => {
            let rows = rows(&sources, &found)?;
            let picture =
                format!("![Time of a warm proof against peak memory, every prover under every allocator]({PICTURE})");
            let text = format!("{}\n{picture}\n\n{}", summary(&rows), provenance_in_brief(&found));
            Ok(Block { text, picture: Some(picture::picture(&rows)) })
        }
        ("ablation", ..) => {
            let text = format!("{}\n{}", ablation::tables(&found), provenance(&found));
            Ok(Block { text, picture: None })
        }
        _ => {
            bail!(
                "{what:?} is none of: constants, tables RUN, rows RUN/WORKLOAD ..., summary RUN/WORKLOAD ..., ablation RUN ..."
            )
        }
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

fn rows<'r>(sources: &[Source<'_>], runs: &[&'r Run]) -> anyhow::Result<Vec<Row<'r>>> {
    sources.iter().zip(runs).map(|(source, run)| Row::of(run, source.of(run)?)).collect()
}

/// The tables of a run, without the run's own heading.
fn tables(run: &Run) -> String {
    let text = text::markdown(run);
    let body = text.split_once("\n\n").map_or(text.as_str(), |(_, body)| body);
    format!("{body}\n{}\n", facts::on(run))
}

/// A table with a row for each workload: time and peak memory under glibc, under the fastest peer, and under zk-alloc.
fn summary(rows: &[Row<'_>]) -> String {
    let mut text =
        "| warm proof: time, peak RSS | glibc | fastest peer | zk-alloc | ratio to glibc [95%] | page faults |\n\
                    |---|--:|--:|--:|--:|--:|\n"
            .to_owned();
    for row in rows {
        let both = |summary: &Summary| {
            let shown = |value: Option<u64>, shown: fn(u64) -> String| value.map_or("-".into(), shown);
            let (time, peak) =
                (shown(summary.warm_wall_ns, format::time), shown(summary.peak_rss_bytes, format::bytes));
            format!("{time}, {peak}")
        };
        let peer = row.peer.map_or("-".into(), |(label, summary)| format!("{label}: {}", both(summary)));
        let faults = [row.before, row.ours].map(|summary| summary.warm_minflt.map_or("-".into(), format::count));
        let ratio = row.ours.wall_ratio.as_ref().map_or("-".into(), format::ratio);
        let verdict = row.ours.verdict.map_or("", format::verdict);
        let (name, before, ours, faults) = (row.name(), both(row.before), both(row.ours), faults.join(" → "));
        text += &format!("| {name} | {before} | {peer} | **{ours}** | {ratio} {verdict} | {faults} |\n");
    }
    text
}

/// The commands of many runs: those with the same allocators, machine, commit and day in one sentence.
fn provenance_in_brief(runs: &[&Run]) -> String {
    let mut groups = BTreeMap::<(String, String), BTreeSet<String>>::new();
    for run in runs {
        let command = facts::command(run);
        let words: Vec<_> = command.split(' ').skip(1).collect();
        let at = words.iter().position(|word| *word == "--allocators").unwrap_or(words.len());
        let allocators = words[at..].iter().take(2).copied().collect::<Vec<_>>().join(" ");
        let others = words[..at].iter().chain(words.iter().skip(at + 2)).copied().collect::<Vec<_>>().join(" ");
        groups.entry((facts::on(run) + "\n", allocators)).or_default().insert(format!("`{others}`"));
    }
    let lines = groups.iter().map(|((on, allocators), commands)| {
        let commands = commands.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!("`cargo prove-bench PROVER {allocators}` with {commands}: {on}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The constants of the allocator that this bench was built with.
fn constants() -> String {
    let mut text = "| constant | value | effect, and reason |\n|---|--:|---|\n".to_owned();
    for constant in CONSTANTS {
        let value = match constant.unit {
            "bytes" => format::binary_bytes(constant.value),
            "0 or 1" => constant.value.to_string(),
            unit if unit.starts_with("bytes ") => format!("{} {}", format::binary_bytes(constant.value), &unit[6..]),
            unit if unit.starts_with("of ") => format!("1/{} {unit}", constant.value),
            unit => format!("{} {unit}", constant.value),
        };
        text += &format!("| `{}` | {value} | {} |\n", constant.name, constant.reason);
    }
    text
}

/// The commands, machines and commits of these runs, each once.
fn provenance(runs: &[&Run]) -> String {
    let distinct: BTreeMap<_, _> = runs.iter().map(|run| (&run.run, *run)).collect();
    let lines = distinct.values().map(|run| format!("`{}`: {}", facts::command(run), facts::on(run) + "\n"));
    lines.collect::<Vec<_>>().join("\n")
}
