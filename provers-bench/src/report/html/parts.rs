//! The parts of the resident memory over the time of a proof.

use super::charts::{from_zero, time_tick};
use super::figure::{line, place, text};
use super::tables::scrolling;
use super::timeline::{BOTTOM, LEFT, TOP, WIDTH, mebibytes, mebibytes_tick};
use crate::protocol::profiles::{PARTS, Parts};
use crate::results::format;
use maud::{Markup, html};

pub(super) const STYLE: &str = "
.part0 { fill: #0072b2; background: #0072b2; } .part1 { fill: #56b4e9; background: #56b4e9; }
.part2 { fill: #cc79a7; background: #cc79a7; } .part3 { fill: #e69f00; background: #e69f00; }
.part4 { fill: #bbbbbb; background: #bbbbbb; } .part5 { fill: #009e73; background: #009e73; }
.swatch { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em; }";

/// The parts as areas that stand on each other, and as a table: when most was live, and at the end.
pub(super) fn figure(readings: &[Parts]) -> Markup {
    let (Some(highest), Some(last)) = (readings.iter().max_by_key(|parts| parts.live()), readings.last()) else {
        return html! {};
    };
    let both = |of: &dyn Fn(&Parts) -> Option<u64>| {
        [highest, last].map(|parts| of(parts).map_or("-".into(), format::mebibytes))
    };
    html! {
        figure.timeline { (drawing(readings, last.at_ns)) }
        (scrolling(&html! {
            thead { tr { th { "part" } th { "when most was live" } th { "at the end of the proof" } } }
            tbody {
                @for (index, name) in PARTS.iter().enumerate() { tr {
                    td.words { span class={ "swatch part" (index) } {} (name) }
                    @for cell in both(&|parts| Some(parts.bytes[index])) { td { (cell) } }
                } }
                tr { td.words { "sum" } @for cell in both(&|parts| Some(parts.sum())) { td { (cell) } } }
                tr { td.words { "by the kernel's account" } @for cell in both(&|parts| parts.kernel_bytes) { td { (cell) } } }
            }
        }))
    }
}

fn drawing(readings: &[Parts], end_ns: u64) -> Markup {
    let x = super::scale::Scale::linear(0.0, end_ns.max(1) as f64, LEFT, WIDTH);
    let y = from_zero(readings.iter().map(|parts| mebibytes(parts.sum()))).over(BOTTOM, TOP);
    let point = |parts: &Parts, below: usize| {
        let bytes = parts.bytes[..below].iter().sum();
        format!("{},{}", place(x.at(parts.at_ns as f64)), place(y.at(mebibytes(bytes))))
    };
    let outline = |part: usize| {
        let upper = readings.iter().map(|parts| point(parts, part + 1));
        let lower = readings.iter().rev().map(|parts| point(parts, part));
        upper.chain(lower).collect::<Vec<_>>().join(" ")
    };
    html! {
        svg viewBox={ "0 0 " (place(WIDTH)) " " (place(BOTTOM + 24.0)) } role="img" aria-label="parts of the resident memory" {
            @for tick in y.ticks() {
                (line("grid", (LEFT, y.at(tick)), (WIDTH, y.at(tick))))
                (text("tick", "end", (LEFT - 6.0, y.at(tick) + 4.0), &mebibytes_tick(tick)))
            }
            @for tick in x.ticks() { (text("tick", "middle", (x.at(tick), BOTTOM + 16.0), &time_tick(tick))) }
            @for part in 0..PARTS.len() { polygon class={ "part" (part) } points=(outline(part)) {} }
        }
    }
}
