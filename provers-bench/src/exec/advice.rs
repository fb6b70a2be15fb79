//! The advice: the most that there is to gain, the allocator to take, its other effects, and how to set it up. A
//! difference from the baseline counts only if it is shown and large enough.

use super::libraries::{self, Candidate};
use crate::arms::{BASELINE, OURS};
use crate::results::format;
use crate::results::record::{self, Advice, ArmResult, Proof, Run, Summary, WorkloadResult};
use crate::results::stats::{Ratio, Verdict};
use crate::results::view::{self, LEAST_TIME_CHANGE};
use crate::sample::Sample;
use std::ffi::OsString;

/// A warning before a user copies our library elsewhere.
const BUILT_HERE: &str = "This library is built for this machine's processor and needs this machine's C library or a newer one. \
                          For other machines, build it on the oldest of them.";

/// The advice on `workload`, which will be part of `run`.
pub(super) fn of(
    run: &Run,
    workload: &WorkloadResult,
    candidates: &[Candidate],
    command: &[OsString],
    remarks: &[String],
) -> Advice {
    let mut advice = Advice { ceiling: ceiling(workload), ..Advice::default() };
    advice.ceiling.extend(remarks.iter().map(|remark| format!("{remark}.")));
    let Some((base, base_figures)) = view::baseline(workload) else {
        advice.verdict = vec![format!("There are no figures of {}, and without them no verdict.", workload.baseline)];
        return advice;
    };
    if !workload.arms.iter().any(|arm| arm.label != base.label && view::figures(arm).is_some()) {
        advice.verdict = vec![format!("Nothing to compare {} with.", base.label)];
        return advice;
    }
    let comparisons = comparisons(run, workload, base);
    if comparisons.is_empty() {
        advice.verdict = vec!["Too few rounds for a verdict: 6 rounds or more give one.".to_owned()];
        return advice;
    }
    let front = front(run, &comparisons);
    let taken = front.iter().rev().copied().find(|comparison| !comparison.costs());
    let others: Vec<_> = front
        .iter()
        .copied()
        .filter(|comparison| taken.is_none_or(|taken| taken.arm.label != comparison.arm.label))
        .collect();
    let shown = match (taken, &others[..]) {
        (Some(taken), others) => {
            advice.verdict.push(take(run, workload, base, taken, &comparisons, &front));
            if !others.is_empty() {
                advice.verdict.push(format!("Other trades: {}.", trades(others)));
            }
            Some(taken)
        }
        (None, []) => {
            advice.verdict = stay(run, workload, base, &comparisons);
            None
        }
        (None, others) => {
            advice.verdict.push(format!("No gain here is without a cost, so the choice is yours: {}.", trades(others)));
            others.first().copied().filter(|_| others.len() == 1)
        }
    };
    let Some(shown) = shown else { return advice };
    advice.verdict.push(price(workload, shown, base_figures));
    if let Some(candidate) = candidates.iter().find(|candidate| candidate.label == shown.arm.label) {
        advice.environment = Some(libraries::environment(candidate, command));
        advice.dockerfile = libraries::dockerfile(candidate);
        advice.verdict.extend(built_here(candidate).map(str::to_owned));
    }
    advice
}

/// The warning about `candidate`'s library if it is ours. The package's library runs on other machines, too.
fn built_here(candidate: &Candidate) -> Option<&'static str> {
    (candidate.arm == OURS && candidate.package.is_none()).then_some(BUILT_HERE)
}

/// The arm to take, the reason, and the arms that are as fast but have a higher peak.
fn take(
    run: &Run,
    workload: &WorkloadResult,
    base: &ArmResult,
    taken: &Comparison<'_>,
    comparisons: &[Comparison<'_>],
    front: &[&Comparison<'_>],
) -> String {
    let (label, base, time) = (&taken.arm.label, &base.label, &taken.time);
    let (runs, wall) = (workload.timed.warm(), format::ratio(&time.wall));
    let reason = match (time.change, time.cpu) {
        (Change::Less, None) => format!("Take {label}: {runs} take {wall} of {base}'s time."),
        (Change::Less, Some(cpu)) => format!(
            "Take {label}: wall time is too noisy for a verdict ({wall}), but {runs} take {} of {base}'s CPU time.",
            format::ratio(&cpu)
        ),
        _ => format!(
            "Take {label} for its memory: its peak RSS is {} of {base}'s, and {runs} take {}.",
            peak_ratio(taken.figures),
            wall_time(&time.wall)
        ),
    };
    let equals = comparisons.iter().filter(|comparison| {
        time.change == Change::Less
            && comparison.time.change == Change::Less
            && front.iter().all(|other| other.arm.label != comparison.arm.label)
            && comparison.against(run, taken) == Some(Change::None)
    });
    let equals: Vec<_> = equals
        .map(|comparison| {
            let peak =
                comparison.figures.peak_rss_bytes.map_or_else(String::new, |peak| format!(", {}", format::bytes(peak)));
            format!("{} ({:.3}{peak})", comparison.arm.label, comparison.time.wall.median)
        })
        .collect();
    if equals.is_empty() {
        return reason;
    }
    format!(
        "{reason} Not shown to differ from it by {:.0}%, and with a higher peak: {}.",
        100.0 * LEAST_TIME_CHANGE,
        equals.join(", ")
    )
}

/// Nothing is worth a change: names the closest arm, and the figures that change without a gain in time.
fn stay(run: &Run, workload: &WorkloadResult, base: &ArmResult, comparisons: &[Comparison<'_>]) -> Vec<String> {
    let faster = comparisons.iter().filter(|comparison| comparison.time.wall.verdict() == Verdict::Faster);
    let least =
        format!("{:.0}% of the time or {:.0}% of the peak RSS", 100.0 * LEAST_TIME_CHANGE, 100.0 * MIN_MEMORY_CHANGE);
    let reason = match faster.min_by(|a, b| a.time.wall.median.total_cmp(&b.time.wall.median)) {
        Some(comparison) => format!(
            "The largest gain is {}'s, which takes {} of the time and {} of the memory. A gain counts from {least}.",
            comparison.arm.label,
            format::ratio(&comparison.time.wall),
            peak_ratio(comparison.figures)
        ),
        None => format!("No allocator is shown to save {least}."),
    };
    let mut verdict = vec![format!("Stay with {}: nothing here is worth a change. {reason}", base.label)];
    verdict.extend(besides_time(run, base, comparisons));
    if workload.arms.iter().any(|arm| view::figures(arm).is_none()) {
        verdict.push("The table says why the other allocators have no figures.".into());
    }
    verdict
}

/// The kernel's share of the baseline's CPU time, which limits how much kernel time an allocator can save.
fn ceiling(workload: &WorkloadResult) -> Vec<String> {
    let Some((base, figures)) = view::baseline(workload).filter(|(arm, _)| arm.arm == BASELINE) else {
        return Vec::new();
    };
    let Some(share) = view::kernel_share(base) else { return Vec::new() };
    let faults = figures.warm_minflt.map_or_else(String::new, |faults| {
        format!(", with {} page faults {}", format::count(faults), workload.timed.each())
    });
    let share = 100.0 * share;
    vec![format!(
        "Ceiling: under {} the kernel takes {share:.1}% of the CPU time{faults}. No allocator can save more kernel time than that, and \
         input and output are part of it. What malloc and free cost in user mode comes on top, and so do the effects of caches and huge \
         pages: the runs below measure both.",
        base.label
    )]
}

/// Says which share of the baseline's wall time the runs take.
fn wall_time(wall: &Ratio) -> String {
    let doubt = if wall.verdict() == Verdict::NoDifferenceShown { " (no difference shown)" } else { "" };
    format!("{} of the time{doubt}", format::ratio(wall))
}

/// The time and memory of arms, as shares of the baseline's.
fn trades(comparisons: &[&Comparison<'_>]) -> String {
    let trade = |comparison: &&Comparison<'_>| {
        let time = match comparison.time.cpu {
            Some(cpu) => format!("{:.3} of the CPU time", cpu.median),
            None => format!("{:.3} of the time", comparison.time.wall.median),
        };
        let shows_nothing = comparison.time.wall.verdict() == Verdict::NoDifferenceShown;
        let doubt = if shows_nothing { " (wall time shows no difference)" } else { "" };
        format!("{} takes {time}{doubt} and {} of the memory", comparison.arm.label, peak_ratio(comparison.figures))
    };
    comparisons.iter().map(trade).collect::<Vec<_>>().join("; ")
}

fn peak_ratio(figures: &Summary) -> String {
    figures.peak_rss_ratio.map_or_else(|| "an unknown part".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// How memory, CPU time and page faults change.
fn price(
    workload: &WorkloadResult,
    Comparison { arm, figures, .. }: &Comparison<'_>,
    base_figures: &Summary,
) -> String {
    let both = |figure: fn(&Summary) -> Option<u64>| Some((figure(figures)?, figure(base_figures)?));
    let divided = |(now, then): (u64, u64)| (then > 0).then(|| now as f64 / then as f64);
    let changed = |what: &str, (now, then): (u64, u64), words: fn(u64) -> String, ratio: Option<f64>| {
        let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
        format!("{what} {} instead of {}{ratio}", words(now), words(then))
    };
    let parts = [
        both(|figures| figures.peak_rss_bytes).map(|pair| changed("peak RSS", pair, format::bytes, divided(pair))),
        both(|figures| figures.resting_rss_bytes)
            .filter(|_| workload.timed.rests())
            .map(|pair| changed("resting RSS", pair, format::bytes, divided(pair))),
        both(|figures| figures.warm_cpu_ns).map(|pair| {
            // The ratio of the table, which is computed round by round.
            let ratio = figures.cpu_ratio.map(|ratio| ratio.median);
            changed("CPU time", pair, format::time, ratio.or_else(|| divided(pair)))
        }),
        both(|figures| figures.warm_minflt).map(|pair| changed("page faults", pair, format::count, divided(pair))),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    format!("With {}: {}.", arm.label, parts.join("; "))
}

/// Figures that change although wall time shows no difference: the lowest and the highest ratio of each.
fn besides_time(run: &Run, base: &ArmResult, comparisons: &[Comparison<'_>]) -> Option<String> {
    let alike: Vec<_> =
        comparisons.iter().filter(|comparison| comparison.time.wall.verdict() == Verdict::NoDifferenceShown).collect();
    let shown = |ratio: Option<Ratio>, least| ratio.filter(|ratio| Change::of(ratio, least) != Change::None);
    let of_all = |ratio: &dyn Fn(&Comparison<'_>) -> Option<f64>| -> Vec<_> {
        alike.iter().filter_map(|comparison| Some((comparison.arm.label.as_str(), ratio(comparison)?))).collect()
    };
    let parts = [
        ("CPU time", of_all(&|comparison| Some(shown(comparison.figures.cpu_ratio, LEAST_TIME_CHANGE)?.median))),
        (
            "page faults",
            of_all(&|comparison| {
                let ratio = ratio(run, comparison.arm, base, |sample| sample.minflt);
                Some(shown(ratio, MIN_FAULTS_CHANGE)?.median)
            }),
        ),
        (
            "peak RSS",
            of_all(&|comparison| comparison.figures.peak_rss_ratio.filter(|_| comparison.memory != Change::None)),
        ),
    ];
    let parts: Vec<_> = parts.iter().filter_map(|(what, ratios)| Some(format!("{what} {}", range(ratios)?))).collect();
    let list = parts.join(", ");
    (!parts.is_empty())
        .then(|| format!("Where wall time shows no difference, other figures do, as ratios to {}: {list}.", base.label))
}

/// The lowest and the highest of the ratios, each with its label.
fn range(ratios: &[(&str, f64)]) -> Option<String> {
    let lowest = ratios.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let highest = ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let words = |(label, ratio): &(&str, f64)| format!("{ratio:.2} ({label})");
    Some(if lowest.0 == highest.0 { words(lowest) } else { format!("{} to {}", words(lowest), words(highest)) })
}

/// Smallest change of peak RSS that counts, as a share of the baseline's. Memory is read every 20 ms, so the peaks of
/// equal runs differ by a few percent. Memory limits are set in coarser steps.
const MIN_MEMORY_CHANGE: f64 = 0.05;
/// Smallest change of page faults worth mentioning, as a share of the baseline's. The measured time includes the cost
/// of faults, so a smaller change explains nothing.
const MIN_FAULTS_CHANGE: f64 = 0.10;

/// How a figure of one arm compares with another arm's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Less,
    More,
    /// No difference is shown, or it is too small.
    None,
}

impl Change {
    /// The change that `ratio` shows, if changes count from the share `least` on.
    fn of(ratio: &Ratio, least: f64) -> Self {
        match ratio.verdict() {
            Verdict::Faster if ratio.median <= 1.0 - least => Self::Less,
            Verdict::Slower if ratio.median >= 1.0 + least => Self::More,
            _ => Self::None,
        }
    }
}

/// The time of one arm relative to another's.
#[derive(Clone, Copy, Debug)]
struct Time {
    wall: Ratio,
    /// CPU time, if wall time is too noisy for a verdict and CPU time gives one.
    cpu: Option<Ratio>,
    change: Change,
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
struct Comparison<'a> {
    arm: &'a ArmResult,
    figures: &'a Summary,
    time: Time,
    /// Peak RSS. A saving must be shown round by round. For a cost it is enough that the highest peaks differ by more
    /// than the threshold.
    memory: Change,
}

impl<'a> Comparison<'a> {
    fn of(run: &Run, base: &ArmResult, arm: &'a ArmResult) -> Option<Self> {
        let figures = view::figures(arm)?;
        let shown = ratio(run, arm, base, |sample| sample.peak_rss_bytes).map(|ratio| ratio.verdict());
        let memory = match figures.peak_rss_ratio {
            Some(ratio) if ratio > 1.0 + MIN_MEMORY_CHANGE => Change::More,
            Some(ratio) if ratio <= 1.0 - MIN_MEMORY_CHANGE && shown == Some(Verdict::Faster) => Change::Less,
            _ => Change::None,
        };
        Some(Self { arm, figures, time: Time::of(run, arm, base)?, memory })
    }

    fn gains(&self) -> bool {
        self.time.change == Change::Less || self.memory == Change::Less
    }

    fn costs(&self) -> bool {
        self.time.change == Change::More || self.memory == Change::More
    }

    fn peak_bytes(&self) -> u64 {
        self.figures.peak_rss_bytes.unwrap_or(u64::MAX)
    }

    /// The time relative to another arm's.
    fn against(&self, run: &Run, other: &Self) -> Option<Change> {
        Some(Time::of(run, self.arm, other.arm)?.change)
    }
}

/// All arms except `base` that have enough rounds for a verdict.
fn comparisons<'a>(run: &Run, workload: &'a WorkloadResult, base: &ArmResult) -> Vec<Comparison<'a>> {
    let others = workload.arms.iter().filter(|arm| arm.label != base.label);
    others.filter_map(|arm| Comparison::of(run, base, arm)).collect()
}

/// The comparisons that gain something, from the one with the lowest peak to the fastest. Each next one has a higher
/// peak, and saves enough time to be worth it.
fn front<'a, 'b>(run: &Run, comparisons: &'b [Comparison<'a>]) -> Vec<&'b Comparison<'a>> {
    let mut gaining: Vec<_> = comparisons.iter().filter(|comparison| comparison.gains()).collect();
    gaining.sort_by(|a, b| {
        let medians = a.time.wall.median.total_cmp(&b.time.wall.median);
        a.peak_bytes().cmp(&b.peak_bytes()).then(medians)
    });
    let mut front: Vec<&Comparison<'a>> = Vec::new();
    for comparison in gaining {
        if front.iter().all(|leaner| comparison.against(run, leaner) == Some(Change::Less)) {
            front.push(comparison);
        }
    }
    front
}

/// The ratio of a figure between the warm samples of two arms, round by round.
fn ratio(run: &Run, arm: &ArmResult, other: &ArmResult, figure: fn(&Sample) -> u64) -> Option<Ratio> {
    let ratios = record::ratios(&arm.samples, &other.samples, Proof::is_warm, figure);
    Ratio::of_processes(&ratios, run.seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::record::tests::arm;
    use crate::results::record::{self, Ended, Outcome, SCHEMA, Timed};
    use crate::together::Concurrent;

    /// An arm of ten runs: shares of 100 ms, of 90 ms of CPU time and of 10,000 faults, a peak in MB, and the scatter
    /// of its runs' times. Neighbouring arms scatter in opposite rounds.
    #[derive(Clone, Copy)]
    struct Arm {
        label: &'static str,
        time: f64,
        cpu: f64,
        faults: f64,
        peak_mb: u64,
        scatter: f64,
    }

    /// A quiet arm whose CPU time follows its time.
    fn quiet(label: &'static str, time: f64, peak_mb: u64) -> Arm {
        Arm { label, time, cpu: time, faults: 1.0, peak_mb, scatter: 0.002 }
    }

    const GLIBC: Arm = Arm { label: "glibc", time: 1.0, cpu: 1.0, faults: 1.0, peak_mb: 100, scatter: 0.002 };
    const BUSY: f64 = 0.1;

    /// The advice on these arms; the first is the baseline.
    fn advice(arms: &[Arm]) -> Advice {
        let results = arms.iter().zip(0_u32..).map(|(figures, index)| {
            let noise = |round: u32, scatter: f64| {
                if (round + index).is_multiple_of(2) { 1.0 - scatter } else { 1.0 + scatter }
            };
            let wall = |round: u32| (1e8 * figures.time * noise(round, figures.scatter)) as u64;
            let mut result = arm(figures.label, Outcome::Finished, &(0..11).map(wall).collect::<Vec<_>>());
            result.samples.retain(|proof| proof.is_warm());
            for proof in &mut result.samples {
                proof.process = proof.round - 1;
                let cpu = figures.cpu * noise(proof.round, 0.002);
                proof.sample.user_ns = (81e6 * cpu) as u64;
                proof.sample.sys_ns = (9e6 * cpu) as u64;
                proof.sample.minflt = (1e4 * figures.faults) as u64;
                proof.sample.peak_rss_bytes = figures.peak_mb * 1_000_000;
            }
            result
        });
        let mut results: Vec<_> = results.collect();
        record::summarise(&mut results, 0, 1);
        let workload = WorkloadResult {
            workload: "sort".into(),
            about: "sort file".into(),
            timed: Timed::Runs,
            log_rows: 0,
            threads: 0,
            live_peak_bytes: None,
            baseline: arms[0].label.into(),
            arms: results,
            ended: Ended::AllRounds,
        };
        let run = Run {
            schema: SCHEMA,
            run: "r".into(),
            prover: "sort".into(),
            command_line: Vec::new(),
            seed: 1,
            rounds: 10,
            threads: 0,
            concurrent: Concurrent::default(),
            sweep: None,
            machine: Machine::observe(),
            workloads: Vec::new(),
            interrupted: false,
            advice: None,
        };
        let candidates: Vec<_> = arms.iter().map(|arm| libraries::tests::candidate(arm.label)).collect();
        of(&run, &workload, &candidates, &["sort".into(), "a b".into()], &[])
    }

    fn verdict(arms: &[Arm]) -> String {
        advice(arms).verdict.join(" ")
    }

    #[track_caller]
    fn assert_says(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "no \"{part}\" in {text}");
        }
    }

    /// If the rounds show no difference between allocators, the advice is the one with the lowest peak.
    #[test]
    fn the_leanest_of_the_fastest_is_taken_with_what_else_changes() {
        let advice = advice(&[GLIBC, quiet("mimalloc", 0.8, 150), quiet("tcmalloc", 0.801, 104)]);
        let verdict = advice.verdict.join(" ");
        assert!(verdict.starts_with("Take tcmalloc: runs take 0.80"), "{verdict}");
        assert_says(
            &verdict,
            &[
                "Not shown to differ from it by 2%, and with a higher peak: mimalloc (0.800, 150 MB).",
                "With tcmalloc: peak RSS 104 MB instead of 100 MB (1.04); CPU time 72.1 ms instead of 90.0 ms (0.80); page faults",
            ],
        );
        assert!(!verdict.contains("Other trades") && !verdict.contains(BUILT_HERE), "{verdict}");
        assert_eq!(advice.environment.as_deref(), Some("LD_PRELOAD=/opt/libtcmalloc.so.2 sort 'a b'"));
        assert_eq!(advice.dockerfile[0], "COPY libtcmalloc.so.2 /usr/local/lib/libtcmalloc.so.2");
        assert_eq!(advice.dockerfile[1], "ENV LD_PRELOAD=/usr/local/lib/libtcmalloc.so.2");
        assert_says(&advice.ceiling[0], &["the kernel takes 10.0% of the CPU time, with 10,000 page faults a run."]);
    }

    /// A copy on an older processor would die of an illegal instruction.
    #[test]
    fn where_our_library_runs_is_said_with_the_lines_that_copy_it() {
        let advice = advice(&[GLIBC, quiet(OURS, 0.8, 100)]);
        assert_eq!(advice.dockerfile[0], "COPY libzk-alloc.so.2 /usr/local/lib/libzk-alloc.so.2");
        assert_eq!(advice.verdict.last().map(String::as_str), Some(BUILT_HERE));
        let package = Some(("zk-alloc-preload".to_owned(), "0.1.0".to_owned()));
        assert_eq!(built_here(&Candidate { package, ..libraries::tests::candidate(OURS) }), None);
    }

    /// An interval below 1 is no reason to deploy another allocator: a gain of 1.7% is not worth it, with 9% more
    /// memory or without.
    #[test]
    fn a_gain_below_the_threshold_is_named_and_not_advised() {
        for peak_mb in [109, 100] {
            let advice = advice(&[GLIBC, quiet("jemalloc", 0.983, peak_mb), quiet("x", 0.99, 100)]);
            let memory = format!("of the time and {}.{:02} of the memory.", peak_mb / 100, peak_mb % 100);
            let closest =
                "Stay with glibc: nothing here is worth a change. The largest gain is jemalloc's, which takes 0.983 [";
            assert_says(
                &advice.verdict.join(" "),
                &[closest, &memory, "A gain counts from 2% of the time or 5% of the peak RSS."],
            );
            assert!(advice.environment.is_none() && advice.dockerfile.is_empty());
        }
        assert!(verdict(&[GLIBC, quiet("jemalloc", 0.979, 100)]).starts_with("Take jemalloc: runs take 0.979"));
    }

    /// Readers price time and memory differently.
    #[test]
    fn time_for_more_memory_is_the_readers_choice() {
        let advice = advice(&[GLIBC, quiet("jemalloc", 0.93, 109)]);
        assert_eq!(
            advice.verdict[0],
            "No gain here is without a cost, so the choice is yours: jemalloc takes 0.930 of the time and 1.09 of the memory."
        );
        assert!(advice.environment.is_some(), "the only one there is can be pasted");
        let verdict = verdict(&[GLIBC, quiet("jemalloc", 0.93, 105), quiet("x", 0.7, 200), quiet("y", 0.8, 201)]);
        assert_says(&verdict, &["Take jemalloc: ", "Other trades: x takes 0.700 of the time and 2.00 of the memory. "]);
        let lean = self::verdict(&[GLIBC, quiet("x", 1.2, 10), quiet("y", 0.9, 120)]);
        let both =
            "x takes 1.200 of the time and 0.10 of the memory; y takes 0.900 of the time and 1.20 of the memory.";
        assert_says(&lean, &["the choice is yours", both]);
    }

    /// On a busy machine wall time hides a gain that CPU time shows. On a quiet machine wall time shows that CPU time
    /// does not matter.
    #[test]
    fn cpu_time_decides_only_where_wall_time_is_too_noisy() {
        let noisy = |time, cpu| {
            let busy = Arm { cpu, scatter: BUSY, ..quiet("jemalloc", time, 100) };
            verdict(&[Arm { scatter: BUSY, ..GLIBC }, busy])
        };
        assert_says(&noisy(1.0, 0.9), &["Take jemalloc: wall time is too noisy for a verdict (", "runs take 0.900 ["]);
        assert_says(&noisy(1.0, 0.985), &["Stay with glibc: nothing here is worth a change. No allocator is shown"]);
        let calm = verdict(&[GLIBC, Arm { cpu: 0.9, ..quiet("jemalloc", 1.0, 100) }]);
        assert_says(
            &calm,
            &["Stay with glibc", "wall time shows no difference, other figures do", "CPU time 0.90 (jem"],
        );
    }

    /// A memory saving is a gain of its own if it is at least 5% and costs no time.
    #[test]
    fn memory_that_costs_no_time_is_worth_a_change() {
        let leaner = |peak_mb| verdict(&[GLIBC, quiet("mimalloc", 1.0, peak_mb)]);
        assert!(
            leaner(95).starts_with("Take mimalloc for its memory: its peak RSS is 0.95 of glibc's"),
            "{}",
            leaner(95)
        );
        assert_says(&leaner(95), &["] of the time (no difference shown)."]);
        assert!(leaner(96).starts_with("Stay with glibc"), "{}", leaner(96));
    }

    /// Faults and memory can change although time does not. A reader of the advice alone must learn of it.
    #[test]
    fn what_changes_besides_time_is_said_in_a_sentence() {
        let fewer = Arm { faults: 0.4, ..quiet("jemalloc", 1.0, 109) };
        let more = Arm { faults: 1.3, cpu: 1.05, ..quiet("x", 1.0, 100) };
        let little = Arm { faults: 0.95, cpu: 1.01, ..quiet("y", 1.0, 104) };
        let verdict = verdict(&[GLIBC, fewer, more, little]);
        let sentence = "Where wall time shows no difference, other figures do, as ratios to glibc: CPU time 1.05 (x), \
                        page faults 0.40 (jemalloc) to 1.30 (x), peak RSS 1.09 (jemalloc).";
        assert_says(&verdict, &["Stay with glibc", sentence]);
        assert!(!self::verdict(&[GLIBC, little]).contains("other figures"));
    }
}
