//! Time against peak memory, both as ratios to the baseline's, with a dot for each arm of each workload. Faster arms
//! lie further left, and smaller ones further down.

use super::charts::{ratio_tick, ratios};
use super::figure::{dot, line, place, text};
use super::palette::{Look, Palette};
use super::scale::{Scale, range};
use super::tables;
use crate::results::format;
use crate::results::record::WorkloadResult;
use crate::results::view;
use maud::{Markup, html};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 392.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 342.0;
/// Height of a line of text, and approximate width of a letter.
const LINE: f64 = 13.0;
const LETTER: f64 = 6.0;
/// Smallest range of the memory axis.
const LEAST_MEMORY: [f64; 2] = [0.8, 1.25];

/// One arm of one workload.
struct Dot {
    look: Look,
    time: f64,
    memory: f64,
    /// Its name, if it is shown.
    label: Option<String>,
    meaning: String,
}

/// The chart's dots and legend.
pub(crate) struct Pareto {
    dots: Vec<Dot>,
    baseline: String,
    /// The arms in the chart, once each.
    legend: Vec<(String, Look)>,
}

impl Pareto {
    /// The chart of these workloads, each with its name; `None` if no arm has ratios to a baseline.
    pub(crate) fn of(workloads: &[(String, &WorkloadResult)], palette: &Palette) -> Option<Self> {
        let (mut dots, mut legend) = (Vec::new(), Vec::<(String, Look)>::new());
        for (name, workload) in workloads {
            for arm in &workload.arms {
                let Some(summary) = view::figures(arm) else { continue };
                let (Some(ratio), Some(memory)) = (summary.wall_ratio, summary.peak_rss_ratio) else { continue };
                let look = palette.look(&arm.label);
                let label = match workloads.len() {
                    1 => Some(arm.label.clone()),
                    _ => look.ours.then(|| name.clone()),
                };
                let meaning = format!("{name}, {}: time {}, peak RSS {memory:.2}", arm.label, format::ratio(&ratio));
                if legend.iter().all(|(label, _)| *label != arm.label) {
                    legend.push((arm.label.clone(), look.clone()));
                }
                dots.push(Dot { look, time: ratio.median, memory, label, meaning });
            }
        }
        // Ours come last, so that they are drawn over the others.
        dots.sort_by_key(|dot| dot.look.ours);
        let baseline = workloads.first()?.1.baseline.clone();
        (!dots.is_empty()).then_some(Self { dots, baseline, legend })
    }

    /// The chart as a figure of the page.
    pub(super) fn figure(&self) -> Markup {
        let about = format!(
            "time across, peak resident memory up, both by {}'s; the nearer to the lower left corner, the better",
            self.baseline
        );
        html! {
            figure.wide {
                figcaption { span { (about) } }
                svg viewBox={ "0 0 " (place(WIDTH)) " " (place(HEIGHT)) } role="img" aria-label={ "Time and memory: " (about) } {
                    (self.drawing())
                }
                ul.legend { @for (label, look) in &self.legend {
                    li.ours[look.ours] { (tables::swatch(&look.class)) (label) }
                } }
            }
        }
    }

    /// The size of the drawing.
    pub(crate) const fn size() -> (f64, f64) {
        (WIDTH, HEIGHT)
    }

    /// The arms in the chart, each with its CSS class.
    pub(crate) fn arms(&self) -> impl Iterator<Item = (&str, &str)> {
        self.legend.iter().map(|(label, look)| (label.as_str(), look.class.as_str()))
    }

    /// The dots, their names and the axes.
    pub(crate) fn drawing(&self) -> Markup {
        let x = ratios(self.dots.iter().map(|dot| dot.time)).over(LEFT, WIDTH - RIGHT);
        let (low, high) = range(self.dots.iter().map(|dot| dot.memory).chain(LEAST_MEMORY)).unwrap_or((0.5, 2.0));
        let y = Scale::logarithmic(low * 0.97, high * 1.03, BOTTOM, TOP);
        let labels = self.labels(&x, &y);
        html! {
            @for value in memory_ticks(low, high) {
                (line("grid", (LEFT, y.at(value)), (WIDTH - RIGHT, y.at(value))))
                (text("tick", "end", (LEFT - 6.0, y.at(value) + 4.0), &ratio_tick(value)))
            }
            @for value in x.ticks() {
                (line("grid", (x.at(value), TOP), (x.at(value), BOTTOM)))
                (text("tick", "middle", (x.at(value), BOTTOM + 16.0), &ratio_tick(value)))
            }
            (line("marker", (x.at(1.0), TOP), (x.at(1.0), BOTTOM)))
            (line("marker", (LEFT, y.at(1.0)), (WIDTH - RIGHT, y.at(1.0))))
            (text("marker-name", "end", (WIDTH - RIGHT, y.at(1.0) - 4.0), &self.baseline))
            (text("tick", "start", (LEFT, BOTTOM + 36.0), "← faster"))
            (text("tick", "end", (WIDTH - RIGHT, BOTTOM + 36.0), &format!("time by {}'s", self.baseline)))
            (text("tick", "start", (LEFT, TOP - 10.0), &format!("peak RSS by {}'s; smaller is further down", self.baseline)))
            @for point in &self.dots {
                g class={ "point " (point.look.class) @if point.look.ours { " ours" } } {
                    (dot((x.at(point.time), y.at(point.memory)), if point.look.ours { 5.0 } else { 3.5 }, &point.meaning))
                }
            }
            @for (at, anchor, label) in labels { (text("dot-name", anchor, at, label)) }
        }
    }

    /// Positions of the labels: next to their dots, without overlaps.
    fn labels(&self, x: &Scale, y: &Scale) -> Vec<((f64, f64), &'static str, &str)> {
        let mut taken: Vec<[f64; 4]> = self
            .dots
            .iter()
            .map(|dot| (x.at(dot.time), y.at(dot.memory)))
            .map(|(x, y)| [x - 3.0, x + 3.0, y - 3.0, y + 3.0])
            .collect();
        let mut placed = Vec::new();
        for dot in &self.dots {
            let Some(label) = &dot.label else { continue };
            let (at, width) = ((x.at(dot.time), y.at(dot.memory)), LETTER * label.chars().count() as f64);
            let places = [0.0, -1.0, 1.0, -2.0, 2.0, -3.0, 3.0, -4.0, 4.0].into_iter().flat_map(|lines| {
                [("start", 8.0), ("end", -8.0)].map(|(anchor, side)| {
                    let (x, y) = (at.0 + side, at.1 + 4.0 + lines * LINE);
                    let left = if anchor == "start" { x } else { x - width };
                    (anchor, (x, y), [left, left + width, y - 10.0, y + 2.0])
                })
            });
            let is_free = |room: &[f64; 4]| {
                let [left, right, top, bottom] = *room;
                let apart =
                    |other: &[f64; 4]| other[1] < left || right < other[0] || other[3] < top || bottom < other[2];
                left >= LEFT && right <= WIDTH && top >= 0.0 && bottom <= BOTTOM && taken.iter().all(apart)
            };
            // A dot whose label finds no room still has its tooltip.
            if let Some((anchor, at, room)) = places.into_iter().find(|(_, _, room)| is_free(room)) {
                taken.push(room);
                placed.push((at, anchor, label.as_str()));
            }
        }
        placed
    }
}

/// Round values of memory ratios.
fn memory_ticks(low: f64, high: f64) -> Vec<f64> {
    let all = [0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0];
    let within: Vec<f64> = all.into_iter().filter(|tick| (low * 0.97..=high * 1.03).contains(tick)).collect();
    // A wide range omits 0.9 and 1.1, which would stand too close to 1.
    if high / low < 2.5 { within } else { within.into_iter().filter(|tick| ![0.9, 1.1].contains(tick)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, run, workload};

    fn drawn(workloads: &[(String, &WorkloadResult)]) -> String {
        let runs = run(workloads.iter().map(|(_, workload)| (*workload).clone()).collect());
        Pareto::of(workloads, &Palette::of(&runs)).unwrap().drawing().into_string()
    }

    /// A faster arm must lie further left, and no arm may be missing.
    #[test]
    fn every_arm_that_can_be_compared_is_a_dot_at_its_time() {
        let result =
            workload(&[("glibc", &EVEN), ("mimalloc", &EVEN.map(|ns| ns * 2)), ("zk-alloc", &EVEN.map(|ns| ns / 2))]);
        let svg = drawn(&[("poseidon2".into(), &result)]);
        let places: Vec<f64> =
            svg.split("cx=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok()).collect();
        assert_eq!(places.len(), 2, "{svg}");
        assert!(places[1] < places[0], "ours comes last, and is faster: {svg}");
        assert!(svg.contains(">mimalloc<") && svg.contains(">zk-alloc<"), "{svg}");
    }

    /// With several workloads, only our dots have labels: the workloads' names. The labels of equal dots must not hide
    /// each other.
    #[test]
    fn names_of_equal_dots_stand_apart() {
        let result = workload(&[("glibc", &EVEN), ("zk-alloc", &EVEN)]);
        let svg = drawn(&[("one".into(), &result), ("two".into(), &result), ("three".into(), &result)]);
        let places: Vec<&str> = svg.split("dot-name\" ").skip(1).filter_map(|rest| rest.split('>').next()).collect();
        assert_eq!(places.len(), 3, "{svg}");
        assert!(places[0] != places[1] && places[1] != places[2], "{places:?}");
    }

    #[test]
    fn nothing_is_drawn_where_nothing_can_be_compared() {
        let result = workload(&[("glibc", &EVEN)]);
        let runs = run(vec![result.clone()]);
        assert!(Pareto::of(&[("one".into(), &result)], &Palette::of(&runs)).is_none());
    }
}
