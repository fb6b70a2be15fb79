//! Formats a run as text: for the terminal, and as Markdown for a README or a comment. Besides the measurements, this covers the facts
//! about a run: its machine, build, code and command.

use crate::machine::Machine;
use crate::results::columns::{self, Medium, Seen};
use crate::results::{
    ArmResult, Ended, Forecast, Outcome, Prediction, Ratio, Run, Sweep, Timed, Verdict, WorkloadResult, format, view,
    warm_wall_ratios,
};
use crate::workloads::Concurrent;
use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, ContentArrangement, Table};
use std::iter;

/// The legend below the tables.
pub(super) const LEGEND: &str = "A ratio divides an arm's figure by the baseline's of the same round. Tables have the median of the rounds, with its 95% confidence interval (CI). \
    Faster or slower: the whole interval lies on one side of 1. On a busy machine, trust the ratios: times of different rounds are not comparable. \
    The figures are from one machine on one day. docs/benchmarking.md explains the columns, the method and its limits.";

/// Placeholder for a missing value.
const NONE: &str = "-";
/// Maximum number of characters of an outcome in a cell. The notes below the table contain the full text.
const OUTCOME_CHARS: usize = 48;

/// The medium of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Terminal,
    Markdown,
}

/// Formats a whole run as Markdown.
pub(super) fn markdown(run: &Run) -> String {
    let sections = run.workloads.iter().map(|workload| format!("\n{}", section(run, workload, Style::Markdown)));
    let sections = with_advice(run, &sections.collect::<String>(), Style::Markdown);
    let arms: String = arms(run).iter().map(|(label, what)| format!("- {label}: {}\n", inert(what))).collect();
    format!(
        "## {}\n\n`{}`\n\n{}\n{}{sections}{}\nThe allocator configurations:\n\n{arms}",
        run.prover,
        command(run),
        sentence(run),
        if run.advice.is_some() { "\n" } else { "" },
        curves(run, Style::Markdown)
    )
}

/// Formats one workload: heading, table, and the notes below the table.
pub(crate) fn section(run: &Run, workload: &WorkloadResult, style: Style) -> String {
    let WorkloadResult { workload: name, log_rows, about, timed, .. } = workload;
    let title = if timed.is_of_command() { name.clone() } else { format!("{name}, 2^{log_rows} rows") };
    let details = format!("{}, seed {}", conditions(run, workload), run.seed);
    let notes = notes(run, workload);
    match style {
        Style::Terminal => {
            let notes: String = notes.iter().map(|note| format!("{note}\n")).collect();
            format!("{title}: {about}\n{details}\n{}\n{notes}", table(workload, style))
        }
        Style::Markdown => {
            let notes: String = notes.iter().map(|note| format!("- {}\n", inert(note))).collect();
            format!("### {title}\n\n{}; {details}.\n\n{}\n\n{notes}", inert(about), table(workload, style))
        }
    }
}

/// Returns the notes below a table: the verdict on our arm, the outcomes of failed arms, and other facts about the workload.
pub(super) fn notes(run: &Run, workload: &WorkloadResult) -> Vec<String> {
    let mut notes: Vec<_> = verdict(run, workload).into_iter().collect();
    let is_interrupted = |arm: &ArmResult| matches!(arm.outcome, Outcome::Interrupted);
    let all_interrupted = !workload.arms.is_empty() && workload.arms.iter().all(is_interrupted);
    if all_interrupted {
        notes.extend(format::outcome(&Outcome::Interrupted).map(|text| format!("every arm: {text}")));
    }
    for arm in &workload.arms {
        let outcome = format::outcome(&arm.outcome).filter(|_| !all_interrupted);
        notes.extend(outcome.map(|text| format!("{}: {text}", arm.label)));
        if let (Outcome::Failed { .. }, Some(why)) = (&arm.outcome, &arm.known_to_fail) {
            notes.push(format!("{}: known to fail, so it does not fail the run: {why}", arm.label));
        }
    }
    notes.extend(ended(workload));
    notes.extend(workload.live_peak_bytes.map(|bytes| format!("live peak of the arena: {}", format::bytes(bytes))));
    if run.machine.build.profile != "release" {
        notes.push(format!("built with profile {}, not release: do not compare its times", run.machine.build.profile));
    }
    notes
}

/// States our arm's time as a ratio to the baseline's and to each peer's, in a sentence.
fn verdict(run: &Run, workload: &WorkloadResult) -> Option<String> {
    let (ours, summary) = view::ours(workload)?;
    let against = |arm: &ArmResult| {
        let (ratio, interval) = match view::is_baseline(workload, arm) {
            true => (summary.wall_ratio?, " (95% CI)"),
            // Dividing the two arms' ratios to the baseline would yield no interval, so this compares their samples.
            false => (Ratio::of_processes(&warm_wall_ratios(&ours.samples, &arm.samples), run.seed)?, ""),
        };
        let verdict = match ratio.verdict() {
            Verdict::NoDifferenceShown => "not measurably faster",
            verdict => format::verdict(verdict),
        };
        Some(format!("vs {}{interval} {}, {verdict}", arm.label, format::ratio(&ratio)))
    };
    let (baseline, others): (Vec<_>, Vec<_>) =
        workload.arms.iter().partition(|arm| view::is_baseline(workload, arm) && arm.label != ours.label);
    let peers = others.into_iter().filter(|arm| !view::is_ours(arm) && view::figures(arm).is_some());
    let ratios: Vec<_> = baseline.into_iter().chain(peers).filter_map(against).collect();
    (!ratios.is_empty()).then(|| format!("{}: time {}.", ours.label, ratios.join("; ")))
}

/// Returns a note on why the rounds ended, unless all requested rounds were made or the user interrupted the run.
fn ended(workload: &WorkloadResult) -> Option<String> {
    let intervals = workload.arms.iter().filter_map(|arm| arm.summary.as_ref()?.wall_ratio?.interval);
    let widest = intervals.map(|interval| interval.high - interval.low).reduce(f64::max);
    let width = widest.map_or("there is no interval yet".into(), |widest| {
        format!("the widest interval is {:.1}% of {}'s time", 100.0 * widest, workload.baseline)
    });
    match workload.ended {
        Ended::AllRounds | Ended::Interrupted => None,
        Ended::Precise => Some(format!("Ended because every interval was narrow enough: {width}.")),
        Ended::OutOfTime => Some(format!("Ended because the time limit passed: {width}.")),
        Ended::NoArms => Some("Ended because no arm was left.".into()),
    }
}

/// Returns the label of each arm, and the allocator, version and settings that the arm's process reported.
pub(super) fn arms(run: &Run) -> Vec<(&str, String)> {
    let mut arms: Vec<(&str, String)> = Vec::new();
    for arm in run.workloads.iter().flat_map(|workload| &workload.arms) {
        let Some(identity) = arm.identity.as_ref().filter(|_| arms.iter().all(|(label, _)| *label != arm.label)) else {
            continue;
        };
        let mut what = format!("{} {}", identity.allocator, identity.version.trim()).trim_end().to_owned();
        for (how, settings) in [("with", &identity.settings), ("confirmed", &identity.confirmed)] {
            if !settings.is_empty() {
                what += &format!("; {how} {}", settings.join(" "));
            }
        }
        if !identity.peak_is_per_proof {
            what += "; peak RSS since the process started";
        }
        arms.push((&arm.label, what));
    }
    arms
}

/// Formats the conditions of a run: the thread count, the number of concurrent proofs if more than one, and the completed rounds.
pub(super) fn conditions(run: &Run, workload: &WorkloadResult) -> String {
    let rounds = rounds(workload);
    if workload.timed.is_of_command() {
        return rounds;
    }
    let at_once = match run.concurrent {
        Concurrent { proofs: 1, .. } => String::new(),
        Concurrent { proofs, pool_each: false } => format!("{proofs} proofs at once on one pool, "),
        Concurrent { proofs, pool_each: true } => format!("{proofs} proofs at once with a pool each, "),
    };
    format!("threads {}, {at_once}{rounds}", workload.threads)
}

/// Formats the number of completed rounds. If arms differ, the one with the most rounds counts.
fn rounds(workload: &WorkloadResult) -> String {
    let proofs = || workload.arms.iter().flat_map(|arm| &arm.samples);
    let warm = proofs().map(|proof| proof.round).max().unwrap_or(0);
    let processes = proofs().map(|proof| proof.process + 1).max().unwrap_or(0);
    let s = if processes == 1 { "" } else { "s" };
    match workload.timed {
        Timed::Proofs => format!("warm rounds {warm} in {processes} processes each"),
        Timed::Slots => {
            format!("{warm} warm proofs at fixed times in {processes} turn{s} each, one arm after the other")
        }
        Timed::Runs => format!("{processes} run{s} under each"),
        Timed::Intervals => format!("{warm} warm intervals in {processes} run{s} under each"),
    }
}

/// Makes arbitrary text safe for Markdown: puts it on one line and escapes HTML tags.
pub(crate) fn inert(text: &str) -> String {
    text.replace(['\n', '\r', '\t'], " ").replace('<', "&lt;")
}

/// Adds the advice for a command to its table: the upper limit of the gain before the table, the verdict and the lines to paste after it.
pub(crate) fn with_advice(run: &Run, table: &str, style: Style) -> String {
    let Some(advice) = &run.advice else { return table.into() };
    let paragraph = |text: &String| match style {
        Style::Terminal => format!("{text}\n"),
        Style::Markdown => format!("{}\n\n", inert(text)),
    };
    let pasted = |language: &str, lines: &str| match style {
        _ if lines.is_empty() => String::new(),
        Style::Terminal => lines.lines().map(|line| format!("  {line}\n")).collect(),
        Style::Markdown => format!("```{language}\n{lines}\n```\n\n"),
    };
    let ceiling: String = advice.ceiling.iter().map(paragraph).collect();
    let verdict: String = advice.verdict.iter().map(paragraph).collect();
    let environment = pasted("sh", advice.environment.as_deref().unwrap_or_default());
    let dockerfile = pasted("dockerfile", &advice.dockerfile.join("\n"));
    let end = if style == Style::Terminal { "\n" } else { "" };
    format!("{ceiling}{end}{table}\n{verdict}{environment}{dockerfile}{end}")
}

/// Formats the results of a sweep: a table per workload, with a row per point and a column per arm, followed by the predictions. Returns an
/// empty string if the run is not a sweep.
pub(crate) fn curves(run: &Run, style: Style) -> String {
    let Some(sweep) = run.sweep else { return String::new() };
    let axis = if sweep == Sweep::LogRows { "log-rows" } else { "threads" };
    let of_workload = |points: &[WorkloadResult]| {
        let first = &points[0];
        let title = format!("{} over {axis}: warm time vs {} (95% CI)", first.workload, first.baseline);
        let arms = first.arms.iter().map(|arm| format!("|{}", arm.label)).collect::<String>();
        let row = |point: &WorkloadResult| -> Vec<_> {
            let at =
                if sweep == Sweep::LogRows { format!("2^{} rows", point.log_rows) } else { point.threads.to_string() };
            [at].into_iter().chain(point.arms.iter().map(|arm| ratio_or_time(arm, &point.baseline))).collect()
        };
        titled(&title, &drawn(&format!("{axis}{arms}"), points.iter().map(row), style), style)
    };
    let curves = run.workloads.chunk_by(|one, next| one.workload == next.workload).map(of_workload);
    let predictions = run.predictions.chunk_by(|one, next| one.workload == next.workload);
    curves.chain(predictions.map(|arms| prediction(arms, style))).collect()
}

/// Formats the predictions for one workload, with a row for each predicted quantity of each arm.
fn prediction(arms: &[Prediction], style: Style) -> String {
    let Prediction { workload, log_rows, measured_log_rows: measured, .. } = &arms[0];
    let sizes: Vec<_> = measured.iter().map(|size| format!("2^{size}")).collect();
    let (held_out, fitted) = sizes.split_last().map_or((NONE, String::new()), |(last, rest)| (last, rest.join(", ")));
    let header = format!("allocator|figure|2^{log_rows} rows|interval|error at {held_out}|container");
    let mut rows: Vec<Vec<_>> = Vec::new();
    for arm in arms {
        let container = arm.container_bytes.map_or(String::new(), |bytes| format::binary_bytes(bytes as usize));
        let bytes: fn(u64) -> String = format::bytes;
        let figures = [
            ("live peak", arm.live_peak_bytes, bytes, ""),
            ("peak RSS", arm.peak_rss_bytes, bytes, &*container),
            ("warm time", arm.warm_wall_ns, format::time, ""),
        ];
        for (name, forecast, shown, container) in figures {
            let Some(Forecast { predicted, interval, held_out_error, .. }) = forecast else { continue };
            let [predicted, low, high] = [predicted, interval.low, interval.high].map(|figure| shown(figure as u64));
            let error = format!("{:+.1}%", 100.0 * held_out_error);
            let row = [&arm.arm, name, &predicted, &format!("{low} to {high}"), &error, container];
            rows.push(row.map(str::to_owned).to_vec());
        }
        rows.extend(arm.reason.iter().map(|reason| vec![arm.arm.clone(), format!("none: {}", shortened(reason))]));
    }
    let title = format!("{workload} at 2^{log_rows} rows, predicted from {fitted}");
    titled(&title, &drawn(&header, rows, style), style)
}

/// Formats a table below its title.
fn titled(title: &str, table: &str, style: Style) -> String {
    match style {
        Style::Terminal => format!("{title}\n{table}\n\n"),
        Style::Markdown => format!("\n### {title}\n\n{table}\n"),
    }
}

/// Formats the ratio of an arm's time to the baseline's, or the time itself if the arm is the baseline.
fn ratio_or_time(arm: &ArmResult, baseline: &str) -> String {
    let Some(summary) = &arm.summary else { return "failed".into() };
    match (&summary.wall_ratio, summary.warm_wall_ns) {
        (Some(ratio), _) => format::ratio(ratio),
        (None, Some(ns)) if arm.label == baseline => format::time(ns),
        (None, _) => NONE.into(),
    }
}

/// Formats the table of `workload`, with a row per arm, without a final line break.
fn table(workload: &WorkloadResult, style: Style) -> String {
    let rows = rows(workload, Medium::Text);
    match (style, Table::new().width()) {
        // A terminal that does not know its width reports 0 columns, for example a container's pseudo-terminal before
        // its first resize.
        (Style::Terminal, Some(width)) if width > 0 => fitted(&rows, width),
        _ => layout(&rows, style).trim_fmt(),
    }
}

/// Returns the cells of a table: the header, and a row for each arm.
pub(super) fn rows(workload: &WorkloadResult, medium: Medium) -> Vec<Vec<String>> {
    let columns: Vec<_> = columns::filled(workload, medium).collect();
    let header = columns.iter().map(|column| columns::heading(column, workload));
    let header = ["allocator".to_owned()].into_iter().chain(header).collect();
    let row = |arm: &ArmResult| {
        let seen = arm.summary.as_ref().map(|summary| Seen { workload, arm, summary });
        let cells = columns.iter().map(|column| match &seen {
            Some(seen) => column.text(seen, medium).unwrap_or_else(|| NONE.into()),
            // The row of an arm without a summary states why there is none.
            None if column.is_verdict() => format::outcome(&arm.outcome).map_or(NONE.into(), |text| shortened(&text)),
            None => NONE.to_owned(),
        });
        [arm.label.clone()].into_iter().chain(cells).collect()
    };
    [header].into_iter().chain(workload.arms.iter().map(row)).collect()
}

fn shortened(outcome: &str) -> String {
    let more = if outcome.chars().count() > OUTCOME_CHARS { "…" } else { "" };
    outcome.chars().take(OUTCOME_CHARS).collect::<String>() + more
}

/// Lays a table out for a terminal of `width` columns. A table that is too wide is transposed: each arm becomes a
/// column. If the transposed table is too wide as well, cells wrap.
fn fitted(rows: &[Vec<String>], width: u16) -> String {
    let upright = layout(rows, Style::Terminal);
    let needed = upright.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    if needed <= usize::from(width) {
        return upright.trim_fmt();
    }
    let columns = rows.first().map_or(0, Vec::len);
    let turned: Vec<_> = (0..columns).map(|column| rows.iter().map(|row| row[column].clone()).collect()).collect();
    let mut turned = layout(&turned, Style::Terminal);
    turned.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    turned.trim_fmt()
}

/// Formats a table, without a final line break. `header` contains the headings, separated by `|`. On a terminal, long cells wrap.
pub(crate) fn drawn<R: Into<Vec<String>>>(header: &str, rows: impl IntoIterator<Item = R>, style: Style) -> String {
    table_of(header, rows, style).trim_fmt()
}

/// Formats a table for the terminal with all columns left-aligned, for cells that contain words.
pub(crate) fn words<R: Into<Vec<String>>>(header: &str, rows: impl IntoIterator<Item = R>) -> String {
    let mut table = table_of(header, rows, Style::Terminal);
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Left));
    table.trim_fmt()
}

fn table_of<R: Into<Vec<String>>>(header: &str, rows: impl IntoIterator<Item = R>, style: Style) -> Table {
    let header = header.split('|').map(str::to_owned).collect();
    let rows: Vec<_> = iter::once(header).chain(rows.into_iter().map(Into::into)).collect();
    let mut table = layout(&rows, style);
    if style == Style::Terminal {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
}

fn layout(rows: &[Vec<String>], style: Style) -> Table {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled).load_style(match style {
        Style::Terminal => UTF8_FULL_CONDENSED,
        Style::Markdown => ASCII_MARKDOWN,
    });
    // Cells may quote arbitrary text, whose line breaks and `|` must not end the row or the cell.
    let escaped = |cell: &String| match style {
        Style::Terminal => cell.replace(['\n', '\r', '\t'], " "),
        Style::Markdown => inert(cell).replace('|', "\\|"),
    };
    let mut lines = rows.iter().map(|row| row.iter().map(escaped).collect::<Vec<_>>());
    table.set_header(lines.next().unwrap_or_default()).add_rows(lines);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A fact: its name, its value, and whether it may explain a difference between two runs.
type Fact = (&'static str, String, bool);

fn facts(run: &Run) -> Vec<Fact> {
    let (machine, build) = (&run.machine, &run.machine.build);
    let mut facts = vec![
        ("processor", format!("{}, {} cores", known(machine.cpu.as_deref()), machine.cores), true),
        ("memory", machine.memory_bytes.map_or("unknown".into(), format::bytes), true),
        ("kernel", known(machine.kernel.as_deref()), true),
        ("kind of host", machine.kind_of_host(), true),
        ("overcommit", known(machine.overcommit_memory.as_deref()), true),
        ("load when it started", known(machine.load_average.as_deref()), false),
        ("commit", commit(machine), true),
        ("sources", build.sources.clone(), true),
        ("Cargo.lock, SHA-256", known(machine.lockfile_sha256.as_deref()), true),
        ("command line", run.command_line.join(" "), false),
        ("seed", run.seed.to_string(), true),
        ("rounds asked for", run.rounds.to_string(), true),
        ("started", machine.started_at.to_string(), false),
        ("prover or command", run.prover.clone(), true),
        ("interrupted", run.interrupted.to_string(), true),
    ];
    if !run.is_of_command() {
        facts.extend([
            ("compiler", build.rustc.clone(), true),
            ("profile", format!("{}, opt-level {}, {}", build.profile, build.opt_level, build.target), true),
            ("flags", build.rustflags.clone(), true),
            ("vector instructions", build.vector_features.join(", "), true),
            ("threads", run.threads.to_string(), false),
        ]);
    }
    facts
}

/// Returns the name and the value of every fact.
pub(super) fn facts_of(run: &Run) -> impl Iterator<Item = (&'static str, String)> {
    facts(run).into_iter().map(|(name, value, _)| (name, if value.is_empty() { "none".into() } else { value }))
}

/// Returns the facts that differ between two runs and may explain a difference in their results: the name, and both values.
pub(crate) fn differences(before: &Run, after: &Run) -> Vec<(&'static str, String, String)> {
    let later = facts(after);
    let differing = facts(before).into_iter().filter(|(.., matters)| *matters).map(|(name, old, _)| {
        let new = later.iter().find(|(other, ..)| *other == name).map_or("-".into(), |(_, new, _)| new.clone());
        (name, old, new)
    });
    differing.filter(|(_, old, new)| old != new).collect()
}

/// Returns the command line as a user types it: without the path of the driver and without `--out`. If the run measured
/// a command, all words remain, because some belong to that command.
pub(crate) fn command(run: &Run) -> String {
    let mut words = vec!["prove-bench"];
    let is_of_bench = !run.is_of_command();
    let mut arguments = run.command_line.iter().skip(1).map(String::as_str);
    while let Some(argument) = arguments.next() {
        match argument {
            "--out" if is_of_bench => _ = arguments.next(),
            _ if is_of_bench && argument.starts_with("--out=") => {}
            _ => words.push(argument),
        }
    }
    words.join(" ")
}

/// Returns a sentence with the facts needed to interpret a table: host, compiler and commit.
pub(super) fn sentence(run: &Run) -> String {
    let (machine, build) = (&run.machine, &run.machine.build);
    let compiler =
        if run.is_of_command() { String::new() } else { format!("; {}, `{}`", build.rustc, build.rustflags) };
    format!(
        "{}: {}, {} cores, {} of memory, Linux {}{compiler}; commit {}.",
        machine.kind_of_host(),
        known(machine.cpu.as_deref()),
        machine.cores,
        machine.memory_bytes.map_or("unknown".into(), format::bytes),
        known(machine.kernel.as_deref()),
        commit(machine)
    )
}

/// Returns the kind of host, machine, commit and date of a run.
pub(super) fn on(run: &Run) -> String {
    let machine = &run.machine;
    let day = machine.started_at.strftime("%Y-%m-%d");
    let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
    let (kind, commit) = (machine.kind_of_host(), known(machine.git_commit.as_deref()));
    format!("{kind}: {cpu}, {} cores, commit {commit:.12}{}, {day}.", machine.cores, changes(machine))
}

/// Returns the commit of a run, marked if the working tree had changes.
pub(crate) fn commit(machine: &Machine) -> String {
    known(machine.git_commit.as_deref()) + changes(machine)
}

fn changes(machine: &Machine) -> &'static str {
    if machine.git_dirty == Some(true) { " with changes" } else { "" }
}

/// Returns the value, or "unknown" if the machine does not report it.
pub(crate) fn known(value: Option<&str>) -> String {
    value.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::saved;

    /// At 80 columns, the usual default width of a terminal, the table must not split words or numbers.
    #[test]
    fn three_arms_fit_80_columns_with_their_numbers_whole() {
        let text = fitted(&rows(&saved("together").workloads[0], Medium::Text)[..4], 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for whole in ["allocator", "jemalloc-tuned", "1.05 s", "[0.797,", "0.985]", "idle RSS", "84,977"] {
            assert!(text.contains(whole), "{whole} in\n{text}");
        }
    }
}
