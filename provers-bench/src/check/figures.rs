//! The figures of a workload that the gate holds, computed from its result.

use crate::arms;
use crate::results::record::{ArmResult, Outcome, WorkloadResult};
use crate::results::stats::{Ratio, median};
use crate::results::{format, view};
use serde::{Deserialize, Serialize};

/// The arm that is held to the baseline.
pub(super) const HELD: &str = arms::OURS;
/// The arm that time and memory are compared with.
pub(super) const REFERENCE: &str = arms::BASELINE;
/// Figures of zk-alloc's proofs. Lower is better.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Lower quartile of a warm proof's minor faults. It hides the occasional growth of glibc's heaps, which is larger
    /// on a busy machine. It shows a buffer that every proof faults in again.
    pub(super) minor_faults: u64,
    /// Median calls of the arena into the kernel in a warm proof.
    pub(super) system_calls: u64,
    /// Median growth of live page runs and slab blocks in a warm proof, in bytes: the memory that left its phase, the
    /// proof included.
    pub(super) escaped_bytes: u64,
    /// Highest resident memory over all proofs, divided by glibc's.
    pub(super) peak_rss_ratio: f64,
    /// Wall-clock time, divided by glibc's round by round; `None` if there are too few rounds.
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
    /// The figures of a result in which both arms finished. Otherwise the reason why it has none.
    pub(super) fn of(result: &WorkloadResult) -> Result<Self, String> {
        let held = arm(result, HELD)?;
        arm(result, REFERENCE)?;
        let summary = held.summary.as_ref().ok_or_else(|| format!("{HELD} has no figures"))?;
        let unreported = |name: &str| format!("{HELD} does not report {name}");
        let counter = |name: &str| warm_median(held, name).ok_or_else(|| unreported(name));
        Ok(Self {
            minor_faults: fewest_faults(held).ok_or("there is no warm proof")?,
            system_calls: summary.warm_system_calls.ok_or_else(|| unreported("system calls"))?,
            escaped_bytes: counter("escaped_bytes")?,
            peak_rss_ratio: rounded(summary.peak_rss_ratio.ok_or("no memory was measured")?),
            warm_time_ratio: summary.wall_ratio.and_then(TimeRatio::of),
        })
    }
}

impl TimeRatio {
    fn of(ratio: Ratio) -> Option<Self> {
        let interval = ratio.believed()?;
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

/// The lower quartile of the warm proofs' minor faults.
fn fewest_faults(arm: &ArmResult) -> Option<u64> {
    let mut faults: Vec<u64> = view::warm(arm).map(|proof| proof.sample.minflt).collect();
    faults.sort_unstable();
    faults.get(faults.len() / 4).copied()
}

/// The median of one of our arm's counters; `None` if a warm proof does not report it, or no warm proof was made.
fn warm_median(arm: &ArmResult, counter: &str) -> Option<u64> {
    let values: Option<Vec<f64>> =
        view::warm(arm).map(|proof| Some(*proof.sample.counters.get(counter)? as f64)).collect();
    median(&values?).map(|value| value.round() as u64)
}

/// Rounds to the digits that a reader of the file needs.
fn rounded(ratio: f64) -> f64 {
    (ratio * 1e4).round() / 1e4
}
