//! Compares two runs: changes are reported as far as the intervals show them.

use super::facts::{self, command, commit};
use crate::results::columns::{COLUMNS, Seen, Shown};
use crate::results::record::{ArmResult, Run, WorkloadResult};
use crate::results::stats::{Ratio, Verdict};
use crate::results::timed::Timed;
use crate::results::{format, view};
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use std::collections::BTreeSet;

const NONE: &str = "-";

/// The comparison as Markdown, with a final line break.
pub(super) fn compare(before: &Run, after: &Run) -> String {
    let mut text = format!(
        "A: {}, commit {}, `{}`\nB: {}, commit {}, `{}`\n\n",
        before.run,
        commit(before),
        command(before),
        after.run,
        commit(after),
        command(after)
    );
    match &differences(before, after)[..] {
        [] => text += "Machine, build, seed and rounds are the same.\n",
        differences => {
            text += "Not only the allocators may have made a difference:\n\n";
            text.extend(differences.iter().map(|difference| format!("- {difference}\n")));
        }
    }
    for old in &before.workloads {
        let Some(new) = after.workloads.iter().find(|new| same_point(old, new)) else { continue };
        text += &format!("\n### {}\n\n{}\n", named(before, old), table(old, new));
        let notes = notes(old, new);
        if !notes.is_empty() {
            text += "\n";
        }
        text.extend(notes.iter().map(|note| format!("- {note}\n")));
    }
    for (name, run, other) in [("A", before, after), ("B", after, before)] {
        let alone = run.workloads.iter().filter(|one| !other.workloads.iter().any(|two| same_point(one, two)));
        text.extend(alone.map(|workload| format!("\nOnly {name} has {}.\n", named(run, workload))));
    }
    text + "\nA ratio changed where the two 95% intervals do not overlap; two runs that differ by less are not told apart.\n"
}

fn named(run: &Run, workload: &WorkloadResult) -> String {
    let name = view::name(run, workload);
    if workload.timed.is_of_command() { name } else { format!("{name}, {} threads", workload.threads) }
}

fn same_point(one: &WorkloadResult, two: &WorkloadResult) -> bool {
    let place = |workload: &WorkloadResult| (workload.timed, workload.log_rows, workload.threads);
    one.workload == two.workload && place(one) == place(two)
}

/// The differences between the runs other than their arms.
fn differences(before: &Run, after: &Run) -> Vec<String> {
    let facts = facts::differences(before, after).into_iter();
    let mut differences: Vec<_> = facts.map(|(name, old, new)| format!("{name}: A {old}, B {new}")).collect();
    for (name, run) in [("A", before), ("B", after)] {
        if run.interrupted {
            differences.push(format!("{name} was interrupted: rounds are missing"));
        }
    }
    differences
}

fn table(old: &WorkloadResult, new: &WorkloadResult) -> String {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled).load_style(ASCII_MARKDOWN);
    let headings = COLUMNS.iter().flat_map(|column| column.shown).flat_map(|place| headings(place, old.timed));
    table.set_header(["allocator".to_owned()].into_iter().chain(headings));
    for arm in &old.arms {
        if let Some(other) = new.arms.iter().find(|other| other.label == arm.label) {
            table.add_row(row((old, arm), (new, other)));
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// The headings of a column in a comparison of two runs.
fn headings(place: &Shown, timed: Timed) -> Vec<String> {
    match place {
        Shown::Compared(heading) => vec![format!("{heading} A → B")],
        Shown::Judged(heading, change) => {
            let (heading, change) = (timed.heading(heading), timed.heading(change));
            vec![format!("{heading} A [95%]"), format!("{heading} B [95%]"), change]
        }
        _ => Vec::new(),
    }
}

fn row(old: (&WorkloadResult, &ArmResult), new: (&WorkloadResult, &ArmResult)) -> Vec<String> {
    let both = [old, new].map(|(workload, arm)| Some(Seen { workload, arm, summary: view::figures(arm)? }));
    let cells = COLUMNS.iter().flat_map(|column| column.shown.iter().map(move |place| (column, place)));
    let cells = cells.flat_map(|(column, place)| match place {
        Shown::Compared(_) => vec![pair(both.map(|seen| column.text(&seen?)))],
        Shown::Judged(..) => {
            let ratios = both.map(|seen| column.ratio(&seen?));
            let [a, b] = ratios.map(|ratio| ratio.map_or_else(|| NONE.into(), |ratio| format::ratio(&ratio)));
            let change = if let [Some(a), Some(b)] = ratios { changed(&a, &b) } else { NONE };
            vec![a, b, change.to_owned()]
        }
        _ => Vec::new(),
    });
    [old.1.label.clone()].into_iter().chain(cells).collect()
}

/// The verdict on two measurements of one ratio.
fn changed(before: &Ratio, after: &Ratio) -> &'static str {
    if [before, after].iter().any(|ratio| ratio.verdict() == Verdict::TooFewRounds) {
        return format::verdict(Verdict::TooFewRounds);
    }
    match (before.interval, after.interval) {
        (Some(a), Some(b)) if b.high < a.low => "changed: less time",
        (Some(a), Some(b)) if b.low > a.high => "changed: more time",
        _ => "no change shown",
    }
}

fn pair([a, b]: [Option<String>; 2]) -> String {
    match (a, b) {
        (None, None) => NONE.into(),
        (a, b) => [a, b].map(|value| value.unwrap_or_else(|| NONE.into())).join(" → "),
    }
}

/// Notes on arms that the rows cannot describe: arms without figures, with other settings, or in only one run.
fn notes(old: &WorkloadResult, new: &WorkloadResult) -> Vec<String> {
    let mut notes = Vec::new();
    if old.baseline != new.baseline {
        notes.push(format!("ratios of A are to {}, of B to {}: they do not compare", old.baseline, new.baseline));
    }
    let labels: BTreeSet<_> = old.arms.iter().chain(&new.arms).map(|arm| &arm.label).collect();
    for label in labels {
        let [a, b] = [old, new].map(|workload| workload.arms.iter().find(|arm| arm.label == *label));
        for (name, arm) in [("A", a), ("B", b)] {
            match arm.map(|arm| format::outcome(&arm.outcome)) {
                None => notes.push(format!("{label}: not in {name}")),
                Some(Some(outcome)) => notes.push(format!("{label}, {name}: {}", super::text::inert(&outcome))),
                Some(None) => {}
            }
        }
        let [a, b] = [a, b].map(|arm| Some(settings(arm?)).filter(|settings| !settings.is_empty()));
        if let (Some(a), Some(b)) = (&a, &b)
            && a != b
        {
            notes.push(format!("{label}: A ran {a}, B {b}"));
        }
    }
    notes
}

/// Allocator, version and settings as the arm's process reported them.
fn settings(arm: &ArmResult) -> String {
    arm.identity.as_ref().map_or_else(String::new, |identity| {
        let settings = identity.settings.iter().map(|setting| format!(" {setting}"));
        format!("{} {}{}", identity.allocator, identity.version, settings.collect::<String>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, run, workload, workload_of};
    use crate::results::record::Outcome;
    use crate::results::record::tests::arm;

    fn cells(text: &str, label: &str) -> Vec<String> {
        let row = text.lines().find(|line| line.starts_with(&format!("| {label} "))).expect("a row an arm");
        row.split('|').map(|cell| cell.trim().to_owned()).collect()
    }

    fn times(share: f64) -> Vec<u64> {
        // Alternates by 1% around the share, so that the intervals have a width.
        EVEN.iter().zip([0.99, 1.01].iter().cycle()).map(|(ns, noise)| (*ns as f64 * share * noise) as u64).collect()
    }

    /// Noise must not be reported as a change, nor a change as noise.
    #[test]
    fn only_intervals_apart_are_a_change() {
        let of = |share| run(vec![workload(&[("glibc", &EVEN), ("zk-alloc", &times(share))])]);
        let change = |before, after| cells(&compare(&of(before), &of(after)), "zk-alloc")[4].clone();
        assert_eq!(change(0.900, 0.905), "no change shown");
        assert_eq!(change(0.900, 0.950), "changed: more time");
        assert_eq!(change(0.950, 0.900), "changed: less time");
        let few = run(vec![workload(&[("glibc", &EVEN[..4]), ("zk-alloc", &times(0.5)[..4])])]);
        assert_eq!(cells(&compare(&few, &of(0.9)), "zk-alloc")[4], "too few rounds");
    }

    #[test]
    fn what_else_differs_is_said_before_any_figure() {
        let mut before = run(vec![workload(&[("glibc", &EVEN)])]);
        let mut after = run(vec![workload(&[("glibc", &EVEN)])]);
        let same = compare(&before, &after);
        assert!(same.contains("Machine, build, seed and rounds are the same."), "{same}");
        after.seed = 9;
        after.machine.cpu = Some("another".into());
        after.interrupted = true;
        before.machine.git_commit = Some("abc".into());
        let text = compare(&before, &after);
        for part in ["- seed: A 1, B 9\n", ", B another\n", "- commit: A abc", "- B was interrupted"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    /// An arm that failed or is missing in one run must not look unchanged.
    #[test]
    fn arms_and_workloads_of_one_run_only_are_named() {
        let failed = arm("zk-alloc", Outcome::Failed { round: 3, reason: "hung".into() }, &EVEN[..3]);
        let before = run(vec![workload(&[("glibc", &EVEN), ("zk-alloc", &EVEN), ("jemalloc", &EVEN)])]);
        let mut after = run(vec![workload_of(vec![arm("glibc", Outcome::Finished, &EVEN), failed])]);
        let text = compare(&before, &after);
        assert_eq!(cells(&text, "zk-alloc")[2..5], ["1.000 [1.000, 1.000]", "-", "-"]);
        assert!(
            text.contains("- jemalloc: not in B\n") && text.contains("- zk-alloc, B: FAILED in round 3: hung\n"),
            "{text}"
        );
        after.workloads[0].log_rows = 16;
        let text = compare(&before, &after);
        assert!(text.contains("Only A has poseidon2 2^15") && text.contains("Only B has poseidon2 2^16"), "{text}");
    }
}
