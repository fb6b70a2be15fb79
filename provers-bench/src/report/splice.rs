//! Fills in the documentation's tables from saved runs.
//!
//! In a Markdown file, the text between two markers is a block that is generated from saved runs. The first marker is one of these:
//!
//! - `<!-- prove-bench: tables plonky3 -->`: all tables of the run docs/data/runs/plonky3.json
//! - `<!-- prove-bench: rows plonky3/poseidon2 jolt/dory -->`: a table with a row for each workload
//! - `<!-- prove-bench: kinds a/poseidon2 b/poseidon2 a/whir b/whir -->`: a table with a row for each workload, which compares runs on two
//!   kinds of host
//! - `<!-- prove-bench: picture plonky3/poseidon2 jolt/dory -->`: the picture docs/results.svg of these workloads
//! - `<!-- prove-bench: ablation a b -->`: tables of the effect of each mechanism or constant on every workload of these runs
//! - `<!-- prove-bench: constants -->`: the constants of the allocator
//!
//! `<!-- /prove-bench -->` ends each block.
//!
//! `report RUN --splice NAME` saves a run under `docs/data/runs` and refills the blocks. A test fails if a block is out of date.

use super::{chart, text};
use crate::arms::{OURS, tuned};
use crate::results::{Run, Summary, WorkloadResult, format, view};
use anyhow::{Context, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use zk_alloc::tuning::CONSTANTS;

const BEGIN: &str = "<!-- prove-bench: ";
const END: &str = "<!-- /prove-bench -->";
/// Paths, within the repository, of the folder of saved runs and of the picture.
const RUNS: &str = "docs/data/runs";
const PICTURE: &str = "docs/results.svg";

/// The saved runs, by name. They are kept in the repository, and the documentation is generated from them.
type Saved = BTreeMap<String, Run>;

/// Saves `run` in `repository`, under the name by which the documentation refers to it.
pub(super) fn save(repository: &Path, name: &str, mut run: Run) -> anyhow::Result<()> {
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        bail!("{name:?} is not a name for a run: use letters, digits and dashes");
    }
    // No table uses these fields, so they are not saved.
    for arm in run.workloads.iter_mut().flat_map(|workload| &mut workload.arms) {
        arm.rss_over_time.clear();
        arm.stderr.clear();
    }
    let folder = repository.join(RUNS);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(format!("{name}.json"));
    fs::write(&path, serde_json::to_string(&run)? + "\n").with_context(|| format!("cannot write {}", path.display()))
}

fn saved(repository: &Path) -> anyhow::Result<Saved> {
    let paths = files_in(&repository.join(RUNS), "json")?;
    let named = paths.into_iter().map(|path| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, super::read_file(&path)?))
    });
    named.collect()
}

/// Returns every file of the documentation in `repository` that is out of date, with the text that the saved runs yield.
pub(super) fn differing(repository: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let saved = saved(repository)?;
    let mut pages = files_in(&repository.join("docs"), "md")?;
    pages.push(repository.join("README.md"));
    let (mut files, mut blocks) = (Vec::new(), 0);
    for path in pages {
        let old = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        blocks += old.matches(BEGIN).count();
        let (text, picture) = filled(&old, &saved).with_context(|| path.display().to_string())?;
        let is_new = |picture: &String| fs::read_to_string(repository.join(PICTURE)).unwrap_or_default() != *picture;
        files.extend(picture.filter(is_new).map(|picture| (repository.join(PICTURE), picture)));
        if text != old {
            files.push((path, text));
        }
    }
    if blocks == 0 {
        bail!(
            "no page in {} has a line that begins with {BEGIN:?}: start this in the repository's root",
            repository.display()
        );
    }
    Ok(files)
}

/// Returns the files with this extension in a folder and its subfolders.
fn files_in(folder: &Path, extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(files_in(&path, extension)?);
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns `text` with newly generated blocks, and the picture if a block requests one.
fn filled(text: &str, saved: &Saved) -> anyhow::Result<(String, Option<String>)> {
    let (mut filled, mut picture) = (String::new(), None);
    let mut lines = text.split_inclusive('\n');
    while let Some(line) = lines.next() {
        filled += line;
        let Some(what) = line.trim_end().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        if !lines.by_ref().any(|line| line.trim_end() == END) {
            bail!("{line:?} has no {END:?} after it");
        }
        let (block, drawn) = block(what, saved)?;
        filled += &format!("\n{}\n\n{END}\n", block.trim_end());
        picture = drawn.or(picture);
    }
    Ok((filled, picture))
}

/// Returns the content of the block that `what` requests, and the picture if it requests one. If the block's run is not saved yet, the
/// block shows the command that would fill it.
fn block(what: &str, saved: &Saved) -> anyhow::Result<(String, Option<String>)> {
    if what == "constants" {
        return Ok((constants(), None));
    }
    let (kind, sources) = what.split_once(' ').with_context(|| format!("{what:?} names no run"))?;
    // A source is RUN or RUN/WORKLOAD.
    let sources: Vec<_> = sources.split(' ').map(|source| source.split_once('/').unwrap_or((source, ""))).collect();
    if let Some((run, _)) = sources.iter().find(|(run, _)| !saved.contains_key(*run)) {
        let command = format!("`cargo prove-bench report RUN --splice {run}`");
        return Ok((format!("*Not measured yet: {command} fills this in.*\n"), None));
    }
    let runs: Vec<_> = sources.iter().map(|(run, _)| &saved[*run]).collect();
    let rows = || sources.iter().map(|(run, name)| Row::of(&saved[*run], name)).collect::<anyhow::Result<Vec<_>>>();
    let text = match (kind, &sources[..]) {
        ("tables", [(run, "")]) => {
            // Omits the run's own heading.
            let text = text::markdown(&saved[*run]);
            let body = text.split_once("\n\n").map_or(text.as_str(), |(_, body)| body);
            format!("{body}\n{}", text::on(&saved[*run]))
        }
        ("rows", _) => format!("{}\n{}", summary(&rows()?), provenance_in_brief(&runs)),
        ("kinds", _) => kinds(&runs, &rows()?)?,
        ("picture", _) => {
            let rows = rows()?;
            let named: Vec<_> = rows.iter().map(|row| (row.name.to_owned(), row.workload)).collect();
            let drawn = chart::time_and_memory(&named).map(|chart| chart.picture());
            return Ok(("![Time of a warm proof against peak memory](results.svg)".into(), drawn));
        }
        ("ablation", _) => {
            // Lists the command, machine and commit of each run once.
            let distinct: BTreeMap<_, _> = runs.iter().map(|run| (&run.run, *run)).collect();
            let lines = distinct.values().map(|run| format!("`{}`: {}\n", text::command(run), text::on(run)));
            format!("{}\n{}", ablation(&runs), lines.collect::<Vec<_>>().join("\n"))
        }
        _ => bail!("{what:?} is none of: constants, tables RUN, rows|kinds|picture RUN/WORKLOAD ..., ablation RUN ..."),
    };
    Ok((text, None))
}

/// A table row: a workload, with the summaries of the baseline, of our arm and of the fastest peer.
struct Row<'a> {
    /// The prover's name if the workload is its only one, otherwise the workload's name.
    name: &'a str,
    workload: &'a WorkloadResult,
    before: &'a Summary,
    ours: &'a Summary,
    /// Label and summary of the peer with the fastest warm proofs; `None` if the baseline is the only other arm.
    peer: Option<(&'a str, &'a Summary)>,
}

impl<'a> Row<'a> {
    fn of(run: &'a Run, name: &str) -> anyhow::Result<Self> {
        let workload = run.workloads.iter().find(|workload| workload.workload == name);
        let workload = workload.with_context(|| format!("the run {} has no workload {name:?}", run.run))?;
        let summary = |label: &str| {
            let arm = workload.arms.iter().find(|arm| arm.label == label);
            arm.and_then(view::figures).with_context(|| format!("{name} has no figures of {label}"))
        };
        let peers = workload.arms.iter().filter(|arm| !view::is_ours(arm) && !view::is_baseline(workload, arm));
        let figures = peers.filter_map(|arm| Some((arm.label.as_str(), view::figures(arm)?)));
        let peer = figures.min_by_key(|(_, figures)| figures.warm_wall_ns.unwrap_or(u64::MAX));
        // If the command line contains `--workloads`, the prover may have other workloads.
        let is_only = run.workloads.len() == 1 && !run.command_line.iter().any(|word| word == "--workloads");
        let name = if is_only { &run.prover } else { &workload.workload };
        Ok(Self { name, workload, before: summary(&workload.baseline)?, ours: summary(OURS)?, peer })
    }
}

/// Formats the ratio of an arm's time to the baseline's, followed by the verdict.
fn verdict(of: &Summary) -> String {
    let ratio = of.wall_ratio.as_ref().map_or("-".into(), format::ratio);
    format!("{ratio} {}", of.verdict.map_or("", format::verdict))
}

/// Returns a table with a row for each workload: time and peak memory under glibc, under the fastest peer, and under zk-alloc.
fn summary(rows: &[Row<'_>]) -> String {
    let are_commands = rows.iter().all(|row| row.workload.timed.is_of_command());
    let what = if are_commands { "run" } else { "warm proof" };
    let mut text = format!(
        "| {what}: time, peak RSS | glibc | fastest peer | zk-alloc | time vs glibc (95% CI) | page faults |\n\
        |---|--:|--:|--:|--:|--:|\n"
    );
    let shown = |value: Option<u64>, shown: fn(u64) -> String| value.map_or("-".into(), shown);
    let both =
        |of: &Summary| format!("{}, {}", shown(of.warm_wall_ns, format::time), shown(of.peak_rss_bytes, format::bytes));
    for Row { name, workload, before, ours, peer } in rows {
        let peer = peer.map_or("-".into(), |(label, summary)| format!("{label}: {}", both(summary)));
        let faults = [before, ours].map(|of| shown(of.warm_minflt, format::count)).join(" → ");
        let verdict = verdict(ours);
        let size = if are_commands { String::new() } else { format!(" 2^{}", workload.log_rows) };
        let (before, ours) = (both(before), both(ours));
        text += &format!("| {name}{size} | {before} | {peer} | **{ours}** | {verdict} | {faults} |\n");
    }
    text
}

/// Returns a table with a row for each workload. It shows the results of zk-alloc and of the fastest peer on two kinds of host, as ratios
/// to glibc's. `rows` has two rows in succession for each workload: first kind of host, then second.
fn kinds(runs: &[&Run], rows: &[Row<'_>]) -> anyhow::Result<String> {
    let (&[first, second, ..], []) = (runs, rows.as_chunks::<2>().1) else { bail!("each workload needs two runs") };
    let kind = |run: &Run| run.machine.kind_of_host().split(" (").next().unwrap_or_default().to_owned();
    let mut text = format!(
        "| warm proof: time, peak RSS, as ratios to glibc's | {}: zk-alloc | fastest peer | {}: zk-alloc | fastest peer |\n\
        |---|--:|--:|--:|--:|\n",
        kind(first),
        kind(second)
    );
    let peak = |of: &Summary| of.peak_rss_ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
    for on in rows.as_chunks::<2>().0 {
        if on[0].name != on[1].name {
            bail!("{} and {} are not one workload on two kinds of host", on[0].name, on[1].name);
        }
        text += &format!("| {} 2^{} |", on[0].name, on[0].workload.log_rows);
        for Row { ours, peer, .. } in on {
            let peer = peer.map_or("-".into(), |(label, peer)| {
                let time = peer.wall_ratio.map_or("-".into(), |ratio| format!("{:.2}", ratio.median));
                format!("{label}: {time}, {}", peak(peer))
            });
            text += &format!(" **{}, {}** | {peer} |", verdict(ours), peak(ours));
        }
        text += "\n";
    }
    Ok(text)
}

/// Lists the commands of `runs`. Runs with the same allocators, machine, commit and day share one line.
fn provenance_in_brief(runs: &[&Run]) -> String {
    let mut groups = BTreeMap::<(String, String), BTreeSet<String>>::new();
    for run in runs {
        let command = text::command(run);
        let words: Vec<_> = command.split(' ').skip(1).collect();
        let at = words.iter().position(|word| *word == "--allocators").unwrap_or(words.len());
        let allocators = words[at..].iter().take(2).copied().collect::<Vec<_>>().join(" ");
        let others = words[..at].iter().chain(words.iter().skip(at + 2)).copied().collect::<Vec<_>>().join(" ");
        groups.entry((text::on(run), allocators)).or_default().insert(format!("`{others}`"));
    }
    let lines = groups.iter().map(|((on, allocators), commands)| {
        let commands = commands.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!("`cargo prove-bench PROVER {allocators}` with {commands}: {on}\n")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns a table of the constants of the allocator that this bench was built with.
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

/// A table of the ablation: its heading, and the function that formats an arm's cell. The function's arguments are the summary of the arm
/// and that of the baseline, which is `None` if the arm is the baseline.
type Figure = (&'static str, fn(&Summary, Option<&Summary>) -> Option<String>);

const FIGURES: [Figure; 5] = [
    ("CPU time of a warm proof, as a ratio to the first row's (95% CI)", |arm, baseline| match baseline {
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

/// Returns the tables of an ablation, which switches off single mechanisms or changes single constants: one table per measurement, with a
/// row for each arm and a column for each workload.
fn ablation(runs: &[&Run]) -> String {
    let workloads = || runs.iter().flat_map(|run| run.workloads.iter().map(|workload| (*run, workload)));
    let mut seen = BTreeSet::new();
    let labels = workloads().flat_map(|(_, workload)| &workload.arms).map(|arm| arm.label.as_str());
    let labels: Vec<_> = labels.filter(|label| seen.insert(*label)).collect();
    let names: String = workloads().map(|(run, workload)| format!(" {} |", view::name(run, workload))).collect();
    let tables = FIGURES.map(|(heading, figure)| {
        let mut table = format!("{heading}:\n\n| |{names}\n|---|{}\n", "--:|".repeat(workloads().count()));
        for label in &labels {
            let cell = |workload: &WorkloadResult| {
                let arm = workload.arms.iter().find(|arm| arm.label == *label)?;
                let baseline = view::baseline(workload).filter(|_| !view::is_baseline(workload, arm));
                figure(view::figures(arm)?, baseline.map(|(_, figures)| figures))
            };
            let cells = workloads().map(|(_, workload)| format!(" {} |", cell(workload).unwrap_or("-".into())));
            // The label of an arm with changed constants lists these constants; it is shown without the prefix, as code.
            let constants =
                label.strip_prefix(tuned::PREFIX).map(|constants| format!("`{}`", constants.replace('+', " ")));
            let name = constants.unwrap_or_else(|| (*label).to_owned());
            table += &format!("| {name} |{}\n", cells.collect::<String>());
        }
        table
    });
    tables.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::saved;

    /// The text around a block must be preserved, and filling the blocks again must change nothing. A missing end marker must be an error,
    /// because the rest of the page would be lost.
    #[test]
    fn only_text_between_the_markers_changes() {
        let saved = Saved::from([("plonky3".into(), saved("together"))]);
        let page = format!(
            "before\n{BEGIN}tables plonky3 -->\na typed figure\n{END}\nbetween\n{BEGIN}tables none-yet -->\n{END}\nafter\n"
        );
        let (once, _) = filled(&page, &saved).unwrap();
        assert_eq!(once, filled(&once, &saved).unwrap().0);
        let parts = [
            "before\n",
            &format!("{END}\nbetween\n"),
            "| zk-alloc",
            "`prove-bench plonky3 --workloads",
            "--splice none-yet",
        ];
        assert!(parts.iter().all(|part| once.contains(part)) && once.ends_with("\nafter\n"), "{once}");
        assert!(!once.contains("a typed figure"), "{once}");
        let error = filled(&format!("{BEGIN}tables plonky3 -->\nthe rest of the page\n"), &saved).unwrap_err();
        assert!(error.to_string().contains("has no"), "{error}");
    }

    /// The blocks in the documentation must match the saved runs, without numbers typed by hand or left over from older runs.
    #[test]
    fn the_documentation_says_what_its_runs_say() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let paths: Vec<_> = differing(repository).unwrap().into_iter().map(|(path, _)| path).collect();
        assert!(paths.is_empty(), "`cargo prove-bench report --splice` fills {paths:?}");
    }
}
