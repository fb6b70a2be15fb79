//! A chart's frame. Charts are 360 units wide, the width of a phone, so that their text has the size of the surrounding
//! text there. A wide screen shows several charts in a row.

use maud::{Markup, html};

/// Width of every chart.
pub(super) const WIDTH: f64 = 360.0;

/// A chart with its title and its description.
pub(super) fn figure(title: &str, about: &str, height: f64, drawing: &Markup) -> Markup {
    html! {
        figure {
            figcaption { b { (title) } " " span { (about) } }
            svg viewBox={ "0 0 " (place(WIDTH)) " " (place(height)) } role="img" aria-label={ (title) ": " (about) } {
                (drawing)
            }
        }
    }
}

/// A coordinate, to a tenth of a pixel.
pub(super) fn place(at: f64) -> String {
    format!("{at:.1}")
}

/// A grid line, an axis, or the line of an interval.
pub(super) fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    html! { line class=(class) x1=(place(from.0)) y1=(place(from.1)) x2=(place(to.0)) y2=(place(to.1)) {} }
}

/// Text whose start, middle or end lies at `at`, according to `anchor`.
pub(super) fn text(class: &str, anchor: &str, at: (f64, f64), text: &str) -> Markup {
    html! { text class=(class) text-anchor=(anchor) x=(place(at.0)) y=(place(at.1)) { (text) } }
}

/// A dot with a tooltip.
pub(super) fn dot(at: (f64, f64), radius: f64, meaning: &str) -> Markup {
    html! { circle cx=(place(at.0)) cy=(place(at.1)) r=(place(radius)) { title { (meaning) } } }
}
