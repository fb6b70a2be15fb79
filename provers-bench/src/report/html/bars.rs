//! A chart with one row per arm: bars, intervals and dots on a common scale.

use super::figure::{WIDTH, dot, figure, line, place, text};
use super::palette::Look;
use super::scale::Scale;
use crate::results::stats::Interval;
use maud::{Markup, html};

/// A row's label and figures stand above its bar.
const ROW: f64 = 38.0;
const LABEL_BASE: f64 = 15.0;
const BAR_TOP: f64 = 21.0;
const BAR: f64 = 12.0;
/// Room above the rows for the marker's label, and below them for the axis.
const HEAD: f64 = 16.0;
const AXIS: f64 = 22.0;
/// Keeps text at an end of the axis inside the chart.
const MARGIN: f64 = 12.0;

/// The chart.
pub(super) struct Bars {
    pub(super) title: &'static str,
    pub(super) about: String,
    /// The values only; the chart sets the positions.
    pub(super) scale: Scale,
    pub(super) tick: fn(f64) -> String,
    /// A line through all rows, and its name.
    pub(super) marker: Option<(f64, String)>,
    pub(super) rows: Vec<Row>,
}

/// One arm.
pub(super) struct Row {
    pub(super) label: String,
    pub(super) look: Look,
    /// Its figures, or the reason for their absence.
    pub(super) note: String,
    /// Start and end of its bar.
    pub(super) bar: Option<(f64, f64)>,
    /// End of a stronger bar with the same start.
    pub(super) inner: Option<f64>,
    pub(super) interval: Option<Interval>,
    /// Single proofs, in the order of their rounds.
    pub(super) dots: Vec<f64>,
}

impl Bars {
    pub(super) fn draw(&self) -> Markup {
        let scale = self.scale.over(MARGIN, WIDTH - MARGIN);
        let foot = HEAD + ROW * self.rows.len() as f64 + 4.0;
        let drawing = html! {
            @for tick in scale.ticks() {
                @let x = scale.at(tick);
                (line("grid", (x, HEAD), (x, foot)))
                (text("tick", "middle", (x, foot + 15.0), &(self.tick)(tick)))
            }
            @for (row, top) in self.placed() { (row.marks(top, &scale)) }
            @if let Some((value, name)) = &self.marker {
                @let x = scale.at(*value);
                @let (anchor, aside) = if x < WIDTH / 2.0 { ("start", -2.0) } else { ("end", 2.0) };
                (line("marker", (x, HEAD - 3.0), (x, foot)))
                (text("marker-name", anchor, (x + aside, HEAD - 6.0), name))
            }
            // The text comes last, so that no line crosses a figure.
            @for (row, top) in self.placed() { (row.words(top)) }
        };
        figure(self.title, &self.about, foot + AXIS, &drawing)
    }

    /// The rows and their top edges.
    fn placed(&self) -> impl Iterator<Item = (&Row, f64)> {
        self.rows.iter().enumerate().map(|(index, row)| (row, HEAD + ROW * index as f64))
    }
}

impl Row {
    fn words(&self, top: f64) -> Markup {
        html! {
            g class=(self.class()) {
                (text("label", "start", (0.0, top + LABEL_BASE), &self.label))
                (text("note", "end", (WIDTH, top + LABEL_BASE), &self.note))
            }
        }
    }

    fn class(&self) -> String {
        format!("row {}{}", self.look.class, if self.look.ours { " ours" } else { "" })
    }

    fn marks(&self, top: f64, scale: &Scale) -> Markup {
        let middle = top + BAR_TOP + BAR / 2.0;
        html! {
            g class=(self.class()) {
                @if let Some((from, to)) = self.bar {
                    (bar(if self.inner.is_some() { "outer" } else { "bar" }, top, scale, from, to))
                    @if let Some(inner) = self.inner { (bar("bar", top, scale, from, inner)) }
                }
                @if let Some(Interval { low, high }) = self.interval {
                    @let (low, high) = (scale.at(low), scale.at(high));
                    (line("whisker", (low, middle), (high, middle)))
                    @for end in [low, high] { (line("whisker", (end, middle - 4.0), (end, middle + 4.0))) }
                }
                @for (index, value) in self.dots.iter().enumerate() {
                    // Earlier rounds are drawn higher, so a drift shows as a slant.
                    @let share = (index as f64 + 0.5) / self.dots.len() as f64;
                    (dot((scale.at(*value), top + BAR_TOP - 1.0 + share * (BAR + 2.0)), 2.4, &self.label))
                }
            }
        }
    }
}

fn bar(class: &str, top: f64, scale: &Scale, from: f64, to: f64) -> Markup {
    let (from, to) = (scale.at(from), scale.at(to));
    // A value of zero must still be visible, so a bar is at least 1 unit wide.
    let width = (to - from).abs().max(1.0);
    html! {
        rect class=(class) x=(place(from.min(to))) y=(place(top + BAR_TOP)) width=(place(width)) height=(place(BAR)) {}
    }
}
