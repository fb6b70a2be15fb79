//! Samples, and the figures computed from them.

use crate::arms::{Arm, BASELINE};
use crate::measure::Sample;
use crate::patterns::{Group, Pattern};

/// One run. `arm` and `pattern` are indices into the lists of [`Results`].
struct Row {
    round: u32,
    arm: usize,
    pattern: usize,
    sample: Sample,
}

pub(crate) struct Results {
    pub(crate) arms: Vec<&'static Arm>,
    pub(crate) patterns: Vec<&'static Pattern>,
    rows: Vec<Row>,
    /// Arms that failed patterns. They have no figures there, even if earlier rounds passed.
    failed: Vec<(usize, usize)>,
}

/// The median of some ratios, and their range.
#[derive(Clone, Copy)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Results {
    pub(crate) fn new(arms: Vec<&'static Arm>, patterns: Vec<&'static Pattern>) -> Self {
        Self { arms, patterns, rows: Vec::new(), failed: Vec::new() }
    }

    pub(crate) fn add(&mut self, round: u32, arm: usize, pattern: usize, sample: Sample) {
        self.rows.push(Row { round, arm, pattern, sample });
    }

    pub(crate) fn fail(&mut self, arm: usize, pattern: usize) {
        self.failed.push((arm, pattern));
    }

    pub(crate) fn has_failed(&self, arm: usize, pattern: usize) -> bool {
        self.failed.contains(&(arm, pattern))
    }

    /// The index of an arm that took part.
    pub(crate) fn arm(&self, name: &str) -> Option<usize> {
        self.arms.iter().position(|arm| arm.name == name)
    }

    fn of(&self, arm: usize, pattern: usize) -> impl Iterator<Item = &Row> {
        let valid = !self.has_failed(arm, pattern);
        self.rows.iter().filter(move |row| valid && row.arm == arm && row.pattern == pattern)
    }

    /// The median of the arm's times, in milliseconds.
    pub(crate) fn time_ms(&self, arm: usize, pattern: usize) -> Option<f64> {
        median(self.of(arm, pattern).map(|row| row.sample.wall_ns as f64 / 1e6).collect())
    }

    /// The median of the arm's peaks.
    pub(crate) fn peak_bytes(&self, arm: usize, pattern: usize) -> Option<f64> {
        median(self.of(arm, pattern).map(|row| row.sample.peak_rss_bytes as f64).collect())
    }

    /// The arm's time relative to another's, round by round.
    pub(crate) fn time_by(&self, arm: usize, other: usize, pattern: usize) -> Option<Ratio> {
        let in_round = |round| self.of(other, pattern).find(|row| row.round == round);
        let ratios: Vec<f64> = self
            .of(arm, pattern)
            .filter_map(|row| Some(row.sample.wall_ns as f64 / in_round(row.round)?.sample.wall_ns as f64))
            .collect();
        let least = ratios.iter().copied().reduce(f64::min)?;
        let most = ratios.iter().copied().reduce(f64::max)?;
        Some(Ratio { median: median(ratios)?, least, most })
    }

    /// The arm's time relative to the baseline's.
    pub(crate) fn time(&self, arm: usize, pattern: usize) -> Option<f64> {
        Some(self.time_by(arm, self.arm(BASELINE)?, pattern)?.median)
    }

    /// The geometric mean over a group of patterns of the arm's times, relative to the baseline's. `None` if the arm
    /// failed one of them, because the mean of the others would flatter it.
    pub(crate) fn mean_time(&self, arm: usize, group: Group) -> Option<f64> {
        let patterns = (0..self.patterns.len()).filter(|&pattern| self.patterns[pattern].group == group);
        let logs = patterns.map(|pattern| Some(self.time(arm, pattern)?.ln())).collect::<Option<Vec<f64>>>()?;
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (middle, odd) = (values.len() / 2, values.len() % 2 == 1);
    let upper = *values.get(middle)?;
    Some(if odd { upper } else { f64::midpoint(values[middle - 1], upper) })
}
