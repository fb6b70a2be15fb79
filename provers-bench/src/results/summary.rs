//! Computes the figures of a table row from samples.

use crate::results::proof::Proof;
use crate::results::stats::{Ratio, Verdict, whole_median};
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
    /// CPU time of the first proofs as a ratio to the baseline's, process by process.
    #[serde(default)]
    pub(crate) cold_cpu_ratio: Option<Ratio>,
    /// Median CPU time of the processes' first proofs, user and kernel.
    #[serde(default)]
    pub(crate) cold_cpu_ns: Option<u64>,
    /// Median minor faults of the processes' first proofs.
    #[serde(default)]
    pub(crate) cold_minflt: Option<u64>,
    /// Median wall-clock time of the warm proofs.
    pub(crate) warm_wall_ns: Option<u64>,
    /// Median CPU time of the warm proofs, user and kernel.
    pub(crate) warm_cpu_ns: Option<u64>,
    /// Median kernel time of the warm proofs.
    #[serde(default)]
    pub(crate) warm_sys_ns: Option<u64>,
    /// Median minor faults of the warm proofs.
    pub(crate) warm_minflt: Option<u64>,
    /// Median system calls of the arena in a warm proof; `None` for an allocator that does not count them.
    pub(crate) warm_system_calls: Option<u64>,
    /// Highest resident memory over all proofs.
    pub(crate) peak_rss_bytes: Option<u64>,
    /// `peak_rss_bytes` divided by the baseline's.
    pub(crate) peak_rss_ratio: Option<f64>,
    /// Median of resident memory summed over the time of a warm proof, in byte seconds: the memory that a proof costs
    /// its host.
    #[serde(default)]
    pub(crate) warm_byte_seconds: Option<u64>,
    /// Resident memory after the last proof was dropped.
    pub(crate) resting_rss_bytes: Option<u64>,
    /// Warm wall-clock time as a ratio to the baseline's, round by round; `None` for the baseline itself, and if the
    /// baseline failed.
    pub(crate) wall_ratio: Option<Ratio>,
    /// Warm CPU time as a ratio to the baseline's, round by round.
    pub(crate) cpu_ratio: Option<Ratio>,
    /// The conclusion from `wall_ratio`.
    pub(crate) verdict: Option<Verdict>,
}

impl Summary {
    /// The figures of `samples`, against the baseline's samples `reference`. For the baseline itself, `reference` is
    /// `None`.
    pub(crate) fn of(samples: &[Proof], reference: Option<&[Proof]>, seed: u64) -> Self {
        let median_of = |proofs: fn(&Proof) -> bool, figure: fn(&Sample) -> Option<u64>| {
            whole_median(samples.iter().filter(|proof| proofs(proof)).filter_map(|proof| figure(&proof.sample)))
        };
        let ratio_of = |proofs: fn(&Proof) -> bool, figure: fn(&Sample) -> u64| {
            Ratio::of_processes(&ratios(samples, reference?, proofs, figure), seed)
        };
        let wall_ratio = ratio_of(Proof::is_warm, |sample| sample.wall_ns);
        let peak_rss_bytes = peak_rss_bytes(samples);
        Self {
            cold_wall_ns: median_of(Proof::is_cold, |sample| Some(sample.wall_ns)),
            cold_ratio: ratio_of(Proof::is_cold, |sample| sample.wall_ns),
            cold_cpu_ratio: ratio_of(Proof::is_cold, Sample::cpu_ns),
            cold_cpu_ns: median_of(Proof::is_cold, |sample| Some(sample.cpu_ns())),
            cold_minflt: median_of(Proof::is_cold, |sample| Some(sample.minflt)),
            warm_wall_ns: median_of(Proof::is_warm, |sample| Some(sample.wall_ns)),
            warm_cpu_ns: median_of(Proof::is_warm, |sample| Some(sample.cpu_ns())),
            warm_sys_ns: median_of(Proof::is_warm, |sample| Some(sample.sys_ns)),
            warm_minflt: median_of(Proof::is_warm, |sample| Some(sample.minflt)),
            warm_system_calls: median_of(Proof::is_warm, |sample| sample.counters.get(SYSTEM_CALLS).copied()),
            peak_rss_ratio: peak_rss_bytes
                .zip(reference.and_then(self::peak_rss_bytes))
                .filter(|(_, reference)| *reference > 0)
                .map(|(bytes, reference)| bytes as f64 / reference as f64),
            peak_rss_bytes,
            warm_byte_seconds: whole_median(
                samples.iter().filter(|proof| proof.is_warm()).filter_map(|proof| proof.byte_seconds),
            ),
            resting_rss_bytes: samples.last().map(|proof| proof.sample.rss_bytes).filter(|bytes| *bytes > 0),
            wall_ratio,
            cpu_ratio: ratio_of(Proof::is_warm, Sample::cpu_ns),
            verdict: wall_ratio.map(|ratio| ratio.verdict()),
        }
    }
}

/// Counter of the arena's system calls, for allocators that have it.
const SYSTEM_CALLS: &str = "system_calls";
fn peak_rss_bytes(samples: &[Proof]) -> Option<u64> {
    // A command may exit before the first sample of its memory; then the peak is 0.
    samples.iter().map(|proof| proof.sample.peak_rss_bytes).max().filter(|bytes| *bytes > 0)
}

/// Ratios of warm wall-clock times: one list per process, one ratio per warm round that both arms proved.
pub(crate) fn warm_wall_ratios(samples: &[Proof], reference: &[Proof]) -> Vec<Vec<f64>> {
    ratios(samples, reference, Proof::is_warm, |sample| sample.wall_ns)
}

/// Ratios of a figure: one list per process, one ratio per round that both arms proved.
pub(crate) fn ratios(
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
