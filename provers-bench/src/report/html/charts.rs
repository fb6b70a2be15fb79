//! The charts of one workload, each with a row per arm.

use super::bars::{Bars, Row};
use super::palette::Palette;
use super::scale::{Scale, range};
use crate::results::record::{ArmResult, Outcome, WorkloadResult};
use crate::results::stats::Interval;
use crate::results::summary::Summary;
use crate::results::timed::Timed;
use crate::results::{format, view};
use maud::{Markup, html};

/// Least extent of a range of ratios to both sides of 1, so that noise does not fill a chart.
const LEAST_SPAN: f64 = 0.05;
/// Padding at the ends of a range.
const PADDING: f64 = 0.04;

/// All charts of a workload.
pub(super) fn charts(workload: &WorkloadResult, palette: &Palette) -> Markup {
    html! {
        (warm(workload, palette))
        (spread(workload, palette))
        @if workload.timed != Timed::Runs { (cold(workload, palette)) }
        (faults(workload, palette))
        (memory(workload, palette))
    }
}

/// The rows of all arms. `fill` sets the figures of each row.
fn rows(workload: &WorkloadResult, palette: &Palette, fill: impl Fn(&ArmResult, &Summary, &mut Row)) -> Vec<Row> {
    let row = |arm: &ArmResult| {
        let note = match &arm.outcome {
            Outcome::Failed { round, .. } => format!("FAILED in round {round}"),
            Outcome::LeftOut { .. } => "left out".into(),
            Outcome::Interrupted => "interrupted".into(),
            Outcome::Finished => "no figure".into(),
        };
        let (label, look) = (arm.label.clone(), palette.look(&arm.label));
        let mut row = Row { label, look, note, bar: None, inner: None, interval: None, dots: Vec::new() };
        if let Some(summary) = view::figures(arm) {
            fill(arm, summary, &mut row);
        }
        row
    };
    workload.arms.iter().map(row).collect()
}

fn warm(workload: &WorkloadResult, palette: &Palette) -> Markup {
    let base = &workload.baseline;
    let rows = rows(workload, palette, |arm, summary, row| match summary.wall_ratio {
        Some(ratio) => {
            row.note = format::ratio(&ratio);
            row.bar = Some((1.0, ratio.median));
            row.interval = ratio.interval;
        }
        None if view::is_baseline(workload, arm) => row.note = "baseline".into(),
        None => row.note = format!("no {base} to compare with"),
    });
    let ends = rows.iter().flat_map(|row| {
        let interval = row.interval.into_iter().flat_map(|Interval { low, high }| [low, high]);
        row.bar.map(|(_, to)| to).into_iter().chain(interval)
    });
    Bars {
        title: if workload.timed == Timed::Runs { "Time" } else { "Warm time" },
        about: format!("as a ratio to {base}, median of the rounds and its 95% interval; left of the line is faster"),
        scale: ratios(ends),
        tick: ratio_tick,
        marker: Some((1.0, base.clone())),
        rows,
    }
    .draw()
}

fn spread(workload: &WorkloadResult, palette: &Palette) -> Markup {
    let base = &workload.baseline;
    let reference = view::baseline(workload).map(|(arm, _)| arm);
    let rows = rows(workload, palette, |arm, _, row| {
        if view::is_baseline(workload, arm) {
            row.note = "baseline".into();
            return;
        }
        row.dots = reference.map(|reference| view::wall_ratios(arm, reference).concat()).unwrap_or_default();
        row.note = match range(row.dots.iter().copied()) {
            Some((low, high)) => format!("{} rounds, {low:.3} to {high:.3}", row.dots.len()),
            None => format!("no {base} to compare with"),
        };
    });
    Bars {
        title: if workload.timed == Timed::Runs { "Every round" } else { "Every warm round" },
        about: format!(
            "a dot is one {}'s time to that of {base} in the same round; the first rounds on top",
            workload.timed.noun()
        ),
        scale: ratios(rows.iter().flat_map(|row| row.dots.iter().copied())),
        tick: ratio_tick,
        marker: Some((1.0, base.clone())),
        rows,
    }
    .draw()
}

fn cold(workload: &WorkloadResult, palette: &Palette) -> Markup {
    let rows = rows(workload, palette, |arm, summary, row| {
        let time = summary.cold_wall_ns.map_or_else(|| row.note.clone(), format::time);
        row.note = match &summary.cold_ratio {
            Some(ratio) => format!("{time}, ratio {}", format::ratio(ratio)),
            None => time,
        };
        row.bar = summary.cold_wall_ns.map(|ns| (0.0, ns as f64));
        row.dots = view::cold(arm).map(|proof| proof.sample.wall_ns as f64).collect();
    });
    let baseline = view::baseline(workload).and_then(|(arm, summary)| Some((arm, summary.cold_wall_ns?)));
    Bars {
        title: "Cold time",
        about: format!("the first {} of a fresh process: median, and a dot a process", workload.timed.noun()),
        scale: from_zero(rows.iter().flat_map(|row| &row.dots).copied()),
        tick: time_tick,
        marker: baseline.map(|(arm, ns)| (ns as f64, arm.label.clone())),
        rows,
    }
    .draw()
}

fn faults(workload: &WorkloadResult, palette: &Palette) -> Markup {
    let rows = rows(workload, palette, |_, summary, row| {
        let Some(faults) = summary.warm_minflt else { return };
        let calls = summary.warm_system_calls.map(|calls| format!(", {} system calls", format::count(calls)));
        row.note = format!("{}{}", format::count(faults), calls.unwrap_or_default());
        row.bar = Some((0.0, faults as f64));
    });
    Bars {
        title: "Page faults",
        about: format!("minor faults of {}, median", workload.timed.warm()),
        scale: from_zero(rows.iter().filter_map(|row| row.bar).map(|(_, to)| to)),
        tick: |faults| format::count(faults as u64),
        marker: None,
        rows,
    }
    .draw()
}

fn memory(workload: &WorkloadResult, palette: &Palette) -> Markup {
    let live = workload.live_peak_bytes.map(|bytes| (bytes as f64, format!("live peak {}", format::bytes(bytes))));
    let rests = workload.timed.rests();
    let rows = rows(workload, palette, |_, summary, row| {
        let Some(peak) = summary.peak_rss_bytes else { return };
        let resting = summary.resting_rss_bytes.filter(|_| rests);
        let noted = resting.map(|bytes| format!(", resting {}", format::bytes(bytes)));
        row.note = format!("peak {}{}", format::bytes(peak), noted.unwrap_or_default());
        row.bar = Some((0.0, peak as f64));
        row.inner = resting.map(|bytes| bytes as f64);
    });
    let ends = rows.iter().filter_map(|row| row.bar).map(|(_, to)| to);
    Bars {
        title: "Resident memory",
        about: match workload.timed {
            Timed::Proofs | Timed::Slots => {
                "peak over all proofs, pale; resting after the last one was dropped, full".into()
            }
            Timed::Runs => "peak over all runs, of all processes together".into(),
            Timed::Intervals => "peak over all intervals, pale; at the end of the last one, full".into(),
        },
        scale: from_zero(ends.chain(live.iter().map(|(bytes, _)| *bytes))),
        tick: bytes_tick,
        marker: live,
        rows,
    }
    .draw()
}

/// A scale around 1 that covers `values`.
pub(super) fn ratios(values: impl Iterator<Item = f64>) -> Scale {
    let (low, high) = range(values.chain([1.0 - LEAST_SPAN, 1.0 + LEAST_SPAN])).unwrap_or((0.0, 2.0));
    let padding = (high - low) * PADDING;
    Scale::linear(low - padding, high + padding, 0.0, 1.0)
}

/// A scale from 0 that covers `values`.
pub(super) fn from_zero(values: impl Iterator<Item = f64>) -> Scale {
    let (_, high) = range(values).unwrap_or((0.0, 1.0));
    Scale::linear(0.0, high * (1.0 + PADDING), 0.0, 1.0)
}

pub(super) fn ratio_tick(ratio: f64) -> String {
    format!("{ratio:.2}")
}

pub(super) fn time_tick(ns: f64) -> String {
    or_zero(ns, format::time)
}

pub(super) fn bytes_tick(bytes: f64) -> String {
    or_zero(bytes, format::bytes)
}

fn or_zero(value: f64, name: fn(u64) -> String) -> String {
    if value == 0.0 { "0".into() } else { name(value.round() as u64) }
}
