//! Memory over the stages of a proof.

use super::charts::{from_zero, time_tick};
use super::figure::{line, place, text};
use super::scale::Scale;
use crate::protocol::profiles::{Level, Profile, Stage};
use crate::results::format;
use maud::{Markup, PreEscaped, html};

pub(super) const STYLE: &str = "
.resident { fill: #0072b2; fill-opacity: 0.18; } .live { fill: #0072b2; fill-opacity: 0.75; }
.stage rect { fill: #d98c21; fill-opacity: 0.45; } .stage text { font-size: 11px; }";
/// For a picture on its own, on light and on dark pages.
const OUTSIDE: &str = "text{font:12px system-ui,sans-serif;fill:#1f2328}.tick{fill:#57606a;font-size:11px}\
                       .grid{stroke:#d0d7de;stroke-width:.7}@media(prefers-color-scheme:dark){text{fill:#e6edf3}\
                       .tick{fill:#9198a1}.grid{stroke:#30363d}}";

/// The timeline's size, and the room for its labels.
pub(super) const WIDTH: f64 = 1000.0;
pub(super) const LEFT: f64 = 60.0;
pub(super) const TOP: f64 = 12.0;
pub(super) const BOTTOM: f64 = 232.0;
/// The height of a row of stages, and the rows that are drawn.
const ROW: f64 = 18.0;
const MOST_ROWS: u32 = 8;
/// A letter takes about this much.
const LETTER: f64 = 6.4;
/// The timeline for the page, with its legend.
pub(super) fn figure(profile: &Profile) -> Markup {
    html! {
        ul.legend { li { "dark: live" } li { "pale: resident, so the difference is retained or cached" } }
        figure.timeline { (drawing(profile, None)) }
    }
}

/// The timeline as a picture on its own. Equal profiles give equal bytes.
pub(crate) fn picture(profile: &Profile) -> String {
    drawing(profile, Some(OUTSIDE)).into_string() + "\n"
}

/// Live and resident memory over time, above the spans.
fn drawing(profile: &Profile, style: Option<&str>) -> Markup {
    let ends = profile.stages.iter().map(|stage| stage.end_ns).chain(profile.levels.last().map(|level| level.at_ns));
    let x = Scale::linear(0.0, ends.max().unwrap_or(1) as f64, LEFT, WIDTH);
    let heights = profile.levels.iter().flat_map(|level| [level.resident_bytes, level.live_bytes]);
    let y = from_zero(heights.map(mebibytes)).over(BOTTOM, TOP);
    let rows = profile.stages.iter().map(|stage| stage.depth + 1).max().unwrap_or(0).min(MOST_ROWS);
    let first_row = BOTTOM + 26.0;
    let height = first_row + f64::from(rows) * ROW + 4.0;
    html! {
        svg xmlns=[style.map(|_| "http://www.w3.org/2000/svg")] viewBox={ "0 0 " (place(WIDTH)) " " (place(height)) }
            role="img" aria-label="memory over time, and stages" {
            @if let Some(style) = style { style { (PreEscaped(style)) (PreEscaped(STYLE)) } }
            @for tick in y.ticks() {
                (line("grid", (LEFT, y.at(tick)), (WIDTH, y.at(tick))))
                (text("tick", "end", (LEFT - 6.0, y.at(tick) + 4.0), &mebibytes_tick(tick)))
            }
            @for tick in x.ticks() { (text("tick", "middle", (x.at(tick), BOTTOM + 16.0), &time_tick(tick))) }
            (area("resident", profile, x, y, |level| level.resident_bytes))
            (area("live", profile, x, y, |level| level.live_bytes))
            @for stage in profile.stages.iter().filter(|stage| stage.depth < MOST_ROWS) {
                (bar(stage, x, first_row + f64::from(stage.depth) * ROW))
            }
        }
    }
}

fn area(class: &str, profile: &Profile, x: Scale, y: Scale, bytes: fn(&Level) -> u64) -> Markup {
    let at = |level: &Level| format!("{},{}", place(x.at(level.at_ns as f64)), place(y.at(mebibytes(bytes(level)))));
    let edge = |level: Option<&Level>| level.map_or(LEFT, |level| x.at(level.at_ns as f64));
    let (first, last) = (edge(profile.levels.first()), edge(profile.levels.last()));
    let inner: Vec<_> = profile.levels.iter().map(at).collect();
    let floor = |at: f64| format!("{},{}", place(at), place(BOTTOM));
    html! { polygon class=(class) points={ (floor(first)) " " (inner.join(" ")) " " (floor(last)) } {} }
}

pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

pub(super) fn mebibytes_tick(mebibytes: f64) -> String {
    if mebibytes == 0.0 { "0".into() } else { format!("{mebibytes} MiB") }
}

fn bar(stage: &Stage, x: Scale, top: f64) -> Markup {
    let (from, to) = (x.at(stage.begin_ns as f64), x.at(stage.end_ns as f64));
    let fits = stage.name.chars().count() as f64 * LETTER < to - from;
    html! {
        g.stage {
            title { (stage.name) ": " (format::time(stage.end_ns - stage.begin_ns)) }
            rect x=(place(from)) y=(place(top)) width=(place((to - from).max(0.5))) height=(place(ROW - 2.0)) {}
            @if fits { (text("label", "start", (from + 3.0, top + ROW - 6.0), &stage.name)) }
        }
    }
}
