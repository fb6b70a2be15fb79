//! What is held of a workload, taken from its result.

use super::{HELD, REFERENCE};
use crate::record::{ArmResult, Outcome, WorkloadResult};
use crate::report::format;
use crate::sample::Sample;
use crate::stats::{MIN_ROUNDS_FOR_VERDICT, Ratio, median};
use serde::{Deserialize, Serialize};

/// Figures of zk-alloc's warm proofs. Each is better the smaller it is.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Minor faults of a proof; like those below, the median.
    pub(super) minor_faults: u64,
    /// Calls of the arena into the kernel.
    pub(super) system_calls: u64,
    /// Bytes by which page runs and pinned slabs grew in the proof: what left its phase, the proof included.
    pub(super) escaped_bytes: u64,
    /// Slabs that were pinned anew.
    pub(super) pinned_slabs: u64,
    /// Highest resident memory of all proofs, divided by glibc's.
    pub(super) peak_rss_ratio: f64,
    /// Wall-clock time, divided by glibc's round by round; `None` from too few rounds.
    pub(super) warm_time_ratio: Option<TimeRatio>,
}

/// A ratio and its 95% interval.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimeRatio {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Figures {
    /// Of a result in which both arms finished; otherwise why there are none.
    pub(super) fn of(result: &WorkloadResult) -> Result<Self, String> {
        let (held, reference) = (arm(result, HELD)?, arm(result, REFERENCE)?);
        let peak = |arm: &ArmResult| arm.samples.iter().map(|proof| proof.sample.peak_rss_bytes).max();
        let peaks = peak(held).zip(peak(reference)).filter(|&(_, reference)| reference > 0);
        let (held_peak, reference_peak) = peaks.ok_or("no memory was measured")?;
        let counter = |name: &str| {
            warm_median(held, |sample| sample.counters.get(name).copied())
                .ok_or_else(|| format!("{HELD} does not report {name}"))
        };
        let wall_ratio = held.summary.as_ref().and_then(|summary| summary.wall_ratio);
        Ok(Self {
            minor_faults: warm_median(held, |sample| Some(sample.minflt)).ok_or("there is no warm proof")?,
            system_calls: counter("system_calls")?,
            escaped_bytes: counter("escaped_bytes")?,
            pinned_slabs: counter("pinned_slabs")?,
            peak_rss_ratio: rounded(held_peak as f64 / reference_peak as f64),
            warm_time_ratio: wall_ratio.and_then(TimeRatio::of),
        })
    }
}

impl TimeRatio {
    fn of(ratio: Ratio) -> Option<Self> {
        let interval = ratio.interval.filter(|_| ratio.rounds >= MIN_ROUNDS_FOR_VERDICT)?;
        let (median, low, high) = (rounded(ratio.median), rounded(interval.low), rounded(interval.high));
        Some(Self { median, low, high })
    }
}

fn arm<'a>(result: &'a WorkloadResult, name: &str) -> Result<&'a ArmResult, String> {
    let arm = result.arms.iter().find(|arm| arm.arm == name).ok_or_else(|| format!("{name} took no part"))?;
    match (&arm.outcome, format::outcome(&arm.outcome)) {
        (Outcome::Finished, _) => Ok(arm),
        (_, text) => Err(format!("{name}: {}", text.unwrap_or_else(|| "did not finish".into()))),
    }
}

/// `None` if a warm proof does not tell, or there is none.
fn warm_median(arm: &ArmResult, figure: impl Fn(&Sample) -> Option<u64>) -> Option<u64> {
    let warm = arm.samples.iter().filter(|proof| proof.round > 0);
    let values: Option<Vec<f64>> = warm.map(|proof| Some(figure(&proof.sample)? as f64)).collect();
    median(&values?).map(|value| value.round() as u64)
}

/// To the digits that a file is read by.
fn rounded(ratio: f64) -> f64 {
    (ratio * 1e4).round() / 1e4
}
