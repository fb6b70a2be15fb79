//! The advice: the most that there is to gain, the allocator to take, its other effects, and the lines to paste.

use super::libraries::Entrant;
use super::paste;
use super::sentences::{besides_time, ceiling, peak_ratio, price, trades, wall_time};
use super::worth::{self, Change, LEAST_MEMORY_CHANGE, Offer};
use crate::arms::OURS;
use crate::results::format;
use crate::results::record::{Advice, ArmResult, Run, WorkloadResult};
use crate::results::stats::Verdict;
use crate::results::view::{self, LEAST_TIME_CHANGE};
use std::ffi::OsString;

/// A warning before a user copies our library elsewhere.
const BUILT_HERE: &str = "This library is built for this machine's processor and needs this machine's C library or a newer one. \
                          For other machines, build it on the oldest of them.";

/// The advice on `workload`, which will be part of `run`.
pub(super) fn of(
    run: &Run,
    workload: &WorkloadResult,
    entrants: &[Entrant],
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
    let offers = worth::offers(run, workload, base);
    if offers.is_empty() {
        advice.verdict = vec!["Too few rounds for a verdict: 6 rounds or more give one.".to_owned()];
        return advice;
    }
    let front = worth::front(run, &offers);
    let taken = front.iter().rev().copied().find(|offer| !offer.costs());
    let others: Vec<_> =
        front.iter().copied().filter(|offer| taken.is_none_or(|taken| taken.arm.label != offer.arm.label)).collect();
    let shown = match (taken, &others[..]) {
        (Some(taken), others) => {
            advice.verdict.push(take(run, workload, base, taken, &offers, &front));
            if !others.is_empty() {
                advice.verdict.push(format!("Other trades: {}.", trades(others)));
            }
            Some(taken)
        }
        (None, []) => {
            advice.verdict = stay(run, workload, base, &offers);
            None
        }
        (None, others) => {
            advice.verdict.push(format!("No gain here is without a cost, so the choice is yours: {}.", trades(others)));
            others.first().copied().filter(|_| others.len() == 1)
        }
    };
    let Some(shown) = shown else { return advice };
    advice.verdict.push(price(workload, shown, base_figures));
    if let Some(entrant) = entrants.iter().find(|entrant| entrant.label == shown.arm.label) {
        advice.environment = Some(paste::environment(entrant, command));
        advice.dockerfile = paste::dockerfile(entrant);
        advice.verdict.extend(built_here(entrant).map(str::to_owned));
    }
    advice
}

/// The warning about `entrant`'s library if it is ours. The package's library runs on other machines, too.
fn built_here(entrant: &Entrant) -> Option<&'static str> {
    (entrant.arm == OURS && entrant.package.is_none()).then_some(BUILT_HERE)
}

/// The arm to take, the reason, and the arms that are as fast but have a higher peak.
fn take(
    run: &Run,
    workload: &WorkloadResult,
    base: &ArmResult,
    taken: &Offer<'_>,
    offers: &[Offer<'_>],
    front: &[&Offer<'_>],
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
    let equals = offers.iter().filter(|offer| {
        time.change == Change::Less
            && offer.time.change == Change::Less
            && front.iter().all(|other| other.arm.label != offer.arm.label)
            && offer.against(run, taken) == Some(Change::None)
    });
    let equals: Vec<_> = equals
        .map(|offer| {
            let peak =
                offer.figures.peak_rss_bytes.map_or_else(String::new, |peak| format!(", {}", format::bytes(peak)));
            format!("{} ({:.3}{peak})", offer.arm.label, offer.time.wall.median)
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
fn stay(run: &Run, workload: &WorkloadResult, base: &ArmResult, offers: &[Offer<'_>]) -> Vec<String> {
    let faster = offers.iter().filter(|offer| offer.time.wall.verdict() == Verdict::Faster);
    let least =
        format!("{:.0}% of the time or {:.0}% of the peak RSS", 100.0 * LEAST_TIME_CHANGE, 100.0 * LEAST_MEMORY_CHANGE);
    let reason = match faster.min_by(|a, b| a.time.wall.median.total_cmp(&b.time.wall.median)) {
        Some(offer) => format!(
            "The largest gain is {}'s, which takes {} of the time and {} of the memory. A gain counts from {least}.",
            offer.arm.label,
            format::ratio(&offer.time.wall),
            peak_ratio(offer.figures)
        ),
        None => format!("No allocator is shown to save {least}."),
    };
    let mut verdict = vec![format!("Stay with {}: nothing here is worth a change. {reason}", base.label)];
    verdict.extend(besides_time(run, base, offers));
    if workload.arms.iter().any(|arm| view::figures(arm).is_none()) {
        verdict.push("The table says why the other allocators have no figures.".into());
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::record::tests::arm;
    use crate::results::record::{self, Ended, Outcome, SCHEMA};
    use crate::results::timed::Timed;
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
        let entrants: Vec<_> = arms.iter().map(|arm| paste::tests::entrant(arm.label)).collect();
        of(&run, &workload, &entrants, &["sort".into(), "a b".into()], &[])
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
        assert_eq!(built_here(&Entrant { package, ..paste::tests::entrant(OURS) }), None);
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
