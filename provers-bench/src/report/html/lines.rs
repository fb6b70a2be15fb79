//! A chart of curves, one per arm.

use super::figure::{WIDTH, dot, figure, line, place, text};
use super::palette::Look;
use super::scale::Scale;
use crate::results::stats::Interval;
use maud::{Markup, html};

/// Room for the tick labels of the vertical axis, and above and below the curves.
const LEFT: f64 = 56.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 196.0;
const HEIGHT: f64 = 218.0;

/// The chart. It sets the positions itself.
pub(super) struct Lines {
    pub(super) title: String,
    pub(super) about: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// A horizontal line at a height, and its name.
    pub(super) marker: Option<(f64, String)>,
    pub(super) curves: Vec<Curve>,
}

/// A scale with its ticks.
pub(super) struct Axis {
    pub(super) scale: Scale,
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis with round ticks, labelled by `name`.
    pub(super) fn round(scale: Scale, name: fn(f64) -> String) -> Self {
        Self { ticks: scale.ticks().into_iter().map(|tick| (tick, name(tick))).collect(), scale }
    }
}

/// One arm.
pub(super) struct Curve {
    pub(super) label: String,
    pub(super) look: Look,
    /// Whether each point is a separate measurement and gets a dot.
    pub(super) marked: bool,
    pub(super) points: Vec<Point>,
}

/// A point, with the interval of its height.
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) interval: Option<Interval>,
}

impl Lines {
    pub(super) fn draw(&self) -> Markup {
        let (x, y) = (self.x.scale.over(LEFT, WIDTH - RIGHT), self.y.scale.over(BOTTOM, TOP));
        let (ours, others): (Vec<_>, Vec<_>) = self.curves.iter().partition(|curve| curve.look.ours);
        let drawing = html! {
            @for (value, name) in &self.y.ticks {
                (line("grid", (LEFT, y.at(*value)), (WIDTH - RIGHT, y.at(*value))))
                (text("tick", "end", (LEFT - 6.0, y.at(*value) + 4.0), name))
            }
            @for (value, name) in &self.x.ticks {
                (line("grid", (x.at(*value), BOTTOM), (x.at(*value), BOTTOM + 4.0)))
                (text("tick", "middle", (x.at(*value), BOTTOM + 17.0), name))
            }
            @if let Some((height, _)) = &self.marker {
                (line("marker", (LEFT, y.at(*height)), (WIDTH - RIGHT, y.at(*height))))
            }
            @for curve in others.into_iter().chain(ours) { (curve.draw(&x, &y)) }
            @if let Some((height, name)) = &self.marker {
                (text("marker-name", "end", (WIDTH - RIGHT, y.at(*height) - 4.0), name))
            }
        };
        figure(&self.title, &self.about, HEIGHT, &drawing)
    }
}

impl Curve {
    fn draw(&self, x: &Scale, y: &Scale) -> Markup {
        let at = |point: &Point| (x.at(point.x), y.at(point.y));
        let places: Vec<_> = self.points.iter().map(at).map(|(x, y)| format!("{},{}", place(x), place(y))).collect();
        html! {
            g class={ "curve " (self.look.class) @if self.look.ours { " ours" } } {
                title { (self.label) }
                polyline points=(places.join(" ")) {}
                @for point in &self.points {
                    @if let Some(Interval { low, high }) = point.interval {
                        (line("whisker", (x.at(point.x), y.at(low)), (x.at(point.x), y.at(high))))
                    }
                    @if self.marked { (dot(at(point), 3.0, &self.label)) }
                }
            }
        }
    }
}
