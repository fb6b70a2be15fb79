//! The figures of an arm that are compared, and the verdicts on them. Pure: two sets of figures in, rows out.

use crate::results::{ArmResult, Ratio, WorkloadResult, format, live_peak_bytes, median, view};
use serde::{Deserialize, Serialize};

/// Allowed minor faults above the baseline. glibc serves small requests, and its heaps for plonky2's threads grow by
/// some hundred pages during the first proofs of a process. A buffer that is faulted in again for each proof adds
/// thousands.
const FAULTS: f64 = 400.0;
/// The same for a large baseline, as a share of it.
const FAULTS_SHARE: f64 = 0.25;
/// Allowed calls of the arena above the baseline. While the arena finds its size, the median proof makes one call more
/// or less. A call for each buffer would add hundreds.
const SYSTEM_CALLS: f64 = 4.0;
/// Allowed bytes above the baseline. The proof and a few small blocks leave a phase; a buffer that stays alive is
/// larger.
const ESCAPED_BYTES: f64 = 1_048_576.0;
/// Allowed live peak above the baseline, as a share of it. Other processes can't change it. The order of the prover's
/// threads moves it by a thousandth.
const LIVE_PEAK_SHARE: f64 = 0.01;
/// Allowed peak ratio above the baseline. The order of threads moves the peaks of both allocators, and one huge page is
/// a tenth of the smallest process here.
const PEAK_RSS_RATIO: f64 = 0.1;

/// Figures of an arm's proofs. Lower is better.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Lower quartile of a warm proof's minor faults. It hides the occasional growth of glibc's heaps, which is larger
    /// on a busy machine. It shows a buffer that every proof faults in again.
    pub(super) minor_faults: Option<u64>,
    /// Median calls of the arena into the kernel in a warm proof.
    pub(super) system_calls: Option<u64>,
    /// Median growth of live page runs and slab blocks in a warm proof, in bytes: the memory that left its phase, the
    /// proof included.
    pub(super) escaped_bytes: Option<u64>,
    /// The most bytes of the arena in use at once; `None` in an older baseline.
    pub(super) live_peak_bytes: Option<u64>,
    /// Highest resident memory over all proofs, as a ratio to the baseline arm's.
    pub(super) peak_rss_ratio: Option<f64>,
    /// Wall-clock time, as a ratio to the baseline arm's round by round; `None` if there are too few rounds.
    pub(super) warm_time_ratio: Option<TimeRatio>,
}

/// A figure and its 95% interval: a ratio of times, or a figure without noise.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimeRatio {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// A figure: its name, its value, how far it may lie above an earlier one, and how it is written.
type Figure = (&'static str, fn(&Figures) -> Option<TimeRatio>, fn(f64) -> f64, fn(f64) -> String);

/// All figures. The time comes last. It has a tolerance on top of its noise.
const FIGURES: [Figure; 6] = [
    ("minor faults", |of| exactly(of.minor_faults), |then| FAULTS.max(then * FAULTS_SHARE), count),
    ("system calls", |of| exactly(of.system_calls), |_| SYSTEM_CALLS, count),
    ("escaped bytes", |of| exactly(of.escaped_bytes), |_| ESCAPED_BYTES, count),
    (LIVE_PEAK, |of| exactly(of.live_peak_bytes), |then| then * LIVE_PEAK_SHARE, bytes),
    ("peak RSS / glibc's", |of| of.peak_rss_ratio.map(TimeRatio::exactly), |_| PEAK_RSS_RATIO, ratio),
    (TIME, |of| of.warm_time_ratio, |_| 0.0, ratio),
];

fn exactly(figure: Option<u64>) -> Option<TimeRatio> {
    figure.map(|figure| TimeRatio::exactly(figure as f64))
}

fn count(figure: f64) -> String {
    format::count(figure as u64)
}

fn bytes(figure: f64) -> String {
    format::bytes(figure as u64)
}

fn ratio(figure: f64) -> String {
    format!("{figure:.3}")
}

pub(super) const TIME: &str = "warm time / glibc's";
const LIVE_PEAK: &str = "live peak";

impl Figures {
    pub(super) fn of(workload: &WorkloadResult, arm: &ArmResult) -> Option<Self> {
        let summary = view::figures(arm)?;
        let mut faults: Vec<u64> = view::warm(arm).map(|proof| proof.sample.minflt).collect();
        faults.sort_unstable();
        Some(Self {
            minor_faults: faults.get(faults.len() / 4).copied(),
            system_calls: summary.warm_system_calls,
            escaped_bytes: warm_median(arm, "escaped_bytes"),
            live_peak_bytes: live_peak_bytes(std::slice::from_ref(arm)),
            peak_rss_ratio: view::peak_ratio(workload, arm).map(rounded),
            warm_time_ratio: summary.wall_ratio.and_then(TimeRatio::of),
        })
    }

    /// The name of a figure that is missing, other than the time and those that older baselines lack.
    pub(super) fn missing(&self) -> Option<&'static str> {
        let mut needed = FIGURES.iter().filter(|(name, ..)| ![TIME, LIVE_PEAK].contains(name));
        needed.find(|(_, of, ..)| of(self).is_none()).map(|(name, ..)| *name)
    }
}

impl TimeRatio {
    fn of(ratio: Ratio) -> Option<Self> {
        let interval = ratio.believed()?;
        let (median, low, high) = (rounded(ratio.median), rounded(interval.low), rounded(interval.high));
        Some(Self { median, low, high })
    }

    /// A figure without noise.
    fn exactly(median: f64) -> Self {
        Self { median, low: median, high: median }
    }

    /// How far `now` must lie above `then` to be shown to differ. A difference of medians has an interval of its own,
    /// combined from those of both (Zou and Donner, "Construction of confidence limits about effect measures",
    /// Statistics in Medicine 27, 2008).
    fn noise(then: Self, now: Self) -> f64 {
        (then.high - then.median).hypot(now.median - now.low)
    }
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

/// One figure, before and now.
#[derive(Debug, PartialEq)]
pub(super) struct Row {
    pub(super) figure: &'static str,
    pub(super) before: String,
    pub(super) now: String,
    pub(super) allowed: String,
    pub(super) verdict: Verdict,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Holds,
    /// The amount beyond the allowed value.
    Worse(String),
    /// The same the other way round: `before` is worse than `now` allows.
    Better(String),
    NotJudged(&'static str),
}

/// One row for each figure that either side has. `tolerance` is the allowed increase of the time ratio, on top of the
/// noise on either side: noise does not fail a comparison.
pub(super) fn rows(before: Option<&Figures>, now: &Figures, tolerance: f64) -> Vec<Row> {
    let row = |(name, of, slack, shown): &Figure| {
        let (then, here) = (before.and_then(of), of(now));
        let of_time = *name == TIME;
        let limit = |then: TimeRatio, now| {
            let tolerance = if of_time { tolerance } else { slack(then.median) };
            then.median + tolerance + TimeRatio::noise(then, now)
        };
        let text = |side: Option<TimeRatio>| match side {
            None => String::new(),
            Some(TimeRatio { median, low, high }) if of_time => format!("{median:.3} [{low:.3}, {high:.3}]"),
            Some(side) => shown(side.median),
        };
        let (allowed, verdict) = match (then, here) {
            (Some(then), Some(here)) => {
                let (above, below) = (here.median - limit(then, here), then.median - limit(here, then));
                let verdict = match (above > 0.0, below > 0.0) {
                    (true, _) => Verdict::Worse(shown(above)),
                    (_, true) => Verdict::Better(shown(below)),
                    _ => Verdict::Holds,
                };
                (shown(limit(then, here)), verdict)
            }
            (None, _) if !of_time || before.is_none() => (String::new(), Verdict::NotJudged("new")),
            _ => (String::new(), Verdict::NotJudged(if of_time { "too few rounds" } else { "gone" })),
        };
        let both = then.zip(here).filter(|_| *name == LIVE_PEAK);
        let more = both
            .map_or_else(String::new, |(then, here)| format!(" ({:+.1}%)", 100.0 * (here.median / then.median - 1.0)));
        let row = Row { figure: name, before: text(then), now: text(here) + &more, allowed, verdict };
        (of_time || then.is_some() || here.is_some()).then_some(row)
    };
    FIGURES.iter().filter_map(row).collect()
}

impl Row {
    pub(super) fn holds(&self) -> bool {
        !matches!(self.verdict, Verdict::Worse(_))
    }

    pub(super) fn cells(&self) -> [String; 5] {
        let verdict = match &self.verdict {
            Verdict::Holds => "holds".to_owned(),
            Verdict::Worse(by) => format!("WORSE by {by}"),
            Verdict::Better(by) => format!("better by {by}"),
            Verdict::NotJudged(why) => (*why).to_owned(),
        };
        [self.figure.to_owned(), self.before.clone(), self.now.clone(), self.allowed.clone(), verdict]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(minor_faults: u64, (median, low): (f64, f64)) -> Figures {
        Figures {
            minor_faults: Some(minor_faults),
            system_calls: Some(0),
            escaped_bytes: Some(1 << 16),
            live_peak_bytes: Some(100_000_000),
            peak_rss_ratio: Some(1.0),
            warm_time_ratio: Some(TimeRatio { median, low, high: 2.0 * median - low }),
        }
    }

    /// The figures that fail if `change` is applied to a copy of a baseline with 80 faults and 0.9 of glibc's time.
    fn worse(change: impl FnOnce(&mut Figures)) -> Vec<&'static str> {
        let baseline = figures(80, (0.9, 0.88));
        let mut now = baseline.clone();
        change(&mut now);
        rows(Some(&baseline), &now, 0.05).iter().filter(|row| !row.holds()).map(|row| row.figure).collect()
    }

    fn time(before: (f64, f64), now: (f64, f64), tolerance: f64) -> Verdict {
        rows(Some(&figures(0, before)), &figures(0, now), tolerance).pop().unwrap().verdict
    }

    /// Each figure must fail the check by itself just above its limit, and not before.
    #[test]
    fn each_figure_fails_the_check_just_above_its_limit() {
        assert_eq!(worse(|_| {}), [""; 0]);
        assert_eq!(worse(|now| now.minor_faults = Some(480)), [""; 0]);
        assert_eq!(worse(|now| now.minor_faults = Some(481)), ["minor faults"]);
        assert_eq!(worse(|now| now.system_calls = Some(5)), ["system calls"]);
        assert_eq!(worse(|now| now.escaped_bytes = Some((1 << 16) + (1 << 20) + 1)), ["escaped bytes"]);
        assert_eq!(worse(|now| now.live_peak_bytes = Some(101_000_001)), ["live peak"]);
        assert_eq!(worse(|now| now.peak_rss_ratio = Some(1.101)), ["peak RSS / glibc's"]);
        // Each interval reaches 0.02 from its median, so 0.05 plus 0.028 is allowed.
        assert_eq!(worse(|now| *now = figures(80, (0.978, 0.958))), [""; 0]);
        assert_eq!(worse(|now| *now = figures(80, (0.979, 0.959))), ["warm time / glibc's"]);
    }

    /// On a busy machine the median may be anywhere. Only an interval that is worse as a whole shows a regression.
    #[test]
    fn a_wide_interval_does_not_fail_the_check_and_a_missing_one_is_not_judged() {
        assert_eq!(worse(|now| *now = figures(80, (1.3, 0.94))), [""; 0]);
        assert_eq!(worse(|now| now.warm_time_ratio = None), [""; 0]);
        // From a CI run on a busy machine, with a lucky baseline, which must not fail.
        assert_eq!(time((0.754, 0.446), (1.009, 0.959), 0.05), Verdict::Holds);
    }

    /// The allowance grows with a baseline of many faults.
    #[test]
    fn many_faults_may_be_a_quarter_more() {
        let holds = |then, now| rows(Some(&figures(then, (1.0, 1.0))), &figures(now, (1.0, 1.0)), 0.0)[0].holds();
        assert!(holds(4000, 5000) && !holds(4000, 5001));
    }

    /// Noise must not be reported as a change, nor a change as noise, in either direction.
    #[test]
    fn without_a_tolerance_only_shown_differences_are_a_change() {
        assert_eq!(time((0.9, 0.89), (0.91, 0.9), 0.0), Verdict::Holds);
        assert_eq!(time((0.9, 0.89), (0.95, 0.94), 0.0), Verdict::Worse("0.036".into()));
        assert_eq!(time((0.95, 0.94), (0.9, 0.89), 0.0), Verdict::Better("0.036".into()));
    }
}
