//! Compares figures with their baseline. Pure: two entries in, rows and verdicts out.

use super::baseline::Entry;
use super::figures::{Figures, TimeRatio};
use crate::results::format;
use std::ops::Sub;

/// Allowed minor faults above the baseline. glibc serves small requests, and its heaps for plonky2's threads grow by
/// some hundred pages during the first proofs of a process. A buffer that is faulted in again for each proof adds
/// thousands.
const FAULTS: u64 = 400;
/// The same for a large baseline, as the divisor of the baseline.
const FAULTS_PART: u64 = 4;
/// Allowed calls of the arena above the baseline. While the arena finds its size, the median proof makes one call more
/// or less. A call for each buffer would add hundreds.
const SYSTEM_CALLS: u64 = 4;
/// Allowed bytes above the baseline. The proof and a few small blocks leave a phase; a buffer that stays alive is
/// larger.
const ESCAPED_BYTES: u64 = 1 << 20;
/// Allowed peak ratio above the baseline. The order of threads moves the peaks of both allocators, and one huge page is
/// a tenth of the smallest process here.
const PEAK_RSS_RATIO: f64 = 0.1;
/// Allowed time ratio above the baseline, on top of both intervals. The intervals cover the noise within each run. Two
/// quiet runs may differ by this much.
const TIME_RATIO: f64 = 0.05;
/// The same between machines or build profiles, because page faults weigh differently on each.
const TIME_RATIO_ELSEWHERE: f64 = 0.15;

/// One figure of one workload.
#[derive(Debug, PartialEq)]
pub(super) struct Row {
    pub(super) figure: &'static str,
    pub(super) baseline: String,
    pub(super) now: String,
    pub(super) allowed: String,
    pub(super) verdict: Verdict,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Holds,
    /// The amount above the allowed value.
    Worse(String),
    NotJudged(&'static str),
}

impl Row {
    pub(super) fn holds(&self) -> bool {
        !matches!(self.verdict, Verdict::Worse(_))
    }
}

/// One row for each figure of `now`, compared with `baseline` if there is one. `tolerance` applies to warm time;
/// without it the baseline's origin decides.
pub(super) fn rows(baseline: Option<&Entry>, now: &Entry, tolerance: Option<f64>) -> Vec<Row> {
    let (then, here) = (baseline.map(|entry| &entry.figures), &now.figures);
    let counted = |figure, value: fn(&Figures) -> u64, slack: fn(u64) -> u64| {
        let held = then.map(value).map(|then| (then, then + slack(then)));
        row(figure, held, value(here), format::count)
    };
    let memory = then.map(|then| (then.peak_rss_ratio, then.peak_rss_ratio + PEAK_RSS_RATIO));
    vec![
        counted("minor faults", |of| of.minor_faults, |then| FAULTS.max(then / FAULTS_PART)),
        counted("system calls", |of| of.system_calls, |_| SYSTEM_CALLS),
        counted("escaped bytes", |of| of.escaped_bytes, |_| ESCAPED_BYTES),
        row("peak RSS / glibc's", memory, here.peak_rss_ratio, |ratio| format!("{ratio:.3}")),
        time(baseline, now, tolerance),
    ]
}

/// `held` is the baseline value and the allowed value.
fn row<T>(figure: &'static str, held: Option<(T, T)>, now: T, shown: impl Fn(T) -> String) -> Row
where
    T: PartialOrd + Copy + Sub<Output = T>,
{
    let (baseline, allowed, verdict) = match held {
        None => (String::new(), String::new(), Verdict::NotJudged("new")),
        Some((baseline, allowed)) if now > allowed => {
            (shown(baseline), shown(allowed), Verdict::Worse(shown(now - allowed)))
        }
        Some((baseline, allowed)) => (shown(baseline), shown(allowed), Verdict::Holds),
    };
    Row { figure, baseline, now: shown(now), allowed, verdict }
}

/// Compares warm time. Noise on either side raises the allowed value, so it does not fail the check. A difference
/// counts if its 95% interval excludes the tolerance. That interval is combined from the intervals of both ratios (Zou
/// and Donner, "Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008).
fn time(baseline: Option<&Entry>, now: &Entry, tolerance: Option<f64>) -> Row {
    let (tolerance, named) = match (tolerance, baseline) {
        (Some(tolerance), _) => (tolerance, ""),
        (None, Some(entry)) if !entry.is_like(now) => (TIME_RATIO_ELSEWHERE, ", from elsewhere"),
        _ => (TIME_RATIO, ""),
    };
    let held = baseline.and_then(|entry| entry.figures.warm_time_ratio);
    let limit = |then: TimeRatio, now: TimeRatio| {
        then.median + tolerance + (then.high - then.median).hypot(now.median - now.low)
    };
    let shown = |ratio: TimeRatio| format!("{:.3} [{:.3}, {:.3}]", ratio.median, ratio.low, ratio.high);
    let of = |entry: &Entry| entry.figures.warm_time_ratio.map_or_else(String::new, shown);
    let (allowed, verdict) = match (held, now.figures.warm_time_ratio) {
        (None, _) => (String::new(), Verdict::NotJudged("new")),
        (_, None) => (String::new(), Verdict::NotJudged("too few rounds")),
        (Some(then), Some(ratio)) => {
            let limit = limit(then, ratio);
            let worse = ratio.median > limit;
            let verdict = if worse { Verdict::Worse(format!("{:.3}", ratio.median - limit)) } else { Verdict::Holds };
            (format!("{limit:.3} as it scatters{named}"), verdict)
        }
    };
    Row {
        figure: "warm time / glibc's",
        baseline: baseline.map_or_else(String::new, of),
        now: of(now),
        allowed,
        verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(machine: &str, minor_faults: u64, (median, low): (f64, f64)) -> Entry {
        let warm_time_ratio = Some(TimeRatio { median, low, high: 2.0 * median - low });
        let figures =
            Figures { minor_faults, system_calls: 0, escaped_bytes: 1 << 16, peak_rss_ratio: 1.0, warm_time_ratio };
        Entry { log_rows: 13, threads: 2, machine: machine.into(), profile: "release".into(), figures }
    }

    /// The figures that fail if `change` is applied to a copy of a baseline with 80 faults and 0.9 of glibc's time.
    fn worse(change: impl FnOnce(&mut Entry)) -> Vec<&'static str> {
        let baseline = entry("here", 80, (0.9, 0.88));
        let mut now = baseline.clone();
        change(&mut now);
        rows(Some(&baseline), &now, None).iter().filter(|row| !row.holds()).map(|row| row.figure).collect()
    }

    /// Each figure must fail the check by itself just above its limit, and not before.
    #[test]
    fn each_figure_is_held_at_its_limit() {
        assert_eq!(worse(|_| {}), [""; 0]);
        assert_eq!(worse(|now| now.figures.minor_faults = 480), [""; 0]);
        assert_eq!(worse(|now| now.figures.minor_faults = 481), ["minor faults"]);
        assert_eq!(worse(|now| now.figures.system_calls = 5), ["system calls"]);
        assert_eq!(worse(|now| now.figures.escaped_bytes += (1 << 20) + 1), ["escaped bytes"]);
        assert_eq!(worse(|now| now.figures.peak_rss_ratio = 1.101), ["peak RSS / glibc's"]);
        // Each interval reaches 0.02 from its median, so 0.05 plus 0.028 is allowed.
        assert_eq!(worse(|now| *now = entry("here", 80, (0.978, 0.958))), [""; 0]);
        assert_eq!(worse(|now| *now = entry("here", 80, (0.979, 0.959))), ["warm time / glibc's"]);
    }

    /// On a busy machine the median may be anywhere. Only an interval that is worse as a whole shows a regression.
    #[test]
    fn a_wide_interval_does_not_fail_the_check_and_a_missing_one_is_not_judged() {
        assert_eq!(worse(|now| *now = entry("here", 80, (1.3, 0.94))), [""; 0]);
        assert_eq!(worse(|now| now.figures.warm_time_ratio = None), [""; 0]);
    }

    /// The wide interval of a lucky baseline shows that it was lucky. (From a CI run on a busy machine, which must not
    /// fail.)
    #[test]
    fn a_baseline_that_scattered_does_not_fail_a_calm_run() {
        let row = time(Some(&entry("here", 0, (0.754, 0.446))), &entry("here", 0, (1.009, 0.959)), None);
        assert!(row.holds(), "{row:?}");
    }

    /// A baseline from elsewhere must not fail unchanged code, nor let everything pass.
    #[test]
    fn another_machine_widens_the_tolerance_of_time_alone() {
        assert_eq!(worse(|now| *now = entry("there", 80, (1.0, 0.98))), [""; 0]);
        assert_eq!(worse(|now| *now = entry("there", 80, (1.1, 1.08))), ["warm time / glibc's"]);
        assert_eq!(worse(|now| *now = entry("there", 500, (0.9, 0.88))), ["minor faults"]);
    }

    #[test]
    fn a_tolerance_that_was_asked_for_is_used_wherever_the_baseline_is_from() {
        let holds = |machine, tolerance| {
            time(Some(&entry("here", 0, (0.9, 0.9))), &entry(machine, 0, (1.0, 1.0)), tolerance).holds()
        };
        assert!(holds("here", Some(0.11)) && !holds("here", Some(0.09)) && !holds("there", Some(0.09)));
        assert!(holds("there", None) && !holds("here", None));
    }

    /// The allowance grows with a baseline of many faults.
    #[test]
    fn many_faults_may_be_a_quarter_more() {
        let held = |then, now| rows(Some(&entry("m", then, (1.0, 1.0))), &entry("m", now, (1.0, 1.0)), None)[0].holds();
        assert!(held(4000, 5000) && !held(4000, 5001));
    }
}
