//! What follows from the figures: what there is to gain at most, which allocator to take, its price, and how to take it.

use super::libraries::Entrant;
use crate::arms::{BASELINE, OURS};
use crate::results::record::{Advice, ArmResult, Run, WorkloadResult};
use crate::results::stats::Verdict;
use crate::results::summary::Summary;
use crate::results::{format, view};
use std::ffi::OsString;

/// A saving of memory that is worth a word.
const NOTABLE_SAVING: f64 = 0.95;

/// What to know before our library is copied elsewhere: it comes from no package.
const BUILT_HERE: &str = "The library was built for this machine's processor, and needs its C library or a newer one: for other machines, \
                          build it on the oldest of them.";

/// An arm with its figures.
type Figured<'a> = (&'a ArmResult, &'a Summary);

/// What to do after `workload`, of which `run` is to be.
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
    let others = || {
        let others = workload.arms.iter().filter(|arm| !view::is_baseline(workload, arm));
        others.filter_map(|arm| Some((arm, view::figures(arm)?)))
    };
    let Some((taken, figures)) = choice(run, others()) else {
        advice.verdict = stay(workload, base, base_figures, others());
        return advice;
    };
    let ratio = figures.wall_ratio.map_or_else(String::new, |ratio| format::ratio(&ratio));
    advice.verdict.push(format!(
        "Take {}: {} take {ratio} of {}'s time.{}",
        taken.label,
        workload.timed.warm(),
        base.label,
        beside(run, taken, others())
    ));
    advice.verdict.push(price(workload, (taken, figures), (base, base_figures)));
    if let Some(entrant) = entrants.iter().find(|entrant| entrant.label == taken.label) {
        let variables = entrant.variables();
        let assigned = variables.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let words = assigned.chain([command_line(command)]).collect::<Vec<_>>();
        advice.environment = Some(words.join(" "));
        advice.dockerfile = dockerfile(entrant);
        if entrant.arm == OURS {
            advice.verdict.push(BUILT_HERE.to_owned());
        }
    }
    advice
}

/// What the kernel takes of the baseline's time, in words that promise no more than it says.
fn ceiling(workload: &WorkloadResult) -> Vec<String> {
    let Some((base, figures)) = view::baseline(workload).filter(|(arm, _)| arm.arm == BASELINE) else {
        return Vec::new();
    };
    let Some(share) = view::kernel_share(base) else { return Vec::new() };
    let faults = figures.warm_minflt.map_or_else(String::new, |faults| {
        let noun = workload.timed.noun();
        let faults = format::count(faults);
        format!(", with {faults} page faults each {noun}")
    });
    let share = 100.0 * share;
    vec![format!(
        "Ceiling: under {} the kernel takes {share:.1}% of the CPU time{faults}. Page faults, madvise and munmap are in that, \
         and so are input and output: no allocator can save more of the kernel's time than this. In user mode, what malloc and \
         free take, and what caches and huge pages give, is not in it: that only shows by trying.",
        base.label
    )]
}

/// Of the arms that are faster: the fastest, or one that is not told apart from it and peaks lower.
fn choice<'a>(run: &Run, arms: impl Iterator<Item = Figured<'a>>) -> Option<Figured<'a>> {
    let median = |(_, figures): &Figured<'_>| figures.wall_ratio.map_or(f64::INFINITY, |ratio| ratio.median);
    let faster: Vec<_> = arms.filter(|(_, figures)| figures.verdict == Some(Verdict::Faster)).collect();
    let fastest = *faster.iter().min_by(|a, b| median(a).total_cmp(&median(b)))?;
    let equals = faster.into_iter().filter(|(arm, _)| arm.label == fastest.0.label || is_equal(run, arm, fastest.0));
    equals.min_by_key(|(_, figures)| figures.peak_rss_bytes)
}

/// Whether the rounds show no difference in time between two arms.
fn is_equal(run: &Run, arm: &ArmResult, other: &ArmResult) -> bool {
    view::directly(run, arm, other).is_some_and(|ratio| ratio.verdict() == Verdict::NoDifferenceShown)
}

/// Arms that were measured to be as fast as the one taken, which has less memory than those.
fn beside<'a>(run: &Run, taken: &ArmResult, arms: impl Iterator<Item = Figured<'a>>) -> String {
    let equals = arms.filter(|(arm, figures)| {
        arm.label != taken.label && figures.verdict == Some(Verdict::Faster) && is_equal(run, arm, taken)
    });
    let equals: Vec<_> = equals
        .map(|(arm, figures)| {
            let ratio = figures.wall_ratio.map_or_else(String::new, |ratio| format!(" {:.3}", ratio.median));
            let peak = figures.peak_rss_ratio.map_or_else(String::new, |ratio| format!(", peak RSS {ratio:.2}"));
            format!("{} ({}{peak})", arm.label, ratio.trim_start())
        })
        .collect();
    if equals.is_empty() {
        return String::new();
    }
    format!(" Not told apart from it, and with a higher peak: {}.", equals.join(", "))
}

/// Memory and CPU time, as they change.
fn price(workload: &WorkloadResult, (_, figures): Figured<'_>, (base, base_figures): Figured<'_>) -> String {
    let both = |figure: fn(&Summary) -> Option<u64>| Some((figure(figures)?, figure(base_figures)?));
    let changed = |what: &str, (now, then): (u64, u64), words: fn(u64) -> String| {
        let ratio = if then > 0 { format!(" ({:.2})", now as f64 / then as f64) } else { String::new() };
        format!("{what} {} against {}{ratio}", words(now), words(then))
    };
    let parts = [
        both(|figures| figures.peak_rss_bytes).map(|pair| changed("peak RSS", pair, format::bytes)),
        both(|figures| figures.resting_rss_bytes)
            .filter(|_| workload.timed.rests())
            .map(|pair| changed("resting RSS", pair, format::bytes)),
        both(|figures| figures.warm_cpu_ns).map(|pair| changed("CPU time", pair, format::time)),
        both(|figures| figures.warm_minflt).map(|pair| changed("page faults", pair, format::count)),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    format!("Its price, against {}: {}.", base.label, parts.join("; "))
}

/// Nothing is faster: what then.
fn stay<'a>(
    workload: &WorkloadResult,
    base: &ArmResult,
    base_figures: &Summary,
    arms: impl Iterator<Item = Figured<'a>> + Clone,
) -> Vec<String> {
    let base = &base.label;
    if arms.clone().next().is_none() {
        return vec![format!("Nothing to compare {base} with.")];
    }
    if arms.clone().all(|(_, figures)| matches!(figures.verdict, None | Some(Verdict::TooFewRounds))) {
        return vec!["Too few rounds for a verdict: 6 rounds or more give one.".to_owned()];
    }
    let mut verdict = vec![format!("Stay with {base}: no allocator is shown to be faster.")];
    let leaner = arms.filter(|(_, figures)| {
        figures.verdict == Some(Verdict::NoDifferenceShown)
            && figures.peak_rss_ratio.is_some_and(|ratio| ratio < NOTABLE_SAVING)
    });
    if let Some((arm, figures)) = leaner.min_by_key(|(_, figures)| figures.peak_rss_bytes) {
        let [now, then] =
            [figures, base_figures].map(|figures| figures.peak_rss_bytes.map_or("?".into(), format::bytes));
        verdict.push(format!(
            "For memory there is {}: no difference shown in time, peak RSS {now} against {then} of {base}.",
            arm.label
        ));
    }
    if workload.arms.iter().any(|arm| view::figures(arm).is_none()) {
        verdict.push("That is of those that have figures: the table says why others have none.".into());
    }
    verdict
}

/// What brings an allocator into an image, behind whatever needs the C library's own.
fn dockerfile(entrant: &Entrant) -> Vec<String> {
    let mut lines = Vec::new();
    let file = entrant.file();
    let variables = entrant.environment.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    let preload = match (&entrant.package, file) {
        (Some((package, _)), Some(file)) if is_of_debian() => {
            lines.push(format!(
                "RUN apt-get update && apt-get install -y --no-install-recommends {package} && rm -rf /var/lib/apt/lists/*"
            ));
            Some(file)
        }
        (Some((package, _)), Some(file)) => {
            lines.push(format!("RUN dnf install -y {package} && dnf clean all"));
            Some(file)
        }
        (None, Some(file)) => {
            lines.push(format!("COPY {file} /usr/local/lib/{file}"));
            Some(format!("/usr/local/lib/{file}"))
        }
        (_, None) => None,
    };
    let preload = preload.map(|library| format!("LD_PRELOAD={library}"));
    let words: Vec<_> = preload.into_iter().chain(variables).collect();
    lines.push(format!("ENV {}", words.join(" ")));
    lines
}

fn is_of_debian() -> bool {
    std::path::Path::new("/etc/debian_version").is_file()
}

/// A command as a shell takes it.
pub(super) fn command_line(command: &[OsString]) -> String {
    command.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::record::tests::arm;
    use crate::results::record::{self, Ended, Outcome, SCHEMA};
    use crate::results::timed::Timed;

    /// Ten rounds of these arms, as shares of 100 ms and peaks in MB; the first is the baseline. Neighbours scatter by 1% in
    /// opposite rounds, so that their intervals have a width.
    fn advice(arms: &[(&str, f64, u64)]) -> Advice {
        let mut results: Vec<_> = arms
            .iter()
            .zip(0_u32..)
            .map(|((label, share, peak), index)| {
                let noise = |round: u32| if (round + index).is_multiple_of(2) { 0.99 } else { 1.01 };
                let wall = |round: u32| (1e8 * share * noise(round)) as u64;
                let times: Vec<_> = (0..11).map(wall).collect();
                let mut result = arm(label, Outcome::Finished, &times);
                result.samples.retain(|proof| proof.is_warm());
                for proof in &mut result.samples {
                    proof.process = proof.round - 1;
                    proof.sample.sys_ns = proof.sample.user_ns / 9;
                    proof.sample.peak_rss_bytes = peak * 1_000_000;
                }
                result
            })
            .collect();
        record::summarise(&mut results, 0, 1);
        let workload = WorkloadResult {
            workload: "sort".into(),
            about: "sort file".into(),
            timed: Timed::Runs,
            log_rows: 0,
            threads: 0,
            live_peak_bytes: None,
            baseline: arms[0].0.into(),
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
            sweep: None,
            machine: Machine::observe(),
            workloads: Vec::new(),
            interrupted: false,
            advice: None,
        };
        let entrants: Vec<_> = arms.iter().map(|(label, ..)| entrant(label)).collect();
        of(&run, &workload, &entrants, &["sort".into(), "a b".into()], &[])
    }

    fn entrant(label: &str) -> Entrant {
        let of_package = label == "jemalloc-tuned";
        Entrant {
            label: label.into(),
            arm: label.into(),
            library: (label != "glibc").then(|| format!("/opt/lib{label}.so.2").into()),
            preloaded: String::new(),
            environment: if of_package { vec![("MALLOC_CONF".into(), "a:b,c:-1".into())] } else { Vec::new() },
            package: None,
            trouble: None,
        }
    }

    /// Of allocators that the rounds don't tell apart, the one that costs least is the one to take.
    #[test]
    fn the_leanest_of_the_fastest_is_taken_and_its_price_is_named() {
        let advice = advice(&[("glibc", 1.0, 100), ("mimalloc", 0.8, 150), ("tcmalloc", 0.801, 110), ("x", 0.9, 90)]);
        let verdict = advice.verdict.join(" ");
        assert!(verdict.starts_with("Take tcmalloc: runs take 0.80"), "{verdict}");
        assert!(
            verdict.contains("Not told apart from it, and with a higher peak: mimalloc (0.800, peak RSS 1.50)."),
            "{verdict}"
        );
        assert!(verdict.contains("peak RSS 110 MB against 100 MB (1.10)"), "{verdict}");
        assert_eq!(advice.environment.as_deref(), Some("LD_PRELOAD=/opt/libtcmalloc.so.2 sort 'a b'"));
        assert_eq!(advice.dockerfile[0], "COPY libtcmalloc.so.2 /usr/local/lib/libtcmalloc.so.2");
        assert_eq!(advice.dockerfile[1], "ENV LD_PRELOAD=/usr/local/lib/libtcmalloc.so.2");
        assert!(!verdict.contains(BUILT_HERE), "{verdict}");
        assert!(advice.ceiling[0].contains("the kernel takes 10.0% of the CPU time"), "{}", advice.ceiling[0]);
    }

    /// Copied to an older processor it would die of an illegal instruction.
    #[test]
    fn where_our_library_runs_is_said_with_the_lines_that_copy_it() {
        let advice = advice(&[("glibc", 1.0, 100), (OURS, 0.8, 100)]);
        assert_eq!(advice.dockerfile[0], "COPY libzk-alloc.so.2 /usr/local/lib/libzk-alloc.so.2");
        assert_eq!(advice.verdict.last().map(String::as_str), Some(BUILT_HERE));
    }

    /// A difference that is not shown must not become advice, and one of memory is worth a word.
    #[test]
    fn without_a_faster_one_it_is_glibc() {
        let advice = advice(&[("glibc", 1.0, 100), ("mimalloc", 1.0, 80), ("x", 1.2, 10)]);
        let verdict = advice.verdict.join(" ");
        assert!(
            verdict.starts_with("Stay with glibc") && verdict.contains("For memory there is mimalloc"),
            "{verdict}"
        );
        assert!(advice.environment.is_none() && advice.dockerfile.is_empty());
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        let words = ["a b", "it's", "", "plain-1:2,x", "$HOME"].map(OsString::from);
        assert_eq!(command_line(&words), "'a b' 'it'\\''s' '' plain-1:2,x '$HOME'");
        let tuned = entrant("jemalloc-tuned");
        assert_eq!(dockerfile(&tuned)[1], "ENV LD_PRELOAD=/usr/local/lib/libjemalloc-tuned.so.2 MALLOC_CONF=a:b,c:-1");
    }
}
