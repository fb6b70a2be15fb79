//! Computes ratios between arms, their intervals, and the verdicts that follow, in pure functions.
//!
//! The machine is shared, so the same proof may take 0.8 s or 1.6 s. A round's ratio (arm / baseline) compares two
//! proofs made within seconds of each other, so most of the machine's state cancels out. The result is the median of
//! the rounds' ratios. A ratio of medians would not cancel the machine's state.
//!
//! Rounds are not the only source of variation. A process keeps its address layout, and the huge pages that it happened to get, for its
//! whole life. So rounds of the same pair of processes resemble each other more than rounds of different pairs. An interval over the rounds
//! alone treats them as independent, and is too narrow. With a standard deviation of 3% between processes and 3% within them, such an
//! interval shows a difference between equal arms in 10% to 24% of runs, instead of the promised 5%.
//!
//! The interval is therefore a percentile bootstrap at both levels: it draws processes first, then rounds within each (Davison and Hinkley,
//! "Bootstrap Methods and their Application", 1997, section 3.8). Because it draws at both levels, the scatter of rounds counts twice. This
//! compensates for the fact that a bootstrap over few processes is too narrow; the test below checks the promised error rate. If processes
//! differ more than rounds do, the compensation is not enough: intervals from four processes are wrong in about 9% of runs, from six in 6%.
//! In that case only more processes help, not more rounds per process.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Minimum number of processes for an interval.
pub(crate) const MIN_PROCESSES_FOR_INTERVAL: usize = 3;
/// Minimum number of processes for a verdict. With fewer, the interval contains the true value in less than 95% of runs.
pub(crate) const MIN_PROCESSES_FOR_VERDICT: usize = 4;
/// Minimum number of rounds, over all processes, for a verdict.
pub(crate) const MIN_ROUNDS_FOR_VERDICT: usize = 6;
/// Number of bootstrap resamples.
const RESAMPLES: usize = 10_000;
/// Share of the resampled medians that lie inside the interval.
const CONFIDENCE: f64 = 0.95;

/// A closed interval.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Interval {
    /// Lower end.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
}

/// A ratio to the baseline over several rounds; a ratio below 1 means less time than the baseline.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// Median of the rounds' ratios.
    pub(crate) median: f64,
    /// 95% interval of the median; `None` if there are too few processes.
    pub(crate) interval: Option<Interval>,
    /// Number of rounds that the ratio comes from.
    pub(crate) rounds: usize,
    /// Number of processes that made these rounds.
    #[serde(default)]
    pub(crate) processes: usize,
}

/// The verdict on an arm, compared with the baseline.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The whole interval is below 1.
    Faster,
    /// The whole interval is above 1.
    Slower,
    /// The interval contains 1.
    NoDifferenceShown,
    /// Too few rounds or processes for a reliable interval.
    TooFewRounds,
}

impl Ratio {
    /// Returns the median of all `ratios`, with its bootstrap interval. `ratios` has one list per process, with one ratio per round, and
    /// `seed` determines the resamples. Returns `None` if there are no rounds.
    pub(crate) fn of_processes(ratios: &[Vec<f64>], seed: u64) -> Option<Self> {
        let ratios: Vec<_> = ratios.iter().map(Vec::as_slice).filter(|rounds| !rounds.is_empty()).collect();
        let interval =
            (ratios.len() >= MIN_PROCESSES_FOR_INTERVAL).then(|| bootstrap_interval(&ratios, RESAMPLES, seed));
        let rounds = ratios.iter().map(|rounds| rounds.len()).sum();
        Some(Self { median: median(&ratios.concat())?, interval, rounds, processes: ratios.len() })
    }

    /// Returns the interval if there are enough rounds and processes to rely on it.
    pub(crate) fn believed(&self) -> Option<Interval> {
        let enough = self.rounds >= MIN_ROUNDS_FOR_VERDICT && self.processes >= MIN_PROCESSES_FOR_VERDICT;
        self.interval.filter(|_| enough)
    }

    /// Returns the verdict that follows from the interval.
    pub(crate) fn verdict(&self) -> Verdict {
        match self.believed() {
            None => Verdict::TooFewRounds,
            Some(interval) if interval.high < 1.0 => Verdict::Faster,
            Some(interval) if interval.low > 1.0 => Verdict::Slower,
            Some(_) => Verdict::NoDifferenceShown,
        }
    }
}

/// Returns the median of whole numbers, rounded; `None` if there are no values.
pub(crate) fn whole_median(values: impl Iterator<Item = u64>) -> Option<u64> {
    median(&values.map(|value| value as f64).collect::<Vec<_>>()).map(|median| median.round() as u64)
}

/// Returns the middle value, or the mean of the two middle values; `None` if there are no values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    (!sorted.is_empty()).then(|| median_in_place(&mut sorted))
}

/// Returns the median of at least one value. Reorders the values.
fn median_in_place(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let even = values.len().is_multiple_of(2);
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = below.iter().copied().max_by(f64::total_cmp);
    match lower {
        Some(lower) if even => f64::midpoint(lower, upper),
        _ => upper,
    }
}

/// Returns the bootstrap interval of the median. There must be at least one process, each with at least one round.
fn bootstrap_interval(processes: &[&[f64]], resamples: usize, seed: u64) -> Interval {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut resample = Vec::new();
    let mut medians: Vec<f64> = (0..resamples)
        .map(|_| {
            resample.clear();
            for _ in processes {
                let rounds = processes[rng.random_range(0..processes.len())];
                resample.extend(rounds.iter().map(|_| rounds[rng.random_range(0..rounds.len())]));
            }
            median_in_place(&mut resample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[((resamples - 1) as f64 * share).round() as usize];
    Interval { low: at((1.0 - CONFIDENCE) / 2.0), high: at(f64::midpoint(1.0, CONFIDENCE)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Standard deviations of ratios between processes, and between the rounds of one process.
    #[derive(Clone, Copy)]
    struct Scatter {
        between: f64,
        within: f64,
    }

    /// Draws a number from the standard normal distribution (Box and Muller).
    fn normal(rng: &mut StdRng) -> f64 {
        let (radius, angle): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// Draws random ratios around 1: a list per process, with a ratio per round.
    fn scattered(scatter: Scatter, processes: usize, rounds: usize, seed: u64) -> Vec<Vec<f64>> {
        let mut rng = StdRng::seed_from_u64(seed);
        let process = |rng: &mut StdRng| {
            let level = (scatter.between * normal(rng)).exp();
            (0..rounds).map(|_| level * (scatter.within * normal(rng)).exp()).collect()
        };
        (0..processes).map(|_| process(&mut rng)).collect()
    }

    /// Checks that intervals keep their promise of 95%: with the scatter observed in practice, at most one run in twenty may show a
    /// difference between equal arms. The bound is 5% plus two standard errors over 1000 runs. In the last case, processes differ as much
    /// as rounds do; an interval that treats rounds as independent would clearly fail it.
    #[test]
    fn equal_arms_are_told_apart_in_one_run_of_twenty_at_most() {
        const RUNS: u64 = 1000;
        let (seen, far) = (Scatter { between: 0.015, within: 0.05 }, Scatter { between: 0.03, within: 0.03 });
        for (scatter, processes, rounds, least, most) in [
            (seen, 4, 5, 0.01, 0.064),
            (seen, 5, 3, 0.01, 0.064),
            (seen, 6, 3, 0.01, 0.064),
            (seen, 10, 2, 0.01, 0.064),
            (far, 10, 2, 0.0, 0.075),
        ] {
            // Returns whether the interval misses the true value.
            let misses = |seed: &u64| {
                let ratios = scattered(scatter, processes, rounds, *seed);
                let ratios: Vec<_> = ratios.iter().map(Vec::as_slice).collect();
                let interval = bootstrap_interval(&ratios, 400, *seed);
                interval.low > 1.0 || interval.high < 1.0
            };
            let share = (0..RUNS).filter(misses).count() as f64 / RUNS as f64;
            assert!((least..most).contains(&share), "{share} of runs with {processes} processes of {rounds} rounds");
        }
    }
}
