//! The tables of one trace: one with a row per arm, one with a row per phase.

use super::script::Script;
use crate::plan::Contestant;
use crate::protocol::Replayed;
use crate::protocol::records::Header;
use crate::results::stats;
use crate::sample::Sample;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// An arm, with the results of its replays.
pub(crate) struct Row<'a> {
    pub(crate) contestant: &'a Contestant,
    pub(crate) replays: Vec<Replayed>,
    /// Settings that its process found in its environment.
    pub(crate) settings: Vec<String>,
    /// Why it takes no further part.
    pub(crate) failure: Option<String>,
}

impl<'a> Row<'a> {
    pub(crate) fn new(contestant: &'a Contestant) -> Self {
        Self { contestant, replays: Vec::new(), settings: Vec::new(), failure: None }
    }

    /// The last replay, in a line.
    pub(crate) fn progress(&self) -> String {
        let label = &self.contestant.label;
        match (&self.failure, self.replays.last()) {
            (Some(reason), _) => format!("{label} FAILED: {reason}"),
            (None, Some(Replayed { sample, .. })) => {
                let (peak, wall) = (mib(Some(sample.peak_rss_bytes as f64)), seconds(Some(sample.wall_ns as f64)));
                format!("{label}: peak RSS {peak} MiB, {wall} s")
            }
            (None, None) => format!("{label}: not replayed"),
        }
    }

    /// The median over the replays; `None` if one of them lacks the figure or the arm failed.
    fn median(&self, figure: impl Fn(&Replayed) -> Option<u64>) -> Option<f64> {
        let values: Option<Vec<_>> =
            self.replays.iter().map(|replay| figure(replay).map(|value| value as f64)).collect();
        values.filter(|_| self.failure.is_none()).and_then(|values| stats::median(&values))
    }

    fn of_sample(&self, figure: impl Fn(&Sample) -> u64) -> Option<f64> {
        self.median(|replay| Some(figure(&replay.sample)))
    }

    fn counter(&self, name: &str) -> Option<f64> {
        self.median(|replay| replay.sample.counters.get(name).copied())
    }

    fn cells(&self, live_peak_bytes: u64) -> Vec<String> {
        let peak = self.of_sample(|sample| sample.peak_rss_bytes);
        let live_peak = live_peak_bytes as f64;
        vec![
            self.contestant.label.clone(),
            peak.map_or_else(none, |peak| format!("{:.3}", peak / live_peak)),
            mib(peak),
            mib(Some(live_peak)),
            mib(self.median(|replay| Some(replay.rss_at_live_peak_bytes))),
            mib(self.of_sample(|sample| sample.rss_bytes)),
            mib(self.median(|replay| replay.rss_released_bytes)),
            mib(self.counter("overflow_bytes")),
            whole(self.counter("system_calls")),
            whole(self.of_sample(|sample| sample.minflt)),
            seconds(self.of_sample(|sample| sample.wall_ns)),
            seconds(self.median(|replay| Some(replay.operations_ns))),
        ]
    }

    /// Notes on the arm: its failure, its settings, and its reports.
    fn notes(&self, verbose: bool) -> Vec<String> {
        let (label, arm) = (&self.contestant.label, self.contestant.arm);
        let known = arm.known_to_fail.map_or_else(String::new, |why| format!(" (known to fail: {why})"));
        let failed = self.failure.iter().map(|reason| format!("{label}: FAILED: {reason}{known}"));
        // Settings that the arm brings itself are not reported.
        let is_own =
            |setting: &&String| arm.environment.iter().any(|(name, value)| **setting == format!("{name}={value}"));
        let found = self.settings.iter().filter(|setting| !is_own(setting));
        let settings = found.map(|setting| format!("{label}: {setting} was set"));
        let reports = self.replays.last().into_iter().filter(|_| verbose).flat_map(|replay| &replay.reports);
        failed.chain(settings).chain(reports.map(|report| format!("\n{label}, {report}"))).collect()
    }
}

/// The tables as Markdown, without a final line break.
pub(crate) fn table(header: &Header, min_bytes: u64, script: &Script, rows: &[Row<'_>], verbose: bool) -> String {
    let arms = lines(
        &[
            "allocator",
            "peak RSS / live peak",
            "peak RSS MiB",
            "live peak MiB",
            "RSS at live peak MiB",
            "RSS after all frees MiB",
            "after release() MiB",
            "overflow MiB",
            "system calls",
            "minor faults",
            "wall s",
            "operations s",
        ],
        rows.iter().map(|row| row.cells(script.live_peak_bytes)),
    );
    let replays = rows.iter().map(|row| row.replays.len()).max().unwrap_or(0);
    let title = format!(
        "{}; {} operations on {} threads, of {min_bytes} bytes and more; replays of each allocator: {replays}",
        header.title, script.shape.records, script.shape.threads
    );
    let lost = match header.lost {
        0 => String::new(),
        lost => format!("\n{lost} records were lost: other operations were replayed than there were."),
    };
    let notes: String = rows.iter().flat_map(|row| row.notes(verbose)).map(|note| format!("\n{note}")).collect();
    let notes = if notes.is_empty() { notes } else { format!("\n{notes}") };
    format!("{title}{lost}\n\n{arms}\n\n{}{notes}", phases(script, rows))
}

/// Resident memory at the end of each phase.
fn phases(script: &Script, rows: &[Row<'_>]) -> String {
    let mut header = vec!["at the end of the phase of".to_owned(), "live MiB".to_owned()];
    header.extend(rows.iter().map(|row| format!("{} RSS MiB", row.contestant.label)));
    let cells = script.phase_ends.iter().enumerate().map(|(index, end)| {
        let rss = |row: &Row<'_>| mib(row.median(|replay| replay.rss_at_phase_ends_bytes.get(index).copied()));
        let first = [format!("proof {}", end.proof), mib(Some(end.live_bytes as f64))];
        first.into_iter().chain(rows.iter().map(rss)).collect()
    });
    lines(&header, cells)
}

fn lines<H: AsRef<str>>(header: &[H], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled).load_style(ASCII_MARKDOWN);
    table.set_header(header.iter().map(AsRef::as_ref));
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn none() -> String {
    "-".into()
}

fn mib(bytes: Option<f64>) -> String {
    bytes.map_or_else(none, |bytes| format!("{:.1}", bytes / f64::from(1 << 20)))
}

fn seconds(ns: Option<f64>) -> String {
    ns.map_or_else(none, |ns| format!("{:.2}", ns / 1e9))
}

fn whole(count: Option<f64>) -> String {
    count.map_or_else(none, |count| format!("{count:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use crate::protocol::records::Op;
    use crate::sample;
    use crate::trace::replay::script;

    fn replayed(peak_rss_bytes: u64) -> Replayed {
        Replayed {
            sample: Sample { peak_rss_bytes, ..sample::tests::sample(1, [("system_calls".to_owned(), 7)].into()) },
            operations_ns: 1,
            rss_at_live_peak_bytes: 2,
            rss_at_phase_ends_bytes: vec![3 << 20],
            rss_released_bytes: None,
            reports: vec!["in its own words".into()],
        }
    }

    /// An arm that failed after some rounds must show no figures.
    #[test]
    fn an_arm_shows_medians_and_a_failed_one_only_why() {
        let trace = script::tests::phase(&[(Op::Alloc, 1, 1, 4 << 20)]);
        let script = Script::of(&trace, 64).unwrap();
        let contestants = plan::contestants(&["glibc".to_owned(), "zk-alloc".to_owned()]).unwrap();
        let mut rows: Vec<_> = contestants.iter().map(Row::new).collect();
        rows[0].replays = [8, 80, 6].map(|mib| replayed(mib << 20)).into();
        rows[1].replays = vec![replayed(1)];
        rows[1].failure = Some("died of SIGSEGV".into());
        let text = |verbose| table(&trace.header, 64, &script, &rows, verbose);
        let line = |begin: &str| text(false).lines().find(|line| line.starts_with(begin)).unwrap().to_owned();
        assert!(line("| glibc ").contains(" 2.000 |") && line("| glibc ").contains("8.0 |"), "{}", text(false));
        assert!(!line("| zk-alloc ").contains("7"), "{}", text(false));
        assert!(line("| proof 1 ").contains("4.0 |") && line("| proof 1 ").contains("3.0 |"), "{}", text(false));
        assert!(line("zk-alloc: FAILED").ends_with("died of SIGSEGV"), "{}", text(false));
        assert!(text(true).contains("in its own words") && !text(false).contains("in its own words"));
    }
}
