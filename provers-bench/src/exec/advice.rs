//! The advice of `exec`: an upper limit for the gain, a sentence about each allocator, which allocator to use, and how to set it up.

use super::preload::{self, Candidate};
use crate::arms::{BASELINE, OURS};
use crate::results::record;
use crate::results::view::{self, MIN_TIME_CHANGE};
use crate::results::{Advice, ArmResult, Proof, Ratio, Summary, Verdict, WorkloadResult, format};
use crate::sample::Sample;
use std::ffi::OsString;

/// A warning for a user who copies our library to another machine.
const BUILT_HERE: &str = "This library is built for this machine's processor and needs this machine's C library or a newer one. \
                          For other machines, build it on the oldest of them.";
/// Smallest change of peak RSS that counts, as a share of the baseline's. Memory is sampled every 20 ms, so the peaks
/// of identical runs differ by a few percent. Memory limits are set in coarser steps.
const MIN_MEMORY_CHANGE: f64 = 0.05;

/// Returns the advice on `workload`, from a run with this `seed`.
pub(super) fn of(
    workload: &WorkloadResult,
    seed: u64,
    candidates: &[Candidate],
    command: &[OsString],
    remarks: &[String],
) -> Advice {
    let mut advice = Advice { ceiling: ceiling(workload).into_iter().collect(), ..Advice::default() };
    advice.ceiling.extend(remarks.iter().map(|remark| format!("{remark}.")));
    let Some((base, figures)) = view::baseline(workload) else {
        advice.verdict = vec![format!("There are no figures of {}, and without them no verdict.", workload.baseline)];
        return advice;
    };
    let mut others = workload.arms.iter().filter(|arm| arm.label != base.label && view::figures(arm).is_some());
    let exact_cpu = view::has_exact_cpu_time(workload, figures);
    let mut comparisons: Vec<_> =
        others.clone().filter_map(|arm| Comparison::of((base, figures), arm, (seed, exact_cpu))).collect();
    if !workload.timed.rests() {
        comparisons.iter_mut().for_each(|comparison| comparison.resting_ratio = None);
    }
    if comparisons.is_empty() {
        advice.verdict = vec![match others.next() {
            Some(_) => "Too few rounds for a verdict: 6 rounds or more give one.".into(),
            None => format!("Nothing to compare {} with.", base.label),
        }];
        return advice;
    }
    comparisons.sort_by(|a, b| a.peak_bytes.cmp(&b.peak_bytes).then(a.wall.median.total_cmp(&b.wall.median)));
    let (free, costly): (Vec<&Comparison<'_>>, Vec<_>) =
        comparisons.iter().filter(|comparison| comparison.gains()).partition(|comparison| !comparison.costs());
    // Starts with the allocator with the lowest peak. One with a higher peak replaces it only if that saves time.
    let taken = free.into_iter().reduce(|leaner, other| {
        let saves = time(other.arm, leaner.arm, (seed, exact_cpu)).is_some_and(|(.., change)| change == Change::Less);
        if saves { other } else { leaner }
    });
    advice.verdict.push(match taken {
        Some(Comparison { arm, time: Change::Less, .. }) => format!("Take {}.", arm.label),
        Some(Comparison { arm, .. }) => format!("Take {} for its memory.", arm.label),
        None if costly.is_empty() => format!(
            "Stay with {}: no allocator is shown to save {:.0}% of the time or {:.0}% of the peak RSS.",
            base.label,
            100.0 * MIN_TIME_CHANGE,
            100.0 * MIN_MEMORY_CHANGE
        ),
        None => "No gain here is without a cost, so the choice is yours.".into(),
    });
    advice.verdict.extend(comparisons.iter().map(Comparison::sentence));
    let shown = taken.or(if let [only] = costly[..] { Some(only) } else { None });
    let candidate = shown.and_then(|shown| candidates.iter().find(|candidate| candidate.label == shown.arm.label));
    if let Some(candidate) = candidate {
        advice.environment = Some(preload::environment(candidate, command));
        advice.dockerfile = preload::dockerfile(candidate);
        // Warns only about a library that was built here, because a library from a package also runs on other machines.
        let is_built_here = candidate.arm == OURS && candidate.package.is_none();
        advice.verdict.extend(is_built_here.then(|| BUILT_HERE.into()));
    }
    advice
}

/// Describes the kernel's share of the baseline's CPU time, which limits how much kernel time an allocator can save.
fn ceiling(workload: &WorkloadResult) -> Option<String> {
    let (base, figures) = view::baseline(workload).filter(|(arm, _)| arm.arm == BASELINE)?;
    let share = 100.0 * view::kernel_share(base)?;
    let faults = figures.warm_minflt.map_or_else(String::new, |faults| {
        format!(", with {} page faults {}", format::count(faults), workload.timed.each())
    });
    Some(format!(
        "Ceiling: under {} the kernel takes {share:.1}% of the CPU time{faults}. No allocator can save more kernel time; \
         what it saves in user mode comes on top.",
        base.label
    ))
}

/// How a measurement of one arm compares with another arm's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Less,
    More,
    /// The measurements show no difference, or one that is too small.
    None,
}

impl Change {
    /// Returns the change in time that `ratio` shows.
    fn of(ratio: &Ratio) -> Self {
        match ratio.verdict() {
            Verdict::Faster if ratio.median <= 1.0 - MIN_TIME_CHANGE => Self::Less,
            Verdict::Slower if ratio.median >= 1.0 + MIN_TIME_CHANGE => Self::More,
            _ => Self::None,
        }
    }
}

/// An arm that is compared with the baseline.
struct Comparison<'a> {
    arm: &'a ArmResult,
    wall: Ratio,
    /// Ratio of CPU times, if wall time is too noisy for a verdict and CPU time gives one.
    cpu: Option<Ratio>,
    time: Change,
    peak_bytes: u64,
    peak_ratio: Option<f64>,
    /// Change in peak RSS. A decrease counts only if the round-by-round ratios show it. An increase counts if the highest peaks differ by
    /// more than the threshold.
    memory: Change,
    /// The resident memory after the last interval, as a share of the baseline's; `None` for whole runs.
    resting_ratio: Option<f64>,
}

impl<'a> Comparison<'a> {
    /// Compares an arm with the baseline; `None` if there are too few rounds for an interval.
    fn of((base, of_base): (&ArmResult, &Summary), arm: &'a ArmResult, (seed, exact_cpu): (u64, bool)) -> Option<Self> {
        let figures = view::figures(arm)?;
        let resting_ratio = figures.resting_rss_bytes.zip(of_base.resting_rss_bytes);
        let resting_ratio = resting_ratio.map(|(bytes, reference)| bytes as f64 / reference as f64);
        let shown = ratio(arm, base, seed, |sample| sample.peak_rss_bytes).map(|ratio| ratio.verdict());
        let memory = match figures.peak_rss_ratio {
            Some(ratio) if ratio > 1.0 + MIN_MEMORY_CHANGE => Change::More,
            Some(ratio) if ratio <= 1.0 - MIN_MEMORY_CHANGE && shown == Some(Verdict::Faster) => Change::Less,
            _ => Change::None,
        };
        let (wall, cpu, time) = time(arm, base, (seed, exact_cpu))?;
        let peak_bytes = figures.peak_rss_bytes.unwrap_or(u64::MAX);
        Some(Self { arm, wall, cpu, time, peak_bytes, peak_ratio: figures.peak_rss_ratio, memory, resting_ratio })
    }

    fn gains(&self) -> bool {
        self.time == Change::Less || self.memory == Change::Less
    }

    fn costs(&self) -> bool {
        let rests_higher = self.resting_ratio.is_some_and(|ratio| ratio > 1.0 + MIN_MEMORY_CHANGE);
        self.time == Change::More || self.memory == Change::More || rests_higher
    }

    /// Describes the arm's time and memory, as shares of the baseline's.
    fn sentence(&self) -> String {
        let wall = format::ratio(&self.wall);
        let time = match self.cpu {
            Some(cpu) => {
                format!("{} of the CPU time (wall time is too noisy for a verdict: {wall})", format::ratio(&cpu))
            }
            None if self.wall.verdict() == Verdict::NoDifferenceShown => {
                format!("{wall} of the time (no difference shown)")
            }
            None => format!("{wall} of the time"),
        };
        let peak = self.peak_ratio.map_or_else(|| "an unknown part".to_owned(), |ratio| format!("{ratio:.2}"));
        let resting = self
            .resting_ratio
            .map_or_else(String::new, |ratio| format!(" After the last interval it holds {ratio:.2}."));
        format!("{} takes {time} and {peak} of the memory.{resting}", self.arm.label)
    }
}

/// Compares the times of two arms. Returns the ratio of their wall times, the ratio of their CPU times if CPU time decides, and the
/// resulting change. CPU time decides only if it was measured exactly (`exact_cpu`).
fn time(arm: &ArmResult, other: &ArmResult, (seed, exact_cpu): (u64, bool)) -> Option<(Ratio, Option<Ratio>, Change)> {
    let wall = ratio(arm, other, seed, |sample| sample.wall_ns)?;
    let interval = wall.believed()?;
    // In addition, the noise of wall time must be large enough to hide the change in CPU time.
    let hides = |change| match change {
        Change::Less => interval.low <= 1.0 - MIN_TIME_CHANGE,
        Change::More => interval.high >= 1.0 + MIN_TIME_CHANGE,
        Change::None => false,
    };
    let cpu = ratio(arm, other, seed, Sample::cpu_ns)
        .filter(|cpu| exact_cpu && wall.verdict() == Verdict::NoDifferenceShown && hides(Change::of(cpu)));
    Some((wall, cpu, Change::of(&cpu.unwrap_or(wall))))
}

/// Returns the ratio of a measurement between the warm samples of two arms, round by round.
fn ratio(arm: &ArmResult, other: &ArmResult, seed: u64, figure: fn(&Sample) -> u64) -> Option<Ratio> {
    Ratio::of_processes(&record::ratios(&arm.samples, &other.samples, Proof::is_warm, figure), seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::workload_of;
    use crate::results::record::tests::arm;
    use crate::results::{Outcome, Timed};

    /// An arm of ten runs: its label, wall time as a share of 100 ms, CPU time as a share of 90 ms, peak in MB, and scatter of its times.
    type Arm = (&'static str, f64, f64, u64, f64);

    /// An arm with little noise, whose CPU time is proportional to its wall time.
    fn quiet(label: &'static str, time: f64, peak_mb: u64) -> Arm {
        (label, time, time, peak_mb, 0.002)
    }

    const GLIBC: Arm = ("glibc", 1.0, 1.0, 100, 0.002);
    const BUSY: f64 = 0.1;

    /// Returns the advice on these arms, of which the first is the baseline.
    fn advice(arms: &[Arm]) -> Advice {
        let candidates: Vec<_> = arms.iter().map(|&(label, ..)| preload::tests::candidate(label)).collect();
        of(&workload(arms), 1, &candidates, &["sort".into(), "a b".into()], &[])
    }

    fn workload(arms: &[Arm]) -> WorkloadResult {
        let results = arms.iter().zip(0_u32..).map(|(&(label, time, cpu, peak_mb, scatter), index)| {
            // Neighbouring arms scatter in opposite directions.
            let noise = |round: u32, scatter: f64| {
                if (round + index).is_multiple_of(2) { 1.0 - scatter } else { 1.0 + scatter }
            };
            let wall = |round: u32| (1e8 * time * noise(round, scatter)) as u64;
            let mut result = arm(label, Outcome::Finished, &(0..11).map(wall).collect::<Vec<_>>());
            result.samples.retain(|proof| proof.is_warm());
            for proof in &mut result.samples {
                proof.process = proof.round - 1;
                let cpu = cpu * noise(proof.round, 0.002);
                (proof.sample.user_ns, proof.sample.sys_ns) = ((81e6 * cpu) as u64, (9e6 * cpu) as u64);
                (proof.sample.minflt, proof.sample.peak_rss_bytes) = (10_000, peak_mb * 1_000_000);
            }
            result
        });
        WorkloadResult { timed: Timed::Runs, ..workload_of(results.collect()) }
    }

    /// If the rounds show no difference in time between allocators, the advice is to take the one with the lowest peak.
    #[test]
    fn the_lowest_peak_among_the_fastest_is_advised_with_lines_to_paste() {
        let advice = advice(&[GLIBC, quiet("mimalloc", 0.8, 150), quiet("tcmalloc", 0.801, 104)]);
        assert_eq!(advice.verdict[0], "Take tcmalloc.");
        assert!(advice.verdict[1].starts_with("tcmalloc takes 0.80"), "{:?}", advice.verdict);
        assert!(advice.verdict[2].ends_with(" of the time and 1.50 of the memory."), "{:?}", advice.verdict);
        assert_eq!(advice.verdict.len(), 3, "{:?}", advice.verdict);
        assert_eq!(advice.environment.as_deref(), Some("LD_PRELOAD=/opt/libtcmalloc.so.2 sort 'a b'"));
        assert_eq!(advice.dockerfile[0], "COPY libtcmalloc.so.2 /usr/local/lib/libtcmalloc.so.2");
        assert_eq!(advice.dockerfile[1], "ENV LD_PRELOAD=/usr/local/lib/libtcmalloc.so.2");
        assert!(advice.ceiling[0].contains("takes 10.0% of the CPU time, with 10,000 page faults a run."));
    }

    /// An interval below 1 does not by itself justify another allocator, and how to weigh time against memory is the reader's decision. A
    /// memory saving that costs no time is a gain. On a busy machine, CPU time may show a gain that the noise of wall time hides. On a
    /// quiet machine, only wall time decides.
    #[test]
    fn the_verdict_weighs_gains_that_are_shown_against_costs() {
        let noisy = |cpu| [("glibc", 1.0, 1.0, 100, BUSY), ("jemalloc", 1.0, cpu, 100, BUSY)];
        // Each row has the arms, whether there are lines to paste, the beginning of the verdict, and other parts of the verdict.
        let cases: [(&[Arm], bool, &[&str]); 11] = [
            (
                &[GLIBC, quiet("jemalloc", 0.983, 109), quiet("x", 0.99, 100)],
                false,
                &["Stay with glibc: ", "2% of the time or 5%", "jemalloc takes 0.983 [", "1.09 of the memory"],
            ),
            (&[GLIBC, quiet("jemalloc", 0.979, 100)], true, &["Take jemalloc.", "jemalloc takes 0.979"]),
            (
                &[GLIBC, quiet("jemalloc", 0.93, 109)],
                true,
                &["No gain here is without a cost, so the choice is yours.", "and 1.09 of the memory."],
            ),
            (&[GLIBC, quiet("jemalloc", 0.93, 105), quiet("x", 0.7, 200)], true, &["Take jemalloc.", "x takes 0.700"]),
            (
                &[GLIBC, quiet("x", 1.2, 10), quiet("y", 0.9, 120)],
                false,
                &["No gain here is without a cost", "and 0.10 of the memory.", "and 1.20 of the memory."],
            ),
            (
                &noisy(0.9),
                true,
                &["Take jemalloc.", "jemalloc takes 0.900 [", "wall time is too noisy for a verdict: "],
            ),
            (&noisy(0.985), false, &["Stay with glibc: no allocator is shown"]),
            (&[GLIBC, ("jemalloc", 1.0, 0.9, 100, 0.002)], false, &["Stay with glibc"]),
            (
                &[GLIBC, quiet("mimalloc", 1.0, 95)],
                true,
                &["Take mimalloc for its memory.", "of the time (no difference shown) and 0.95 of"],
            ),
            (&[GLIBC, quiet("mimalloc", 1.0, 96)], false, &["Stay with glibc"]),
            // A copy of our library would crash with an illegal instruction on an older processor, so the advice warns of this.
            (&[GLIBC, quiet(OURS, 0.8, 100)], true, &["Take zk-alloc.", BUILT_HERE]),
        ];
        for (arms, is_pasted, parts) in cases {
            let advice = advice(arms);
            let text = advice.verdict.join(" ");
            assert!(text.starts_with(parts[0]) && parts.iter().all(|part| text.contains(part)), "{parts:?}: {text}");
            assert_eq!((advice.environment.is_some(), advice.dockerfile.len() == 2), (is_pasted, is_pasted), "{text}");
        }
    }

    /// Memory that stays resident between the proofs of a service is a cost. CPU time is counted in ticks of 10 ms, which is too coarse for
    /// short intervals.
    #[test]
    fn memory_at_rest_is_a_cost_and_the_cpu_time_of_short_intervals_decides_nothing() {
        let verdict = |resting_mb: u64, wall: f64, cpu: f64| {
            let arms = [("glibc", 1.0, 1.0, 100, BUSY), ("jemalloc", wall, cpu, 100, BUSY)];
            let mut workload = WorkloadResult { timed: Timed::Intervals, ..workload(&arms) };
            let summary = workload.arms[1].summary.as_mut().unwrap();
            summary.resting_rss_bytes = summary.resting_rss_bytes.map(|bytes| bytes * resting_mb / 100);
            of(&workload, 1, &[], &["sort".into()], &[]).verdict.join(" ")
        };
        assert!(verdict(104, 0.7, 0.7).starts_with("Take jemalloc."), "{}", verdict(104, 0.7, 0.7));
        let costly = verdict(139, 0.7, 0.7);
        assert!(costly.starts_with("No gain here is without a cost") && costly.contains("it holds 1.39."), "{costly}");
        let ticks = verdict(100, 1.0, 0.5);
        assert!(ticks.starts_with("Stay with glibc") && !ticks.contains("CPU time"), "{ticks}");
    }
}
