//! Samples, the figures computed from them, and the report: a table of all patterns, the means, and the patterns in which zk-alloc breaks a promise.

use std::collections::HashMap;

use crate::Sample;
use crate::heap::{Arm, BASELINE, OURS};
use crate::patterns::Pattern;

/// The memory that an arm may use, as a multiple of a peer's.
const ALLOWED: f64 = 1.25;

/// Differences of peaks that mean nothing: pages of code, and the kernel's counters, which are split.
const NOISE_BYTES: f64 = (1 << 20) as f64;

/// Patterns are small or not, because an allocator may leave small sizes to another.
pub(crate) const GROUPS: [(bool, &str); 2] = [(false, "1 KiB and more"), (true, "below 1 KiB")];

pub(crate) fn render(results: &Results, warm: bool) -> String {
    let time = if warm { "Time of a process's second run" } else { "Time" };
    let (patterns, means, breaches) = (table(&patterns(results)), table(&means(results)), breaches(results));
    format!(
        "{time} by {BASELINE}'s (the median of the rounds' ratios; {BASELINE}'s own in ms), then the peak of resident memory \
         in MiB; the best in bold.\n\n{patterns}\nGeometric means of the times by {BASELINE}'s.\n\n{means}{breaches}"
    )
}

fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}

/// A row's cells of one quantity, with the smallest marked.
fn cells(values: &[Option<f64>], show: impl Fn(usize, f64) -> String) -> Vec<String> {
    let best = values.iter().flatten().copied().reduce(f64::min);
    let cell = |(index, value): (usize, &Option<f64>)| match *value {
        None => "failed".into(),
        Some(value) if Some(value) == best => format!("**{}**", show(index, value)),
        Some(value) => show(index, value),
    };
    values.iter().enumerate().map(cell).collect()
}

fn patterns(results: &Results) -> Vec<Vec<String>> {
    let arms = 0..results.arms.len();
    let names = || results.arms.iter().map(|arm| arm.name);
    let mut head = vec!["pattern".into()];
    head.extend(names().map(|name| if name == BASELINE { format!("{name} ms") } else { name.into() }));
    head.extend(names().map(|name| format!("{name} MiB")));
    let mut rows = vec![head];
    for (pattern, described) in results.patterns.iter().enumerate() {
        let times: Vec<_> = arms.clone().map(|arm| results.time(arm, pattern)).collect();
        let peaks: Vec<_> = arms.clone().map(|arm| results.peak_bytes(arm, pattern)).collect();
        let mut row = vec![described.name.into()];
        row.extend(cells(&times, |arm, ratio| match results.time_ms(arm, pattern) {
            Some(ms) if results.arms[arm].name == BASELINE => format!("{ms:.0}"),
            _ => format!("{ratio:.2}"),
        }));
        row.extend(cells(&peaks, |_, bytes| mib(bytes)));
        rows.push(row);
    }
    rows
}

fn means(results: &Results) -> Vec<Vec<String>> {
    let mut head = vec!["patterns".into()];
    head.extend(results.arms.iter().map(|arm| arm.name.into()));
    let mut rows = vec![head];
    for (is_small, title) in GROUPS {
        if results.patterns.iter().any(|pattern| pattern.is_small == is_small) {
            let means: Vec<_> = (0..results.arms.len()).map(|arm| results.mean_time(arm, is_small)).collect();
            let mut row = vec![title.into()];
            row.extend(cells(&means, |_, mean| format!("{mean:.3}")));
            rows.push(row);
        }
    }
    rows
}

/// Columns as wide as their widest cells; the first is left-aligned, the others are right-aligned.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let padded = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text += &format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "));
        if index == 0 {
            text += &format!("|---|{}\n", "---:|".repeat(columns - 1));
        }
    }
    text
}

/// The patterns in which zk-alloc breaks one of its three promises.
fn breaches(results: &Results) -> String {
    let Some(ours) = results.arm(OURS) else { return String::new() };
    let peers: Vec<usize> = (0..results.arms.len()).filter(|&arm| arm != ours).collect();
    let mut lines = String::new();
    for (pattern, described) in results.patterns.iter().enumerate() {
        let mut breach = |what: String| lines += &format!("- {}: {what}\n", described.name);
        let by_time = |&arm: &usize| Some((arm, results.time(arm, pattern)?));
        let slowest = peers.iter().filter_map(by_time).max_by(|(_, one), (_, other)| one.total_cmp(other));
        if let (Some(time), Some((peer, peers_time))) = (results.time(ours, pattern), slowest)
            && time > peers_time
            && let times = results.times_by(ours, peer, pattern)
            && let (Some(median), Some(least), Some(most)) = (median(&times), times.first(), times.last())
        {
            let name = results.arms[peer].name;
            breach(format!(
                "{median:.2} of the time of the slowest peer, {name} ({least:.2} to {most:.2} in the rounds)"
            ));
        }
        let Some(peak) = results.peak_bytes(ours, pattern) else { continue };
        let mut peaks: Vec<_> =
            peers.iter().filter_map(|&arm| Some((results.peak_bytes(arm, pattern)?, results.arms[arm].name))).collect();
        peaks.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let exceeds = |(bytes, _): &&(f64, &str)| peak > ALLOWED * bytes && peak > bytes + NOISE_BYTES;
        for (which, peer) in [("largest", peaks.last()), ("smallest", peaks.first())] {
            if let Some((bytes, name)) = peer.filter(exceeds) {
                let (ratio, sizes) = (peak / bytes, format!("{} MiB to {}", mib(peak), mib(*bytes)));
                breach(format!("{ratio:.2} of the memory of the {which} peer, {name} ({sizes})"));
            }
        }
    }
    let none = if lines.is_empty() { "- nowhere\n" } else { "" };
    format!(
        "\nWhere {OURS} is slower than the slowest peer, or peaks above {ALLOWED} x the largest or the smallest peer \
         (differences up to 1 MiB not counted):\n\n{lines}{none}"
    )
}

pub(crate) struct Results {
    arms: Vec<&'static Arm>,
    patterns: Vec<&'static Pattern>,
    /// The samples of each round for an arm and a pattern, by their indices. An arm that failed a pattern has no figures there, even if
    /// earlier rounds passed.
    samples: HashMap<(usize, usize), Option<Vec<Sample>>>,
}

impl Results {
    pub(crate) fn new(arms: Vec<&'static Arm>, patterns: Vec<&'static Pattern>) -> Self {
        Self { arms, patterns, samples: HashMap::new() }
    }

    /// Adds the sample of a round; `None` if the arm failed.
    pub(crate) fn add(&mut self, arm: usize, pattern: usize, sample: Option<Sample>) {
        let all = self.samples.entry((arm, pattern)).or_insert_with(|| Some(Vec::new()));
        match (all.as_mut(), sample) {
            (Some(samples), Some(sample)) => samples.push(sample),
            _ => *all = None,
        }
    }

    pub(crate) fn has_failed(&self, arm: usize, pattern: usize) -> bool {
        self.samples.get(&(arm, pattern)).is_some_and(Option::is_none)
    }

    /// The index of an arm that took part.
    fn arm(&self, name: &str) -> Option<usize> {
        self.arms.iter().position(|arm| arm.name == name)
    }

    fn of(&self, arm: usize, pattern: usize) -> impl Iterator<Item = &Sample> {
        self.samples.get(&(arm, pattern)).into_iter().flatten().flatten()
    }

    /// The median of the arm's times, in milliseconds.
    fn time_ms(&self, arm: usize, pattern: usize) -> Option<f64> {
        median(&sorted(self.of(arm, pattern).map(|sample| sample.wall_ns as f64 / 1e6)))
    }

    /// The median of the arm's peaks.
    fn peak_bytes(&self, arm: usize, pattern: usize) -> Option<f64> {
        median(&sorted(self.of(arm, pattern).map(|sample| sample.peak_rss_bytes as f64)))
    }

    /// The arm's times relative to another's, round by round; the least first.
    fn times_by(&self, arm: usize, other: usize, pattern: usize) -> Vec<f64> {
        let rounds = self.of(arm, pattern).zip(self.of(other, pattern));
        sorted(rounds.map(|(own, other)| own.wall_ns as f64 / other.wall_ns as f64))
    }

    /// The arm's time relative to the baseline's.
    fn time(&self, arm: usize, pattern: usize) -> Option<f64> {
        median(&self.times_by(arm, self.arm(BASELINE)?, pattern))
    }

    /// The geometric mean over a group of patterns of the arm's times, relative to the baseline's. `None` if the arm
    /// failed one of them, because the mean of the others would flatter it.
    fn mean_time(&self, arm: usize, is_small: bool) -> Option<f64> {
        let patterns = (0..self.patterns.len()).filter(|&pattern| self.patterns[pattern].is_small == is_small);
        let logs = patterns.map(|pattern| Some(self.time(arm, pattern)?.ln())).collect::<Option<Vec<f64>>>()?;
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> Option<f64> {
    let (middle, odd) = (sorted.len() / 2, sorted.len() % 2 == 1);
    let upper = *sorted.get(middle)?;
    Some(if odd { upper } else { f64::midpoint(sorted[middle - 1], upper) })
}
