//! The tables of the page.

use super::palette::Palette;
use crate::results::columns::{self, Cell, Column, Seen, Shown, Unit};
use crate::results::record::{ArmResult, Run, WorkloadResult};
use crate::results::stats::{Ratio, Verdict};
use crate::results::{format, view};
use maud::{Markup, html};

/// Placeholder for a missing figure.
const NONE: &str = "-";

/// The figures of one workload, with a row per arm.
pub(super) fn figures(workload: &WorkloadResult, palette: &Palette) -> Markup {
    scrolling(&html! {
        thead { tr {
            th { "allocator" }
            @for (column, heading) in columns::filled(workload, place) {
                th.words[column.unit == Unit::Words] { (columns::heading(heading, workload)) }
            }
        } }
        tbody { @for arm in &workload.arms { (row(workload, arm, palette)) } }
    })
}

fn place(place: &'static Shown) -> Option<&'static str> {
    if let Shown::Page(heading) = place { Some(heading) } else { None }
}

fn row(workload: &WorkloadResult, arm: &ArmResult, palette: &Palette) -> Markup {
    let look = palette.look(&arm.label);
    let name = html! { th scope="row" { (swatch(&look.class)) (arm.label) } };
    let Some(summary) = view::figures(arm) else {
        let outcome = format::outcome(&arm.outcome).unwrap_or_else(|| "no figures".into());
        return html! { tr.broken { (name) td.words colspan=(columns::filled(workload, place).count()) { (outcome) } } };
    };
    let seen = Seen { workload, arm, summary };
    html! {
        tr.ours[look.ours] {
            (name)
            @for (column, _) in columns::filled(workload, place) {
                td.words[column.unit == Unit::Words] { (cell(column, &seen)) }
            }
        }
    }
}

fn cell(column: &Column, seen: &Seen<'_>) -> Markup {
    let text = column.text(seen).unwrap_or_else(|| NONE.into());
    match column.cell {
        Cell::Ratio(_) => with_interval(column.ratio(seen)),
        Cell::Verdict => html! { span class=(badge(column.verdict(seen))) { (text) } },
        _ => html! { (text) },
    }
}

/// A ratio with its 95% interval.
fn with_interval(ratio: Option<Ratio>) -> Markup {
    let Some(ratio) = ratio else { return html! { (NONE) } };
    html! {
        (format!("{:.3}", ratio.median)) " "
        @if let Some(interval) = ratio.interval { small { (format::interval(interval)) } }
    }
}

fn badge(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Faster) => "better",
        Some(Verdict::Slower) => "worse",
        _ => "neutral",
    }
}

/// A dash in an arm's colour.
pub(super) fn swatch(class: &str) -> Markup {
    html! { svg class={ "swatch " (class) } viewBox="0 0 22 10" aria-hidden="true" { line x1="1" y1="5" x2="21" y2="5" {} } }
}

/// Every proof, with the column names of samples.csv.
pub(super) fn samples(run: &Run) -> Markup {
    let place = ["workload", "log_rows", "threads", "arm", "process", "round", "order"];
    let header = place.into_iter().chain(columns::of_samples().map(|(name, _)| name)).chain(["counters"]);
    scrolling(&html! {
        thead { tr { @for name in header { th { (name) } } } }
        tbody {
            @for workload in &run.workloads { @for arm in &workload.arms { @for proof in &arm.samples { tr {
                td.words { (workload.workload) }
                td { (workload.log_rows) }
                td { (workload.threads) }
                td.words { (arm.label) }
                @for number in [proof.process, proof.round, proof.order] { td { (number) } }
                @for value in columns::of_proof(proof) { td.words[value.parse::<u64>().is_err()] { (value) } }
                td.words { @for (name, value) in &proof.sample.counters { (name) "=" (value) " " } }
            } } } }
        }
    })
}

/// A table in its own box, which scrolls if the page is too narrow.
pub(super) fn scrolling(table: &Markup) -> Markup {
    html! { div.scroll tabindex="0" { table { (table) } } }
}
