//! The report of the suite: a table of all patterns, the mean times, and the patterns in which zk-alloc breaks one of its promises.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use crate::Sample;
use crate::arms::{Arm, BASELINE, OURS};
use crate::patterns::Pattern;

/// The maximum memory that our arm may use, as a multiple of a peer's.
const ALLOWED: f64 = 1.25;

/// The measurement noise of a difference between two peaks. It comes from pages of code, and from the lag of the kernel's counters.
const NOISE_BYTES: f64 = (1 << 20) as f64;

/// The groups of patterns, by block size. They are separate because some allocators pass small requests on to another allocator.
pub(crate) const GROUPS: [(bool, &str); 2] = [(false, "1 KiB and more"), (true, "below 1 KiB")];

/// The results of a pattern. Arms are identified by their index; the first one is the baseline.
pub(crate) struct Row {
    pub(crate) pattern: &'static Pattern,
    /// For each arm, its samples, one per round; `None` if the arm failed in any round.
    pub(crate) samples: Vec<Option<Vec<Sample>>>,
}

impl Row {
    /// Returns the ratios of the arm's times to another's, one ratio per round, in ascending order.
    fn times_by(&self, arm: usize, other: usize) -> Option<Vec<f64>> {
        let rounds = self.samples[arm].as_ref()?.iter().zip(self.samples[other].as_ref()?);
        Some(sorted(rounds.map(|(own, other)| own.wall_ns as f64 / other.wall_ns as f64)))
    }

    /// Returns the median ratio of the arm's times to the baseline's.
    fn time(&self, arm: usize) -> Option<f64> {
        self.times_by(arm, 0).map(|times| median(&times))
    }

    /// Returns the median of one quantity over the arm's samples.
    fn median(&self, arm: usize, figure: impl Fn(&Sample) -> f64) -> Option<f64> {
        Some(median(&sorted(self.samples[arm].as_ref()?.iter().map(figure))))
    }

    fn peak_bytes(&self, arm: usize) -> Option<f64> {
        self.median(arm, |sample| sample.peak_rss_bytes as f64)
    }

    /// Returns the pattern's cells in the table of all patterns.
    fn cells(&self) -> Vec<String> {
        let arms = 0..self.samples.len();
        let baseline_ms = self.median(0, |sample| sample.wall_ns as f64 / 1e6).unwrap_or_default();
        let time = |arm, ratio| if arm == 0 { format!("{baseline_ms:.0}") } else { format!("{ratio:.2}") };
        let times = cells(arms.clone().map(|arm| self.time(arm)), time);
        let peaks = cells(arms.map(|arm| self.peak_bytes(arm)), |_, bytes| mib(bytes));
        [vec![self.pattern.name.to_owned()], times, peaks].concat()
    }
}

pub(crate) fn render(arms: &[&Arm], rows: &[Row], warm: bool) -> String {
    let time = if warm { "Time of a process's second run" } else { "Time" };
    let heads = |unit: &str| arms.iter().map(|arm| format!("{}{unit}", arm.name)).collect::<Vec<_>>();
    let mut head = [vec!["pattern".to_owned()], heads(""), heads(" MiB")].concat();
    head[1] += " ms";
    let patterns = table(head, rows.iter().map(Row::cells));
    let means = table(
        [vec!["patterns".to_owned()], heads("")].concat(),
        GROUPS.iter().filter_map(|&(is_small, title)| {
            let group: Vec<_> = rows.iter().filter(|row| row.pattern.is_small == is_small).collect();
            let means = cells((0..arms.len()).map(|arm| mean_time(&group, arm)), |_, mean| format!("{mean:.3}"));
            (!group.is_empty()).then(|| [vec![title.to_owned()], means].concat())
        }),
    );
    let breaches =
        arms.iter().position(|arm| arm.name == OURS).map_or(String::new(), |ours| breaches(arms, rows, ours));
    format!(
        "{time} by {BASELINE}'s (the median of the rounds' ratios; {BASELINE}'s own in ms), then the peak of resident memory \
         in MiB; the best in bold.\n\n{patterns}\n\nGeometric means of the times by {BASELINE}'s.\n\n{means}\n{breaches}"
    )
}

fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}

/// Returns a row's cells for one quantity, with the smallest value in bold.
fn cells(values: impl Iterator<Item = Option<f64>>, show: impl Fn(usize, f64) -> String) -> Vec<String> {
    let values: Vec<_> = values.collect();
    let best = values.iter().flatten().copied().reduce(f64::min);
    let cell = |(index, value): (usize, &Option<f64>)| match *value {
        None => "failed".into(),
        Some(value) if Some(value) == best => format!("**{}**", show(index, value)),
        Some(value) => show(index, value),
    };
    values.iter().enumerate().map(cell).collect()
}

fn table(head: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(head).add_rows(rows);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table.trim_fmt()
}

/// Returns the geometric mean of the arm's times relative to the baseline's. Returns `None` if the arm failed in any pattern: the mean of
/// the other patterns would make the arm look better than it is.
fn mean_time(rows: &[&Row], arm: usize) -> Option<f64> {
    let logs = rows.iter().map(|row| Some(row.time(arm)?.ln())).collect::<Option<Vec<_>>>()?;
    Some((logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Lists the patterns in which zk-alloc is slower than its slowest peer, or uses more than [`ALLOWED`] times the memory of the largest or
/// of the smallest peer.
fn breaches(arms: &[&Arm], rows: &[Row], ours: usize) -> String {
    let peers = || (0..arms.len()).filter(|&arm| arm != ours);
    let mut lines = String::new();
    for row in rows {
        let mut breach = |what: String| lines += &format!("- {}: {what}\n", row.pattern.name);
        let by_time = peers().filter_map(|arm| Some((row.time(arm)?, arm)));
        if let (Some(time), Some((slowest, peer))) =
            (row.time(ours), by_time.max_by(|one, other| one.0.total_cmp(&other.0)))
            && time > slowest
            && let Some(times) = row.times_by(ours, peer)
        {
            let (median, least, most) = (median(&times), times[0], times[times.len() - 1]);
            let name = arms[peer].name;
            breach(format!(
                "{median:.2} of the time of the slowest peer, {name} ({least:.2} to {most:.2} in the rounds)"
            ));
        }
        let Some(peak) = row.peak_bytes(ours) else { continue };
        let mut peaks: Vec<_> = peers().filter_map(|arm| Some((row.peak_bytes(arm)?, arms[arm].name))).collect();
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

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the median of sorted values. There must be at least one.
fn median(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}
