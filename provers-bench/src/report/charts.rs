//! The charts of a run: time against memory, the ratios of each round, and memory over time. They show the arms that
//! ran.

use super::chart::{Axis, Chart, Palette, Point, Scale, Series, Shape, bytes_tick, ratio_tick, time_tick};
use crate::results::{ArmResult, Ratio, Timed, WorkloadResult, format, view, warm_wall_ratios};
use std::collections::BTreeSet;

const SIZE: (f64, f64) = (360.0, 220.0);
/// Height of an arm's row.
const ROW: f64 = 26.0;
/// Smallest range of an axis of memory ratios.
const MIN_MEMORY: [f64; 2] = [0.8, 1.25];

/// Time and memory as ratios to the baseline's, with a dot for each arm of each named workload. `None` if no arm has
/// ratios.
pub(super) fn time_and_memory(workloads: &[(String, &WorkloadResult)]) -> Option<Chart> {
    let palette = Palette::of(workloads.iter().map(|(_, workload)| *workload));
    let (_, first) = workloads.first()?;
    let (baseline, is_of_slots) = (&first.baseline, first.timed == Timed::Slots);
    // For proofs at fixed times, the memory that the host pays for is the sum over time.
    let figure = if is_of_slots { "memory over time" } else { "peak RSS" };
    let dots = workloads.iter().flat_map(|(name, workload)| {
        let dot = |arm: &ArmResult| {
            let (ratio, peak) = view::figures(arm).map(|summary| (summary.wall_ratio, summary.peak_rss_ratio))?;
            let (ratio, memory) = (ratio?, if is_of_slots { view::byte_seconds_ratio(workload, arm) } else { peak }?);
            let look = palette.look(&arm.label);
            // Among several workloads, only our dots have names: those of the workloads.
            let shown = if workloads.len() == 1 { Some(&arm.label) } else { look.ours.then_some(name) };
            let point = Point {
                x: ratio.median,
                y: memory,
                radius: if look.ours { 5.0 } else { 3.5 },
                name: shown.cloned(),
                meaning: format!("{name}, {}: time {}, {figure} {memory:.2}", arm.label, format::ratio(&ratio)),
                ..Point::default()
            };
            Some(Series { label: arm.label.clone(), look, shape: Shape::Dots, points: vec![point] })
        };
        workload.arms.iter().filter_map(dot).collect::<Vec<_>>()
    });
    let series = ours_last(dots);
    let values = |of: fn(&Point) -> f64| series.iter().flat_map(|series| &series.points).map(of);
    let mut x = Axis::round(Scale::ratios(values(|point| point.x)), ratio_tick).marked(Some((1.0, String::new())));
    x.title = format!("time by {baseline}'s; faster is further left");
    let memory = Scale::factors(values(|point| point.y).chain(MIN_MEMORY));
    let mut y = Axis::round(memory, ratio_tick).marked(Some((1.0, baseline.clone())));
    y.title = format!("{figure} by {baseline}'s; smaller is further down");
    (!series.is_empty()).then(|| Chart {
        title: "Time and memory".into(),
        about: format!("of each arm, by {baseline}'s; the nearer to the lower left corner, the better"),
        size: (560.0, 364.0),
        x,
        y,
        legend: true,
        series,
        ..Chart::default()
    })
}

/// A row for each arm: the ratio of each round, earlier ones higher, and their median with its interval.
pub(super) fn rounds(workload: &WorkloadResult, palette: &Palette) -> Option<Chart> {
    let (base, _) = view::baseline(workload)?;
    let arms: Vec<(&ArmResult, Ratio)> =
        workload.arms.iter().filter_map(|arm| Some((arm, view::figures(arm)?.wall_ratio?))).collect();
    let row = |index: usize| (arms.len() - 1 - index) as f64;
    let series = arms.iter().enumerate().map(|(index, (arm, ratio))| {
        let ratios = warm_wall_ratios(&arm.samples, &base.samples).concat();
        let rounds = ratios.len() as f64;
        let at = |(round, &x): (usize, &f64)| {
            let (height, meaning) = (0.3 - 0.6 * (round as f64 + 0.5) / rounds, format!("{x:.3}"));
            Point { x, y: row(index) + height, radius: 2.0, meaning, ..Point::default() }
        };
        let median = Point {
            x: ratio.median,
            y: row(index),
            radius: 4.5,
            interval: ratio.interval,
            meaning: format!("{}: {}", arm.label, format::ratio(ratio)),
            ..Point::default()
        };
        let points = ratios.iter().enumerate().map(at).chain([median]).collect();
        Series { label: arm.label.clone(), look: palette.look(&arm.label), shape: Shape::Dots, points }
    });
    let series: Vec<_> = series.collect();
    let values = series.iter().flat_map(|series| &series.points).flat_map(|point| {
        let interval = point.interval.into_iter().flat_map(|interval| [interval.low, interval.high]);
        interval.chain([point.x])
    });
    let x = Axis::round(Scale::ratios(values), ratio_tick).marked(Some((1.0, workload.baseline.clone())));
    let ticks = arms.iter().enumerate().map(|(index, (arm, _))| (row(index), arm.label.clone())).collect();
    let scale = Scale::linear(-0.5, arms.len() as f64 - 0.5);
    (!arms.is_empty()).then(|| Chart {
        title: if workload.timed == Timed::Runs { "Time".into() } else { "Warm time".into() },
        about: format!(
            "by {}'s: a small dot a round, the median and its 95% interval; left of the line is faster",
            workload.baseline
        ),
        size: (SIZE.0, ROW * arms.len() as f64 + 50.0),
        x,
        y: Axis { scale, ticks, ..Axis::default() },
        series,
        ..Chart::default()
    })
}

/// Memory over the time of the cold proof and of the first warm one, if the driver sampled it.
pub(super) fn memory(workload: &WorkloadResult, palette: &Palette) -> Vec<Chart> {
    // All charts have the same height, so that they can be compared.
    let points = || workload.arms.iter().flat_map(|arm| &arm.rss_over_time);
    let live = workload.live_peak_bytes.map(|bytes| (bytes as f64, format!("live peak {}", format::bytes(bytes))));
    let heights = points().map(|point| point.rss_bytes as f64).chain(live.iter().map(|(bytes, _)| *bytes));
    let height = Scale::from_zero(heights);
    let rounds: BTreeSet<u32> = points().map(|point| point.round).collect();
    let chart = |round: u32| {
        let over_time = |arm: &ArmResult| {
            let points = arm.rss_over_time.iter().filter(|point| point.round == round);
            let point = |x: u32, bytes: u64| Point { x: f64::from(x), y: bytes as f64, ..Point::default() };
            let points: Vec<_> = points.map(|rss| point(rss.at_ms, rss.rss_bytes)).collect();
            let series =
                Series { label: arm.label.clone(), look: palette.look(&arm.label), shape: Shape::Line, points };
            (!series.points.is_empty()).then_some(series)
        };
        let times = points().filter(|point| point.round == round).map(|point| f64::from(point.at_ms));
        let what = match (workload.timed, round) {
            (Timed::Proofs, 0) => "cold proof",
            (Timed::Proofs, _) => "first warm proof",
            (Timed::Slots, _) => "first turn",
            _ => "first run",
        };
        Chart {
            title: format!("Memory, {what}"),
            about: "resident, over the time since the first request; the driver looks now and then".into(),
            size: SIZE,
            x: Axis::round(Scale::from_zero(times), |ms| time_tick(ms * 1e6)),
            y: Axis::round(height, bytes_tick).marked(live.clone()),
            legend: true,
            series: ours_last(workload.arms.iter().filter_map(over_time)),
            spans: Vec::new(),
        }
    };
    rounds.into_iter().map(chart).collect()
}

/// Ours come last, so that they are drawn over the others.
fn ours_last(series: impl Iterator<Item = Series>) -> Vec<Series> {
    let (ours, mut others): (Vec<_>, Vec<_>) = series.partition(|series| series.look.ours);
    others.extend(ours);
    others
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, workload};

    fn values(svg: &str, attribute: &str) -> Vec<f64> {
        svg.split(&format!("{attribute}=\""))
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect()
    }

    /// A faster arm must lie further left, no arm may be missing, and every arm has its name.
    #[test]
    fn every_arm_that_can_be_compared_is_a_dot_at_its_time() {
        let result =
            workload(&[("glibc", &EVEN), ("mimalloc", &EVEN.map(|ns| ns * 2)), ("zk-alloc", &EVEN.map(|ns| ns / 2))]);
        let svg = time_and_memory(&[("poseidon2".into(), &result)]).unwrap().picture();
        let places = values(&svg, "cx");
        assert!(places.len() == 2 && places[1] < places[0], "ours comes last, and is faster: {svg}");
        assert!(svg.contains(">mimalloc<") && svg.contains(">zk-alloc<"), "{svg}");
        assert!(time_and_memory(&[("one".into(), &workload(&[("glibc", &EVEN)]))]).is_none());
    }
}
