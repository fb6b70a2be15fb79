//! From samples to the figures of a table row.

use crate::results::record::{ArmResult, Outcome, Proof};
use crate::results::stats::{Ratio, Verdict, median};
use crate::sample::Sample;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Figures of one arm. Cold and warm proofs are never mixed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Median wall-clock time of the processes' first proofs.
    pub(crate) cold_wall_ns: Option<u64>,
    /// Cold wall-clock time as a ratio to the baseline's, process by process.
    pub(crate) cold_ratio: Option<Ratio>,
    /// Median wall-clock time of the warm proofs.
    pub(crate) warm_wall_ns: Option<u64>,
    /// Median CPU time of the warm proofs, user and kernel.
    pub(crate) warm_cpu_ns: Option<u64>,
    /// Median minor faults of the warm proofs.
    pub(crate) warm_minflt: Option<u64>,
    /// Median calls of the arena into the kernel in a warm proof; `None` for an allocator that does not count them.
    pub(crate) warm_system_calls: Option<u64>,
    /// Highest resident memory over all proofs.
    pub(crate) peak_rss_bytes: Option<u64>,
    /// The same, divided by the baseline's.
    pub(crate) peak_rss_ratio: Option<f64>,
    /// Resident memory after the last proof was dropped.
    pub(crate) resting_rss_bytes: Option<u64>,
    /// Warm wall-clock time as a ratio to the baseline's, round by round; `None` for the baseline itself, and where it
    /// failed.
    pub(crate) wall_ratio: Option<Ratio>,
    /// Warm CPU time, likewise.
    pub(crate) cpu_ratio: Option<Ratio>,
    /// What `wall_ratio` says.
    pub(crate) verdict: Option<Verdict>,
}

/// Summarises every arm that did not fail, against the arm at `baseline`.
pub(crate) fn summarise(arms: &mut [ArmResult], baseline: usize, seed: u64) {
    let reference = arms.get(baseline).filter(|arm| trusted(arm)).map(|arm| arm.samples.clone());
    for (index, arm) in arms.iter_mut().enumerate().filter(|(_, arm)| trusted(arm)) {
        let reference = reference.as_deref().filter(|_| index != baseline);
        arm.summary = Some(Summary::of(&arm.samples, reference, seed));
    }
}

impl Summary {
    fn of(samples: &[Proof], reference: Option<&[Proof]>, seed: u64) -> Self {
        let median_of = |proofs: fn(&Proof) -> bool, figure: fn(&Sample) -> Option<u64>| {
            let chosen = samples.iter().filter(|proof| proofs(proof));
            let values: Vec<f64> = chosen.filter_map(|proof| figure(&proof.sample)).map(|value| value as f64).collect();
            median(&values).map(|value| value.round() as u64)
        };
        let ratio_of = |proofs: fn(&Proof) -> bool, figure: fn(&Sample) -> u64| {
            Ratio::of_processes(&ratios(samples, reference?, proofs, figure), seed)
        };
        let wall_ratio = ratio_of(Proof::is_warm, |sample| sample.wall_ns);
        let peak_rss_bytes = peak_rss_bytes(samples);
        Self {
            cold_wall_ns: median_of(Proof::is_cold, |sample| Some(sample.wall_ns)),
            cold_ratio: ratio_of(Proof::is_cold, |sample| sample.wall_ns),
            warm_wall_ns: median_of(Proof::is_warm, |sample| Some(sample.wall_ns)),
            warm_cpu_ns: median_of(Proof::is_warm, |sample| Some(sample.cpu_ns())),
            warm_minflt: median_of(Proof::is_warm, |sample| Some(sample.minflt)),
            warm_system_calls: median_of(Proof::is_warm, |sample| sample.counters.get(SYSTEM_CALLS).copied()),
            peak_rss_ratio: peak_rss_bytes
                .zip(reference.and_then(self::peak_rss_bytes))
                .filter(|(_, reference)| *reference > 0)
                .map(|(bytes, reference)| bytes as f64 / reference as f64),
            peak_rss_bytes,
            resting_rss_bytes: samples.last().map(|proof| proof.sample.rss_bytes),
            wall_ratio,
            cpu_ratio: ratio_of(Proof::is_warm, Sample::cpu_ns),
            verdict: wall_ratio.map(|ratio| ratio.verdict()),
        }
    }
}

/// The counter of calls into the kernel, of an allocator that has one.
const SYSTEM_CALLS: &str = "system_calls";
/// The gauge of the most bytes in use at once, likewise.
const PEAK_LIVE_BYTES: &str = "peak_live_bytes";

/// The most bytes in use at once in any process of `arms`, as far as their allocators say.
pub(crate) fn live_peak_bytes(arms: &[ArmResult]) -> Option<u64> {
    let samples = arms.iter().filter(|arm| trusted(arm)).flat_map(|arm| &arm.samples);
    samples.filter_map(|proof| proof.sample.gauges.get(PEAK_LIVE_BYTES)).max().copied()
}

/// How wide the widest interval is, in parts of the baseline's time: infinite while one is missing, 0 if there is
/// nothing to compare.
pub(crate) fn widest_interval(arms: &[ArmResult], baseline: usize, seed: u64) -> f64 {
    let reference = &arms[baseline];
    let others =
        arms.iter().enumerate().filter(|(index, arm)| *index != baseline && trusted(arm) && trusted(reference));
    let widths = others.map(|(_, arm)| {
        let ratios = ratios(&arm.samples, &reference.samples, Proof::is_warm, |sample| sample.wall_ns);
        let believed = Ratio::of_processes(&ratios, seed).and_then(|ratio| ratio.believed());
        believed.map_or(f64::INFINITY, |interval| interval.high - interval.low)
    });
    widths.fold(0.0, f64::max)
}

fn trusted(arm: &ArmResult) -> bool {
    matches!(arm.outcome, Outcome::Finished | Outcome::Interrupted)
}

fn peak_rss_bytes(samples: &[Proof]) -> Option<u64> {
    samples.iter().map(|proof| proof.sample.peak_rss_bytes).max()
}

/// One ratio for each warm round that both proved in, a list a process.
pub(crate) fn warm_ratios(samples: &[Proof], reference: &[Proof], figure: fn(&Sample) -> u64) -> Vec<Vec<f64>> {
    ratios(samples, reference, Proof::is_warm, figure)
}

/// One ratio for each round that both proved in, a list a process.
fn ratios(
    samples: &[Proof],
    reference: &[Proof],
    proofs: fn(&Proof) -> bool,
    figure: fn(&Sample) -> u64,
) -> Vec<Vec<f64>> {
    let mut processes: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for proof in samples.iter().filter(|proof| proofs(proof)) {
        let place = (proof.process, proof.round);
        let Some(other) = reference.iter().find(|other| (other.process, other.round) == place) else { continue };
        let divisor = figure(&other.sample) as f64;
        if divisor > 0.0 {
            processes.entry(proof.process).or_default().push(figure(&proof.sample) as f64 / divisor);
        }
    }
    processes.into_values().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sample::{Counters, tests::sample};

    /// An arm whose proof in round `i` took `wall_ns[i]`, in processes of a cold and two warm proofs each; the cold
    /// proofs all took `wall_ns[0]`.
    pub(crate) fn arm(label: &str, outcome: Outcome, wall_ns: &[u64]) -> ArmResult {
        let proof = |process, round, ns| Proof { process, round, order: 0, sample: sample(ns, Counters::new()) };
        let mut samples: Vec<_> = wall_ns.iter().take(1).map(|&ns| proof(0, 0, ns)).collect();
        for (round, &ns) in (1..).zip(&wall_ns[wall_ns.len().min(1)..]) {
            let process = (round - 1) / 2;
            if process > 0 && round % 2 == 1 {
                samples.push(proof(process, 0, wall_ns[0]));
            }
            samples.push(proof(process, round, ns));
        }
        ArmResult {
            label: label.to_owned(),
            arm: label.to_owned(),
            outcome,
            known_to_fail: None,
            identity: None,
            summary: None,
            samples,
            rss_over_time: Vec::new(),
            stderr: Vec::new(),
        }
    }

    /// Slow rounds are slow for all: the ratio must come out exact where the times differ by a factor of 4.
    #[test]
    fn ratios_are_taken_within_a_round_and_cold_and_warm_apart() {
        let mut arms = [
            arm("glibc", Outcome::Finished, &[100, 100, 400, 200, 100, 100, 300, 100, 200]),
            arm("zk-alloc", Outcome::Finished, &[900, 50, 200, 100, 50, 50, 150, 50, 100]),
        ];
        summarise(&mut arms, 0, 1);
        assert!(widest_interval(&arms, 0, 1) < 1e-9, "equal ratios leave no doubt");
        assert_eq!(widest_interval(&[arms[0].clone(), arm("x", Outcome::Finished, &[1, 2])], 0, 1), f64::INFINITY);
        let [glibc, ours] = arms.map(|arm| arm.summary.unwrap());
        assert_eq!((glibc.wall_ratio, glibc.verdict, glibc.peak_rss_ratio), (None, None, None));
        let (warm, cold) = (ours.wall_ratio.unwrap(), ours.cold_ratio.unwrap());
        assert_eq!((warm.median, warm.rounds, warm.processes), (0.5, 8, 4));
        assert_eq!((cold.median, cold.rounds, cold.processes), (9.0, 4, 4));
        assert_eq!((ours.verdict, ours.peak_rss_ratio), (Some(Verdict::Faster), Some(1.0)));
        assert_eq!((ours.cold_wall_ns, ours.warm_wall_ns), (Some(900), Some(75)));
    }

    /// What only our allocator counts must come through, and its level must not be summed.
    #[test]
    fn system_calls_are_a_median_and_the_live_peak_is_a_maximum() {
        let mut ours = arm("zk-alloc", Outcome::Finished, &[1, 2, 3, 4]);
        for (proof, (calls, live)) in ours.samples.iter_mut().zip([(99, 1), (2, 9), (2, 7), (4, 8), (2, 9)]) {
            proof.sample.counters.insert(SYSTEM_CALLS.into(), calls);
            proof.sample.gauges.insert(PEAK_LIVE_BYTES.into(), live);
        }
        let mut arms = [arm("glibc", Outcome::Finished, &[1, 2, 3, 4]), ours];
        summarise(&mut arms, 0, 1);
        assert_eq!(arms.each_ref().map(|arm| arm.summary.as_ref().unwrap().warm_system_calls), [None, Some(2)]);
        assert_eq!((live_peak_bytes(&arms), live_peak_bytes(&arms[..1])), (Some(9), None));
    }

    /// A wrong proof may be a fast one: neither its arm nor anything compared with it may show a figure.
    #[test]
    fn a_failed_arm_has_no_figures_and_is_no_baseline() {
        let failed = Outcome::Failed { round: 2, reason: "died".into() };
        let mut arms = [arm("glibc", failed, &[1, 2]), arm("zk-alloc", Outcome::Finished, &[1, 2, 3])];
        summarise(&mut arms, 0, 1);
        assert_eq!(arms[0].summary, None);
        let ours = arms[1].summary.as_ref().unwrap();
        assert_eq!((ours.warm_wall_ns, ours.wall_ratio), (Some(3), None));
    }
}
