//! The charts of a run: time against memory, the ratios of each round, and memory over time. Arms without measurements are left out. All
//! charts are drawn by [`Chart`], as lines, dots or areas over two axes.

use crate::arms::{self, ARMS, Arm, Colour};
use crate::results::{ArmResult, Interval, Ratio, RssPoint, Timed, WorkloadResult, format, view, warm_wall_ratios};
use maud::{Markup, PreEscaped, html};
use std::collections::{BTreeMap, BTreeSet};

/// Width and height of a chart that is shown next to others.
const SIZE: (f64, f64) = (360.0, 220.0);
/// Height of an arm's row.
const ROW: f64 = 26.0;
/// Smallest range of the memory axis, as ratios to the baseline's memory.
const MIN_MEMORY: [f64; 2] = [0.8, 1.25];

/// Draws time and memory as ratios to the baseline's, with a dot for each arm of each named workload. `None` if no arm
/// has ratios.
pub(super) fn time_and_memory(workloads: &[(String, &WorkloadResult)]) -> Option<Chart> {
    let palette = Palette::of(workloads.iter().map(|(_, workload)| *workload));
    let (_, first) = workloads.first()?;
    let (baseline, is_of_slots) = (&first.baseline, first.timed == Timed::Slots);
    // With proofs at fixed times, memory also counts while the process is idle, so the chart shows its integral over time.
    let figure = if is_of_slots { "memory over time" } else { "peak RSS" };
    let dots = workloads.iter().flat_map(|(name, workload)| {
        let dot = |arm: &ArmResult| {
            let (ratio, peak) = view::figures(arm).map(|summary| (summary.wall_ratio, summary.peak_rss_ratio))?;
            let (ratio, memory) = (ratio?, if is_of_slots { view::byte_seconds_ratio(workload, arm) } else { peak }?);
            let look = palette.look(&arm.label);
            // If there are several workloads, only our arm's dots are labelled, and the labels are the workloads' names.
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
    x.title = format!("time relative to {baseline}; faster is further left");
    let memory = Scale::factors(values(|point| point.y).chain(MIN_MEMORY));
    let mut y = Axis::round(memory, ratio_tick).marked(Some((1.0, baseline.clone())));
    y.title = format!("{figure} relative to {baseline}; smaller is further down");
    (!series.is_empty()).then(|| Chart {
        title: "Time and memory".into(),
        about: format!("of each arm, relative to {baseline}; the nearer to the lower left corner, the better"),
        size: (560.0, 364.0),
        x,
        y,
        legend: true,
        series,
        ..Chart::default()
    })
}

/// Draws a row for each arm, with a small dot for the ratio of each round, earlier rounds higher up, and a large dot for the median, with
/// its interval.
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
            "relative to {}: a small dot per round, the median and its 95% interval; left of the line is faster",
            workload.baseline
        ),
        size: (SIZE.0, ROW * arms.len() as f64 + 50.0),
        x,
        y: Axis { scale, ticks, ..Axis::default() },
        series,
        ..Chart::default()
    })
}

/// Draws a chart of memory over time for each round that the driver sampled, such as the cold proof and the first warm one.
pub(super) fn memory(workload: &WorkloadResult, palette: &Palette) -> Vec<Chart> {
    // All charts have the same vertical scale, so they can be compared.
    let points = || workload.arms.iter().flat_map(|arm| &arm.rss_over_time);
    let live = workload.live_peak_bytes.map(|bytes| (bytes as f64, format!("live peak {}", format::bytes(bytes))));
    let heights = points().map(|point| point.rss_bytes as f64).chain(live.iter().map(|(bytes, _)| *bytes));
    let height = Scale::from_zero(heights);
    let rounds: BTreeSet<u32> = points().map(|point| point.round).collect();
    let chart = |round: u32| {
        let over_time = |arm: &ArmResult| {
            let points = arm.rss_over_time.iter().filter(|point| point.round == round);
            let point = |rss: &RssPoint| Point { x: rss.at_ms.into(), y: rss.rss_bytes as f64, ..Point::default() };
            let points: Vec<_> = points.map(point).collect();
            let look = palette.look(&arm.label);
            (!points.is_empty()).then(|| Series { label: arm.label.clone(), look, shape: Shape::Line, points })
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
            about: "resident memory since the first request, sampled by the driver".into(),
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

/// Sorts our arms to the end, so that they are drawn over the others.
fn ours_last(series: impl Iterator<Item = Series>) -> Vec<Series> {
    let mut series: Vec<_> = series.collect();
    series.sort_by_key(|series| series.look.ours);
    series
}

/// Space above the curves, to their right, and below them, where the tick labels are.
const TOP: f64 = 24.0;
const RIGHT: f64 = 12.0;
const FOOT: f64 = 22.0;
/// Height of a line of text or of a span, width of a legend entry, and average width of a letter.
const LINE: f64 = 18.0;
const NAME: f64 = 136.0;
const LETTER: f64 = 6.2;
/// Smallest extent of an axis of ratios on each side of 1, so that tiny differences do not fill the chart.
const MIN_SPAN: f64 = 0.05;
/// Padding at the ends of a range, as a share of the range.
const PADDING: f64 = 0.04;

/// CSS of a standalone picture, on a light or a dark page.
const PICTURE: &str = ":root{--ink:#1f2328;--soft:#57606a;--rule:#d0d7de;--card:none}\
    @media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--rule:#30363d}}\
    text{font:12px system-ui,sans-serif;fill:var(--ink)}";
/// The style of charts, on a page or standalone.
pub(super) const STYLE: &str = include_str!("chart.css");

/// A chart. It computes the positions of its elements itself.
#[derive(Default)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) about: String,
    /// Width and height of the curves with their labels. The spans and the legend are below and add to the height.
    pub(super) size: (f64, f64),
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// Whether a legend below the curves names the series.
    pub(super) legend: bool,
    pub(super) series: Vec<Series>,
    /// Bars below the curves.
    pub(super) spans: Vec<Span>,
}

/// A scale with its ticks, and the values that dashed lines mark.
#[derive(Clone, Default)]
pub(super) struct Axis {
    pub(super) scale: Scale,
    pub(super) ticks: Vec<(f64, String)>,
    pub(super) markers: Vec<(f64, String)>,
    pub(super) title: String,
}

/// The points of one line or area, usually those of one arm, and how they are drawn.
pub(super) struct Series {
    pub(super) label: String,
    pub(super) look: Look,
    pub(super) shape: Shape,
    pub(super) points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Line,
    Dots,
    /// Filled down to the horizontal axis.
    Area,
}

/// A point; a radius of 0 draws no dot.
#[derive(Default)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) radius: f64,
    /// Interval of the `x` value, drawn as a horizontal bar.
    pub(super) interval: Option<Interval>,
    /// A name to show next to the point, and the text of its tooltip.
    pub(super) name: Option<String>,
    pub(super) meaning: String,
}

/// A bar below the curves that covers a range of `x` values.
pub(super) struct Span {
    pub(super) row: u32,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) name: String,
    pub(super) meaning: String,
}

impl Axis {
    /// Creates an axis with ticks at round values. `name` formats their labels.
    pub(super) fn round(scale: Scale, name: fn(f64) -> String) -> Self {
        let ticks = scale.ticks().into_iter().map(|tick| (tick, name(tick))).collect();
        Self { ticks, scale, ..Self::default() }
    }

    /// Adds a marker: the value of a dashed line, and its name.
    pub(super) fn marked(mut self, marker: Option<(f64, String)>) -> Self {
        self.markers.extend(marker);
        self
    }
}

impl Chart {
    /// Draws the chart on a page.
    pub(super) fn figure(&self) -> Markup {
        let is_wide = self.size.0 > 400.0;
        // Below this width the figure scrolls, because its labels would be too small to read.
        let least = is_wide.then(|| format!("--least: {}px", place(self.size.0 * 0.75)));
        html! {
            figure.wide[is_wide] style=[least] {
                figcaption { b { (self.title) } " " span { (self.about) } }
                (self.svg(None))
            }
        }
    }

    /// Returns the chart as a standalone SVG file. The result depends only on the chart.
    pub(super) fn picture(&self) -> String {
        self.svg(Some(&[PICTURE, STYLE, &css()].concat())).into_string() + "\n"
    }

    fn svg(&self, style: Option<&str>) -> Markup {
        let labels = self.y.ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
        let left = (LETTER * labels as f64 + 10.0).min(self.size.0 / 2.0);
        let (right, bottom) = (self.size.0 - RIGHT, self.size.1 - FOOT);
        let (x, y) = (self.x.scale.over(left, right), self.y.scale.over(bottom, TOP));
        let mut foot = self.size.1 + if self.x.title.is_empty() { 0.0 } else { LINE };
        let spans = foot + 4.0;
        foot = self.spans.iter().map(|span| spans + f64::from(span.row + 1) * LINE).fold(foot, f64::max);
        let columns = ((self.size.0 / NAME) as usize).max(1);
        let legend = foot + LINE;
        let names = if self.legend { self.names() } else { Vec::new() };
        foot += names.len().div_ceil(columns) as f64 * LINE + 6.0;
        html! {
            svg xmlns=[style.map(|_| "http://www.w3.org/2000/svg")] viewBox={ "0 0 " (place(self.size.0)) " " (place(foot)) }
                role="img" aria-label={ (self.title) ": " (self.about) } {
                @if let Some(style) = style { style { (PreEscaped(style)) } }
                @for (value, label) in &self.y.ticks {
                    (line("grid", (left, y.at(*value)), (right, y.at(*value))))
                    (text("tick", "end", (left - 6.0, y.at(*value) + 4.0), label))
                }
                @for (value, label) in &self.x.ticks {
                    (line("grid", (x.at(*value), TOP), (x.at(*value), bottom)))
                    (text("tick", "middle", (x.at(*value), bottom + 16.0), label))
                }
                (text("tick", "start", (left, bottom + 34.0), &self.x.title))
                (text("tick", "start", (left, TOP - 12.0), &self.y.title))
                @for series in &self.series { (series.draw(&x, &y)) }
                @for (value, name) in &self.x.markers {
                    (line("marker", (x.at(*value), TOP), (x.at(*value), bottom)))
                    (text("marker-name", "middle", (x.at(*value), TOP - 3.0), name))
                }
                @for (value, name) in &self.y.markers {
                    (line("marker", (left, y.at(*value)), (right, y.at(*value))))
                    // The name is placed above the chart area, because curves may cross the dashed line anywhere.
                    @if !name.is_empty() { (text("marker-name", "end", (right, TOP - 12.0), &format!("dashed: {name}"))) }
                }
                @for (at, anchor, name) in self.placed_names(&x, &y, self.size.0) {
                    (text("dot-name", anchor, at, name))
                }
                @for span in &self.spans { (span.draw(&x, spans)) }
                @for (index, (label, look)) in names.iter().enumerate() {
                    @let at = (4.0 + NAME * (index % columns) as f64, legend + LINE * (index / columns) as f64);
                    g class=(look.class()) { (line("sample", (at.0, at.1 - 4.0), (at.0 + 18.0, at.1 - 4.0))) }
                    (text("name", "start", (at.0 + 22.0, at.1), label))
                }
            }
        }
    }

    /// Returns the labels of the series that have points, once each, and their appearance.
    fn names(&self) -> Vec<(&str, &Look)> {
        let mut seen = BTreeSet::new();
        let drawn = self.series.iter().filter(|series| !series.points.is_empty() && seen.insert(&series.label));
        drawn.map(|series| (series.label.as_str(), &series.look)).collect()
    }

    /// Returns the positions, anchors and texts of the points' names. A name is placed in the free row nearest to its dot, on the right if
    /// possible.
    fn placed_names(&self, x: &Scale, y: &Scale, right: f64) -> Vec<((f64, f64), &'static str, &str)> {
        const ROWS: [f64; 7] = [0.0, -13.0, 13.0, -26.0, 26.0, -39.0, 39.0];
        let points = || self.series.iter().flat_map(|series| &series.points);
        let dots = points().map(|point| (x.at(point.x), y.at(point.y)));
        // The dots and names placed so far: left end, right end, and vertical position.
        let mut taken: Vec<[f64; 3]> = dots.map(|(x, y)| [x - 3.0, x + 3.0, y]).collect();
        let mut names = Vec::new();
        for (point, name) in points().filter_map(|point| Some((point, point.name.as_deref()?))) {
            let (dot, width) = (x.at(point.x), LETTER * name.chars().count() as f64);
            let sides = [("start", dot + 8.0, dot + 8.0), ("end", dot - 8.0, dot - 8.0 - width)];
            let places = ROWS.iter().flat_map(|row| sides.map(|side| (side, y.at(point.y) + row)));
            let is_free = |&((_, _, start), middle): &((_, _, f64), f64)| {
                let off = |[from, to, at]: &[f64; 3]| *to < start || start + width < *from || (at - middle).abs() > 9.0;
                start > x.from && start + width < right && taken.iter().all(off)
            };
            let crosses = |&((_, _, start), middle): &((_, _, f64), f64)| {
                let span = start - 3.0..start + width + 3.0;
                self.x.markers.iter().any(|(at, _)| span.contains(&x.at(*at)))
                    || self.y.markers.iter().any(|(at, _)| (y.at(*at) - middle).abs() < 8.0)
            };
            let free: Vec<_> = places.filter(is_free).collect();
            // A name may cross a dashed line only if there is no other free place.
            let Some(&((anchor, at, start), middle)) = free.iter().find(|place| !crosses(place)).or(free.first())
            else {
                continue;
            };
            taken.push([start, start + width, middle]);
            names.push(((at, middle + 4.0), anchor, name));
        }
        names
    }
}

impl Series {
    fn draw(&self, x: &Scale, y: &Scale) -> Markup {
        let at = |point: &Point| (x.at(point.x), y.at(point.y));
        let (first, last) = (self.points.first(), self.points.last());
        let floor = |point: &Point| (x.at(point.x), y.from);
        let corners: Vec<_> = match self.shape {
            Shape::Area => {
                first.map(floor).into_iter().chain(self.points.iter().map(at)).chain(last.map(floor)).collect()
            }
            Shape::Line | Shape::Dots => self.points.iter().map(at).collect(),
        };
        let corners: Vec<_> = corners.into_iter().map(|(x, y)| format!("{},{}", place(x), place(y))).collect();
        html! {
            g class={ "series " (self.look.class()) } {
                title { (self.label) }
                @match self.shape {
                    Shape::Line => polyline points=(corners.join(" ")) {},
                    Shape::Area => polygon points=(corners.join(" ")) {},
                    Shape::Dots => {}
                }
                @for point in &self.points {
                    @if let Some(Interval { low, high }) = point.interval {
                        (line("whisker", (x.at(low), y.at(point.y)), (x.at(high), y.at(point.y))))
                    }
                    @if point.radius > 0.0 {
                        @let (x, y) = at(point);
                        circle cx=(place(x)) cy=(place(y)) r=(place(point.radius)) { title { (point.meaning) } }
                    }
                }
            }
        }
    }
}

impl Span {
    fn draw(&self, x: &Scale, top: f64) -> Markup {
        let (from, to, top) = (x.at(self.from), x.at(self.to), top + f64::from(self.row) * LINE);
        let fits = self.name.chars().count() as f64 * LETTER < to - from;
        html! {
            g.span {
                title { (self.meaning) }
                rect x=(place(from)) y=(place(top)) width=(place((to - from).max(0.5))) height=(place(LINE - 2.0)) {}
                @if fits { (text("name", "start", (from + 3.0, top + LINE - 6.0), &self.name)) }
            }
        }
    }
}

/// Formats a coordinate to a tenth of a pixel.
fn place(at: f64) -> String {
    format!("{at:.1}")
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    html! { line class=(class) x1=(place(from.0)) y1=(place(from.1)) x2=(place(to.0)) y2=(place(to.1)) {} }
}

/// Draws text whose start, middle or end is at `at`, according to `anchor`.
fn text(class: &str, anchor: &str, at: (f64, f64), text: &str) -> Markup {
    html! { @if !text.is_empty() { text class=(class) text-anchor=(anchor) x=(place(at.0)) y=(place(at.1)) { (text) } } }
}

/// The appearance of an arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// CSS classes.
    pub(super) class: String,
    /// Whether the arm is drawn over the others, with stronger lines.
    pub(super) ours: bool,
}

impl Look {
    fn class(&self) -> String {
        format!("{}{}", self.class, if self.ours { " ours" } else { "" })
    }
}

/// The appearance of each arm, by label: one colour per allocator, the same in every chart. Variants of an allocator share its colour and
/// have lines with different dash patterns.
pub(super) struct Palette(BTreeMap<String, Look>);

impl Palette {
    pub(super) fn of<'a>(workloads: impl IntoIterator<Item = &'a WorkloadResult>) -> Self {
        let mut looks = BTreeMap::<String, Look>::new();
        let mut members: BTreeMap<String, usize> = BTreeMap::new();
        for arm in workloads.into_iter().flat_map(|workload| &workload.arms) {
            looks.entry(arm.label.clone()).or_insert_with(|| {
                let colour = arms::named(&arm.arm).map_or_else(|| OTHER.into(), class);
                let member = members.entry(colour.clone()).or_default();
                *member += 1;
                Look { class: format!("{colour} d{}", (*member - 1) % DASHES), ours: view::is_ours(arm) }
            });
        }
        Self(looks)
    }

    /// Returns the appearance of the arm called `label`.
    pub(super) fn look(&self, label: &str) -> Look {
        self.0[label].clone()
    }
}

/// CSS class of an unknown allocator.
const OTHER: &str = "c-other";
/// Number of dash patterns in the style, including the solid line.
const DASHES: usize = 4;

/// Returns the CSS class for an arm's colour. The class is named after the first arm with that colour.
fn class(arm: &Arm) -> String {
    let first = ARMS.iter().find(|other| other.colour == arm.colour).unwrap_or(arm);
    format!("c-{}", first.name)
}

/// Returns the CSS that gives each colour class its colours, for light and dark pages.
pub(super) fn css() -> String {
    let known = ARMS.iter().map(|arm| (class(arm), arm.colour)).chain([(OTHER.into(), Colour::OTHER)]);
    let colours: BTreeMap<_, _> = known.collect();
    let rules = |of: fn(&Colour) -> &'static str| -> String {
        colours.iter().map(|(class, colour)| format!(".{class} {{ --c: {}; }}\n", of(colour))).collect()
    };
    let (light, dark) = (rules(|colour| colour.light), rules(|colour| colour.dark));
    format!("{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n")
}

/// A linear or logarithmic mapping from a range of values to a range of positions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Scale {
    pub(super) fn linear(low: f64, high: f64) -> Self {
        // An empty range is widened, because `at` divides by its length.
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, logarithmic: false, from: 0.0, to: 1.0 }
    }

    /// Returns a linear scale that covers `values` and a minimum range around 1.
    pub(super) fn ratios(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = range(values.chain([1.0 - MIN_SPAN, 1.0 + MIN_SPAN])).unwrap_or((0.0, 2.0));
        let padding = (high - low) * PADDING;
        Self::linear(low - padding, high + padding)
    }

    /// Returns a scale from 0 that covers `values`.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let (_, high) = range(values).unwrap_or((0.0, 1.0));
        Self::linear(0.0, high * (1.0 + PADDING))
    }

    /// Returns a logarithmic scale that covers `values`, which are above 0.
    pub(super) fn factors(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = range(values).unwrap_or((1.0, 10.0));
        Self { logarithmic: true, ..Self::linear(low * (1.0 - PADDING), high * (1.0 + PADDING)) }
    }

    fn over(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    /// Returns the position of `value`, clamped to the range.
    fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let share = if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    /// Returns about five round values within the range.
    fn ticks(&self) -> Vec<f64> {
        let decade = |exponent: i32| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(exponent));
        let exponents = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let within = || exponents.clone().flat_map(decade).filter(|tick| (self.low..=self.high).contains(tick));
        if self.logarithmic && within().count() > 2 {
            return within().collect();
        }
        let rough = (self.high - self.low) / 4.0;
        let magnitude = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * magnitude);
        let step = steps.into_iter().find(|step| *step >= rough * (1.0 - 1e-9)).unwrap_or(rough);
        let (first, last) = ((self.low / step - 1e-9).ceil() as i64, (self.high / step + 1e-9).floor() as i64);
        (first..=last).map(|count| count as f64 * step).collect()
    }
}

/// Returns the smallest range that covers all finite `values`; `None` if there are none.
fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().filter(|value| value.is_finite()).fold(None, |range, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((f64::min(low, value), f64::max(high, value)))
    })
}

fn ratio_tick(ratio: f64) -> String {
    format!("{ratio:.2}")
}

pub(super) fn time_tick(ns: f64) -> String {
    if ns == 0.0 { "0".into() } else { format::time(ns.round() as u64) }
}

fn bytes_tick(bytes: f64) -> String {
    if bytes == 0.0 { "0".into() } else { format::bytes(bytes.round() as u64) }
}
