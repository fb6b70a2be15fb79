//! A run as text: on the terminal during the run, and as Markdown for a README or a comment.

use super::curves::curves;
use super::facts::{self, command};
use super::notes::notes;
use super::table::{Style, table};
use super::words::{self, Finding};
use crate::results::record::{Run, WorkloadResult};
use crate::results::timed::Timed;
use crate::together::Concurrent;

/// One workload: heading, table, and the notes below it.
pub(crate) fn section(run: &Run, workload: &WorkloadResult, style: Style) -> String {
    let WorkloadResult { workload: name, log_rows, about, threads, .. } = workload;
    let mut details = format!("{}, seed {}", rounds(workload), run.seed);
    let mut title = name.clone();
    if !workload.timed.is_of_command() {
        title += &format!(", 2^{log_rows} rows");
        details = format!("threads {threads}, {}{details}", at_once(run.concurrent));
    }
    let heading = match style {
        Style::Terminal => format!("{title}: {about}\n{details}\n"),
        Style::Markdown => format!("### {title}\n\n{}; {details}.\n\n", inert(about)),
    };
    let mut text = heading + &table(workload, style) + "\n";
    for note in notes(run, workload) {
        match style {
            Style::Terminal => text += &format!("{note}\n"),
            Style::Markdown => text += &format!("\n{}\n", inert(&note)),
        }
    }
    text
}

/// The proofs that one sample covers, if they are several.
pub(super) fn at_once(concurrent: Concurrent) -> String {
    match concurrent {
        Concurrent { proofs: 1, .. } => String::new(),
        Concurrent { proofs, pool_each: false } => format!("{proofs} proofs at once on one pool, "),
        Concurrent { proofs, pool_each: true } => format!("{proofs} proofs at once with a pool each, "),
    }
}

/// A whole run as Markdown, for a comment.
pub(super) fn markdown(run: &Run) -> String {
    with_findings(run, words::findings)
}

/// A whole run as Markdown for a page, without sentences that repeat its tables.
pub(super) fn page(run: &Run) -> String {
    with_findings(run, words::beyond_the_table)
}

fn with_findings(run: &Run, findings: impl Fn(&Run, &WorkloadResult) -> Vec<Finding>) -> String {
    let mut text = format!("## {}\n\n`{}`\n\n{}\n", run.prover, command(run), facts::sentence(run));
    let mut sections = String::new();
    for workload in &run.workloads {
        sections += "\n";
        sections += &section(run, workload, Style::Markdown);
        sections += "\n";
        for finding in findings(run, workload) {
            sections += &format!("- **{}**: {}\n", finding.arm, inert(&finding.text));
        }
    }
    text += if run.advice.is_some() { "\n" } else { "" };
    text += &with_advice(run, &sections, Style::Markdown);
    text + &curves(run, Style::Markdown)
}

/// Puts arbitrary text on one line and disables HTML tags in it.
pub(super) fn inert(text: &str) -> String {
    text.replace(['\n', '\r', '\t'], " ").replace('<', "&lt;")
}

/// The advice for a command, placed around its table. The ceiling precedes the table; the verdict and the lines to
/// paste follow it.
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

/// The number of completed rounds, from the arm that got furthest.
fn rounds(workload: &WorkloadResult) -> String {
    let proofs = || workload.arms.iter().flat_map(|arm| &arm.samples);
    let warm = proofs().map(|proof| proof.round).max().unwrap_or(0);
    let processes = proofs().map(|proof| proof.process + 1).max().unwrap_or(0);
    let runs = if processes == 1 { "1 run".to_owned() } else { format!("{processes} runs") };
    match workload.timed {
        Timed::Proofs => format!("warm rounds {warm} in {processes} processes each"),
        Timed::Slots => {
            let turns = if processes == 1 { "1 turn".to_owned() } else { format!("{processes} turns") };
            format!("{warm} warm proofs at fixed times in {turns} each, one arm after the other")
        }
        Timed::Runs => format!("{runs} under each"),
        Timed::Intervals => format!("{warm} warm intervals in {runs} under each"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, run, workload_of};
    use crate::results::record::Outcome;
    use crate::results::record::tests::arm;

    /// Text in a Markdown list item must not end a table, start another item or open a tag.
    #[test]
    fn the_findings_stand_under_the_table_one_a_line() {
        let reason = "died:\n- <b>of</b> a list".to_owned();
        let failed = arm("jemalloc", Outcome::Failed { round: 1, reason }, &[1]);
        let text = markdown(&run(vec![workload_of(vec![arm("glibc", Outcome::Finished, &EVEN), failed])]));
        let findings: Vec<_> = text.lines().filter(|line| line.starts_with("- ")).collect();
        assert_eq!(findings.len(), 2, "{text}");
        assert_eq!(findings[1], "- **jemalloc**: FAILED in round 1: died: - &lt;b>of&lt;/b> a list.");
    }

    #[test]
    fn a_page_leaves_out_what_its_table_shows_and_keeps_failures() {
        let failed = arm("jemalloc", Outcome::Failed { round: 1, reason: "died".into() }, &[1]);
        let text = page(&run(vec![workload_of(vec![arm("glibc", Outcome::Finished, &EVEN), failed])]));
        let findings: Vec<_> = text.lines().filter(|line| line.starts_with("- ")).collect();
        assert_eq!(findings, ["- **jemalloc**: FAILED in round 1: died."]);
    }
}
