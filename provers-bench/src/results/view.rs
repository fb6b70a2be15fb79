//! Functions with which reports read a recorded run: they find the baseline and our arm, and derive values from the samples.

use crate::arms::{self, OURS};
use crate::results::{
    AloneProof, ArmResult, Outcome, Proof, Ratio, Run, Summary, Sweep, Timed, Verdict, WorkloadResult, format,
    whole_median,
};

/// Returns the workload's name with its size, and with its number of threads in a sweep over threads.
pub(crate) fn name(run: &Run, workload: &WorkloadResult) -> String {
    if workload.timed.is_of_command() {
        return workload.workload.clone();
    }
    let name = format!("{} 2^{}", workload.workload, workload.log_rows);
    match (run.sweep, workload.threads) {
        (Some(Sweep::Threads), 1) => format!("{name} on 1 thread"),
        (Some(Sweep::Threads), threads) => format!("{name} on {threads} threads"),
        _ => name,
    }
}

/// Returns whether this arm's allocator is zk-alloc.
pub(crate) fn is_ours(arm: &ArmResult) -> bool {
    arms::named(&arm.arm).is_some_and(|arm| arm.is_ours)
}

/// Returns whether this arm is the baseline of the workload.
pub(crate) fn is_baseline(workload: &WorkloadResult, arm: &ArmResult) -> bool {
    arm.label == workload.baseline
}

/// Returns the summary of an arm, if the arm made any proof.
pub(crate) fn figures(arm: &ArmResult) -> Option<&Summary> {
    arm.summary.as_ref().filter(|_| !arm.samples.is_empty())
}

/// Returns the baseline arm and its summary.
pub(crate) fn baseline(workload: &WorkloadResult) -> Option<(&ArmResult, &Summary)> {
    let arm = workload.arms.iter().find(|arm| is_baseline(workload, arm))?;
    Some((arm, figures(arm)?))
}

/// Returns our arm and its summary: the one with default settings, or else the first variant.
pub(crate) fn ours(workload: &WorkloadResult) -> Option<(&ArmResult, &Summary)> {
    let ours = workload.arms.iter().filter(|arm| is_ours(arm) && !is_baseline(workload, arm));
    ours.filter_map(|arm| Some((arm, figures(arm)?))).min_by_key(|(arm, _)| arm.arm != OURS)
}

/// Returns the warm proofs of an arm.
pub(crate) fn warm(arm: &ArmResult) -> impl Iterator<Item = &Proof> + Clone {
    arm.samples.iter().filter(|proof| proof.is_warm())
}

/// Returns a percentile of the warm proofs' times: the share `part` of them took at most this long. `None` unless proofs were made at fixed
/// times.
pub(crate) fn latency_ns(workload: &WorkloadResult, arm: &ArmResult, part: f64) -> Option<u64> {
    let mut times: Vec<_> = warm(arm).map(|proof| proof.sample.wall_ns).collect();
    times.sort_unstable();
    let rank = (times.len() as f64 * part).ceil() as usize;
    times.get(rank.checked_sub(1)?).copied().filter(|_| workload.timed == Timed::Slots)
}

/// The smallest relevant change of time, as a share of the baseline's. The placement of code and data in memory alone changes a program's
/// time by a percent or more, and a smaller gain would not be worth the effort of deploying and testing a new allocator.
pub(crate) const MIN_TIME_CHANGE: f64 = 0.02;

/// Returns whether CPU time is exact enough to be compared. The kernel counts the CPU time of intervals in clock ticks of 10 ms.
pub(crate) fn has_exact_cpu_time(workload: &WorkloadResult, summary: &Summary) -> bool {
    /// A shorter time is not exact enough: a clock tick is 2% of it.
    const MIN_NS: u64 = 500_000_000;
    workload.timed != Timed::Intervals || summary.warm_cpu_ns.is_some_and(|ns| ns >= MIN_NS)
}

/// Returns the verdict on CPU time if wall time shows no difference and CPU time a relevant one. On a busy machine, CPU time is less noisy
/// than wall time.
fn cpu_verdict(summary: &Summary) -> Option<&'static str> {
    let counts = |ratio: &Ratio| (ratio.median - 1.0).abs() >= MIN_TIME_CHANGE;
    let no_difference = summary.verdict == Some(Verdict::NoDifferenceShown);
    match summary.cpu_ratio.filter(|ratio| no_difference && counts(ratio))?.verdict() {
        Verdict::Faster => Some("less CPU time"),
        Verdict::Slower => Some("more CPU time"),
        Verdict::NoDifferenceShown | Verdict::TooFewRounds => None,
    }
}

/// Returns the arm's text in the verdict column.
pub(crate) fn verdict(workload: &WorkloadResult, arm: &ArmResult, summary: &Summary) -> String {
    let cpu_verdict = cpu_verdict(summary).filter(|_| has_exact_cpu_time(workload, summary));
    match (cpu_verdict, summary.verdict, &arm.outcome) {
        (Some(verdict), ..) => verdict.into(),
        (None, Some(verdict), _) => format::verdict(verdict).into(),
        (None, None, Outcome::Interrupted) if arm.samples.is_empty() => "interrupted".into(),
        (None, None, _) if is_baseline(workload, arm) => "baseline".into(),
        (None, None, _) => format!("no {} to compare with", workload.baseline),
    }
}

/// Returns the median byte-seconds of the arm's warm proofs as a ratio to the baseline's; `None` for the baseline itself.
pub(crate) fn byte_seconds_ratio(workload: &WorkloadResult, arm: &ArmResult) -> Option<f64> {
    let (_, reference) = baseline(workload).filter(|_| !is_baseline(workload, arm))?;
    let baseline = reference.warm_byte_seconds.filter(|bytes| *bytes > 0)?;
    Some(figures(arm)?.warm_byte_seconds? as f64 / baseline as f64)
}

/// Returns the median of a measurement over the proofs that the arm made alone on the machine.
pub(crate) fn alone_median(arm: &ArmResult, figure: impl Fn(&AloneProof) -> Option<u64>) -> Option<u64> {
    whole_median(arm.alone.iter().filter_map(figure))
}

/// Compares the wall-clock times of the proofs that the arm and the baseline made alone on the machine: the median of each pass's ratio,
/// with its interval. `None` for the baseline itself.
pub(crate) fn alone_ratio(workload: &WorkloadResult, arm: &ArmResult) -> Option<Ratio> {
    let (baseline, _) = baseline(workload).filter(|(baseline, _)| baseline.label != arm.label)?;
    let ratio = |proof: &AloneProof| {
        let other = baseline.alone.iter().find(|other| other.pass == proof.pass)?;
        Some(vec![proof.sample.wall_ns as f64 / other.sample.wall_ns as f64])
    };
    Ratio::of_processes(&arm.alone.iter().filter_map(ratio).collect::<Vec<_>>(), 0)
}

/// Returns the share of the warm proofs' CPU time that was spent in the kernel.
pub(crate) fn kernel_share(arm: &ArmResult) -> Option<f64> {
    let in_kernel: u64 = warm(arm).map(|proof| proof.sample.sys_ns).sum();
    let in_all: u64 = warm(arm).map(|proof| proof.sample.cpu_ns()).sum();
    (in_all > 0).then(|| in_kernel as f64 / in_all as f64)
}
