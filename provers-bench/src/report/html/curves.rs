//! Curves: memory over the time of one proof, and figures over the points of a sweep.

use super::charts::{bytes_tick, from_zero, ratio_tick, ratios, time_tick};
use super::lines::{Axis, Curve, Lines, Point};
use super::palette::Palette;
use super::scale::{Scale, range};
use crate::results::record::{ArmResult, Run, Sweep, WorkloadResult};
use crate::results::summary::Summary;
use crate::results::timed::Timed;
use crate::results::{format, view};
use maud::{Markup, html};
use std::collections::BTreeSet;

/// Memory over the time of the cold proof and of the first warm one, if the driver sampled it.
pub(super) fn memory(workload: &WorkloadResult, palette: &Palette) -> Markup {
    // Both charts have the same height, so that they can be compared.
    let points = || workload.arms.iter().flat_map(|arm| &arm.rss_over_time);
    let live = workload.live_peak_bytes.map(|bytes| (bytes as f64, format!("live peak {}", format::bytes(bytes))));
    let heights = points().map(|point| point.rss_bytes as f64).chain(live.iter().map(|(bytes, _)| *bytes));
    let height = from_zero(heights);
    // The driver samples two proofs of a process: the cold one (round 0) and the first warm one.
    let rounds: BTreeSet<u32> = points().map(|point| point.round).collect();
    html! { @if !rounds.is_empty() { div {
        @for round in rounds {
            @let proof = match (workload.timed, round) {
                (Timed::Proofs, 0) => "cold proof",
                (Timed::Proofs, _) => "first warm proof",
                (Timed::Slots, _) => "first turn",
                _ => "first run",
            };
            @let times = points().filter(|point| point.round == round).map(|point| f64::from(point.at_ms));
            (Lines {
                title: format!("Memory, {proof}"),
                about: "resident, over the time since the first request; the driver looks now and then".into(),
                x: Axis::round(from_zero(times), |ms| time_tick(ms * 1e6)),
                y: Axis::round(height, bytes_tick),
                marker: live.clone(),
                curves: workload.arms.iter().map(|arm| over_time(arm, round, palette)).collect(),
            }.draw())
        }
    } } }
}

fn over_time(arm: &ArmResult, round: u32, palette: &Palette) -> Curve {
    let points = arm.rss_over_time.iter().filter(|point| point.round == round).map(|point| Point {
        x: f64::from(point.at_ms),
        y: point.rss_bytes as f64,
        interval: None,
    });
    Curve { label: arm.label.clone(), look: palette.look(&arm.label), marked: false, points: points.collect() }
}

/// The workloads of a sweep by name, in the order of the run. Each name has the points of its curves.
pub(super) fn groups(run: &Run) -> Vec<(&str, Vec<&WorkloadResult>)> {
    let mut groups: Vec<(&str, Vec<_>)> = Vec::new();
    for workload in &run.workloads {
        match groups.iter_mut().find(|(name, _)| *name == workload.workload) {
            Some((_, points)) => points.push(workload),
            None => groups.push((&workload.workload, vec![workload])),
        }
    }
    groups
}

/// Time and memory along the points of a sweep.
pub(super) fn sweep(sweep: Sweep, points: &[&WorkloadResult], palette: &Palette) -> Markup {
    let Some(first) = points.first() else { return html! {} };
    let base = &first.baseline;
    let over = match sweep {
        Sweep::LogRows => "the rows of the trace",
        Sweep::Threads => "the threads of the prover's pool",
    };
    let swept = Swept { sweep, points, palette };
    let times = swept.curves(|summary| height(summary.warm_wall_ns? as f64));
    let peaks = swept.curves(|summary| height(summary.peak_rss_bytes? as f64));
    let compared = swept.curves(|summary| {
        let ratio = summary.wall_ratio?;
        Some(Point { interval: ratio.interval, ..height(ratio.median)? })
    });
    let ends = compared.iter().flat_map(|curve| &curve.points).flat_map(|point| {
        let interval = point.interval.into_iter().flat_map(|interval| [interval.low, interval.high]);
        interval.chain([point.y])
    });
    html! {
        (Lines {
            title: "Warm time".into(),
            about: format!("over {over}; both axes grow by factors"),
            x: swept.axis(),
            y: Axis::round(factors(&times), time_tick),
            marker: None,
            curves: times,
        }.draw())
        (Lines {
            title: "Warm time as a ratio".into(),
            about: format!("to {base}, with 95% intervals, over {over}; below the line is faster"),
            x: swept.axis(),
            y: Axis::round(ratios(ends), ratio_tick),
            marker: Some((1.0, base.clone())),
            curves: compared,
        }.draw())
        (Lines {
            title: "Peak resident memory".into(),
            about: format!("over {over}; both axes grow by factors"),
            x: swept.axis(),
            y: Axis::round(factors(&peaks), bytes_tick),
            marker: None,
            curves: peaks,
        }.draw())
    }
}

/// The points of one workload's curves.
struct Swept<'a> {
    sweep: Sweep,
    points: &'a [&'a WorkloadResult],
    palette: &'a Palette,
}

impl Swept<'_> {
    /// A point's position along the sweep: equal factors are equal steps.
    fn place(&self, point: &WorkloadResult) -> f64 {
        match self.sweep {
            Sweep::LogRows => f64::from(point.log_rows),
            Sweep::Threads => (point.threads as f64).log2(),
        }
    }

    fn axis(&self) -> Axis {
        let name = |point: &WorkloadResult| match self.sweep {
            Sweep::LogRows => format!("2^{}", point.log_rows),
            Sweep::Threads => point.threads.to_string(),
        };
        let (low, high) = range(self.points.iter().map(|point| self.place(point))).unwrap_or((0.0, 1.0));
        let padding = (high - low).max(1.0) * 0.06;
        let ticks = self.points.iter().map(|point| (self.place(point), name(point))).collect();
        Axis { scale: Scale::linear(low - padding, high + padding, 0.0, 1.0), ticks }
    }

    /// A curve for each arm, over the points that have the figure.
    fn curves(&self, figure: fn(&Summary) -> Option<Point>) -> Vec<Curve> {
        let mut seen = BTreeSet::new();
        let arms = self.points.iter().flat_map(|point| &point.arms);
        let labels = arms.map(|arm| &arm.label).filter(|label| seen.insert(*label));
        let curve = |label: &String| {
            let at = |point: &&WorkloadResult| {
                let arm = point.arms.iter().find(|arm| arm.label == *label)?;
                Some(Point { x: self.place(point), ..figure(view::figures(arm)?)? })
            };
            let points = self.points.iter().filter_map(at).collect();
            Curve { label: label.clone(), look: self.palette.look(label), marked: true, points }
        };
        labels.map(curve).collect()
    }
}

/// A height without an interval. The caller sets its position along the sweep.
fn height(y: f64) -> Option<Point> {
    Some(Point { x: 0.0, y, interval: None })
}

/// A logarithmic scale that covers all `curves`.
fn factors(curves: &[Curve]) -> Scale {
    let heights = curves.iter().flat_map(|curve| &curve.points).map(|point| point.y);
    let (low, high) = range(heights).unwrap_or((1.0, 10.0));
    Scale::logarithmic(low * 0.9, high * 1.1, 0.0, 1.0)
}
