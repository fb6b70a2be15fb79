//! Differences from the baseline that count, and the arms that offer one.

use crate::results::proof::Proof;
use crate::results::record::{ArmResult, Run, WorkloadResult};
use crate::results::stats::{Ratio, Verdict};
use crate::results::summary::{self, Summary};
use crate::results::view::{self, LEAST_TIME_CHANGE};
use crate::sample::Sample;

/// Smallest change of peak RSS that counts, as a share of the baseline's. Memory is read every 20 ms, so the peaks of
/// equal runs differ by a few percent. Memory limits are set in coarser steps.
pub(super) const LEAST_MEMORY_CHANGE: f64 = 0.05;
/// Smallest change of page faults worth mentioning, as a share of the baseline's. The measured time includes the cost
/// of faults, so a smaller change explains nothing.
pub(super) const LEAST_FAULTS_CHANGE: f64 = 0.10;

/// How a figure of one arm compares with another arm's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Less,
    More,
    /// No difference is shown, or it is too small.
    None,
}

impl Change {
    /// The change that `ratio` shows, if changes count from the share `least` on.
    pub(super) fn of(ratio: &Ratio, least: f64) -> Self {
        match ratio.verdict() {
            Verdict::Faster if ratio.median <= 1.0 - least => Self::Less,
            Verdict::Slower if ratio.median >= 1.0 + least => Self::More,
            _ => Self::None,
        }
    }
}

/// The time of one arm relative to another's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) wall: Ratio,
    /// CPU time, if wall time is too noisy for a verdict and CPU time gives one.
    pub(super) cpu: Option<Ratio>,
    pub(super) change: Change,
}

impl Time {
    /// `None` if there are too few rounds for an interval.
    fn of(run: &Run, arm: &ArmResult, other: &ArmResult) -> Option<Self> {
        let wall = ratio(run, arm, other, |sample| sample.wall_ns)?;
        let interval = wall.believed()?;
        // CPU time decides only if the noise of wall time could hide a change of that size.
        let hides = |change| match change {
            Change::Less => interval.low <= 1.0 - LEAST_TIME_CHANGE,
            Change::More => interval.high >= 1.0 + LEAST_TIME_CHANGE,
            Change::None => false,
        };
        let cpu = ratio(run, arm, other, Sample::cpu_ns)
            .filter(|cpu| wall.verdict() == Verdict::NoDifferenceShown && hides(Change::of(cpu, LEAST_TIME_CHANGE)));
        Some(Self { wall, cpu, change: Change::of(&cpu.unwrap_or(wall), LEAST_TIME_CHANGE) })
    }
}

/// An arm that is compared with the baseline.
#[derive(Clone, Debug)]
pub(super) struct Offer<'a> {
    pub(super) arm: &'a ArmResult,
    pub(super) figures: &'a Summary,
    pub(super) time: Time,
    /// Peak RSS. A saving must be shown round by round. For a cost it is enough that the highest peaks differ by more
    /// than the threshold.
    pub(super) memory: Change,
}

impl<'a> Offer<'a> {
    fn of(run: &Run, base: &ArmResult, arm: &'a ArmResult) -> Option<Self> {
        let figures = view::figures(arm)?;
        let shown = ratio(run, arm, base, |sample| sample.peak_rss_bytes).map(|ratio| ratio.verdict());
        let memory = match figures.peak_rss_ratio {
            Some(ratio) if ratio > 1.0 + LEAST_MEMORY_CHANGE => Change::More,
            Some(ratio) if ratio <= 1.0 - LEAST_MEMORY_CHANGE && shown == Some(Verdict::Faster) => Change::Less,
            _ => Change::None,
        };
        Some(Self { arm, figures, time: Time::of(run, arm, base)?, memory })
    }

    pub(super) fn gains(&self) -> bool {
        self.time.change == Change::Less || self.memory == Change::Less
    }

    pub(super) fn costs(&self) -> bool {
        self.time.change == Change::More || self.memory == Change::More
    }

    fn peak_bytes(&self) -> u64 {
        self.figures.peak_rss_bytes.unwrap_or(u64::MAX)
    }

    /// The time relative to another arm's.
    pub(super) fn against(&self, run: &Run, other: &Self) -> Option<Change> {
        Some(Time::of(run, self.arm, other.arm)?.change)
    }
}

/// All arms except `base` that have enough rounds for a verdict.
pub(super) fn offers<'a>(run: &Run, workload: &'a WorkloadResult, base: &ArmResult) -> Vec<Offer<'a>> {
    let others = workload.arms.iter().filter(|arm| arm.label != base.label);
    others.filter_map(|arm| Offer::of(run, base, arm)).collect()
}

/// The offers that gain something, from the one with the lowest peak to the fastest. Each next offer has a higher peak,
/// and saves enough time to be worth it.
pub(super) fn front<'a, 'b>(run: &Run, offers: &'b [Offer<'a>]) -> Vec<&'b Offer<'a>> {
    let mut gaining: Vec<_> = offers.iter().filter(|offer| offer.gains()).collect();
    gaining.sort_by(|a, b| {
        let medians = a.time.wall.median.total_cmp(&b.time.wall.median);
        a.peak_bytes().cmp(&b.peak_bytes()).then(medians)
    });
    let mut front: Vec<&Offer<'a>> = Vec::new();
    for offer in gaining {
        if front.iter().all(|leaner| offer.against(run, leaner) == Some(Change::Less)) {
            front.push(offer);
        }
    }
    front
}

/// The ratio of a figure between the warm samples of two arms, round by round.
pub(super) fn ratio(run: &Run, arm: &ArmResult, other: &ArmResult, figure: fn(&Sample) -> u64) -> Option<Ratio> {
    let ratios = summary::ratios(&arm.samples, &other.samples, Proof::is_warm, figure);
    Ratio::of_processes(&ratios, run.seed)
}
