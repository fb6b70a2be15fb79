//! The tables of the page.

use super::palette::Palette;
use crate::report::table;
use crate::results::record::{ArmResult, Run, WorkloadResult};
use crate::results::stats::{Ratio, Verdict};
use crate::results::{format, view};
use maud::{Markup, html};

/// A figure that there is none of.
const NONE: &str = "-";

/// The figures of one workload: a row an arm.
pub(super) fn figures(workload: &WorkloadResult, palette: &Palette) -> Markup {
    let base = &workload.baseline;
    scrolling(&html! {
        thead { tr {
            th { "allocator" }
            @for name in ["cold", "cold ratio", "warm"] { th { (name) } }
            th { "warm ratio to " (base) }
            th.words { "verdict" }
            @for name in [
                "CPU ratio", "minor faults", "system calls", "peak RSS", "ratio", "peak / live",
                "resting RSS",
            ] { th { (name) } }
        } }
        tbody { @for arm in &workload.arms { (row(workload, arm, palette)) } }
    })
}

fn row(workload: &WorkloadResult, arm: &ArmResult, palette: &Palette) -> Markup {
    let look = palette.look(&arm.label);
    let name = html! { th scope="row" { (swatch(&look.class)) (arm.label) } };
    let Some(summary) = view::figures(arm) else {
        let outcome = format::outcome(&arm.outcome).unwrap_or_else(|| "proved nothing".into());
        return html! { tr.broken { (name) td.words colspan="12" { (outcome) } } };
    };
    let or_none = |value: Option<u64>, name: fn(u64) -> String| value.map_or_else(|| NONE.into(), name);
    let two_digits = |ratio: Option<f64>| ratio.map_or_else(|| NONE.into(), |ratio| format!("{ratio:.2}"));
    let live = workload.live_peak_bytes.filter(|live| *live > 0);
    let verdict = table::verdict(arm, summary, &workload.baseline);
    html! {
        tr.ours[look.ours] {
            (name)
            td { (or_none(summary.cold_wall_ns, format::time)) }
            td { (with_interval(summary.cold_ratio)) }
            td { (or_none(summary.warm_wall_ns, format::time)) }
            td { (with_interval(summary.wall_ratio)) }
            td.words { span class=(badge(summary.verdict)) { (verdict) } }
            td { (with_interval(summary.cpu_ratio)) }
            td { (or_none(summary.warm_minflt, format::count)) }
            td { (or_none(summary.warm_system_calls, format::count)) }
            td { (or_none(summary.peak_rss_bytes, format::bytes)) }
            td { (two_digits(view::peak_ratio(workload, arm))) }
            td { (two_digits(summary.peak_rss_bytes.zip(live).map(|(peak, live)| peak as f64 / live as f64))) }
            td { (or_none(summary.resting_rss_bytes, format::bytes)) }
        }
    }
}

/// A ratio over its 95% interval.
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

/// What each arm was: its allocator, version and settings, in its own words.
pub(super) fn arms(run: &Run, palette: &Palette) -> Markup {
    let mut seen = std::collections::BTreeSet::new();
    let arms = run.workloads.iter().flat_map(|workload| &workload.arms);
    // The same in every workload, but where a process did not get so far as to say it.
    let mut arms: Vec<_> = arms.collect();
    arms.sort_by_key(|arm| arm.identity.is_none());
    arms.retain(|arm| seen.insert(&arm.label));
    scrolling(&html! {
        thead { tr { @for name in ["arm", "allocator", "settings found in its environment", "peak RSS"] { th.words { (name) } } } }
        tbody { @for arm in arms { tr.ours[view::is_ours(arm)] {
            th scope="row" { (swatch(&palette.look(&arm.label).class)) (arm.label) }
            @match &arm.identity {
                Some(identity) => {
                    td.words { (identity.allocator) " " (identity.version) }
                    td.words {
                        @if identity.settings.is_empty() { "none: its defaults" }
                        @for setting in &identity.settings { code { (setting) } " " }
                    }
                    td.words { (if identity.peak_is_per_proof { "of each proof" } else { "since the process started" }) }
                }
                None => td.words colspan="3" { "its process never said what it is" },
            }
        } } }
    })
}

/// Every proof, under the names that samples.csv has.
pub(super) fn samples(run: &Run) -> Markup {
    let header = [
        "workload",
        "log_rows",
        "threads",
        "arm",
        "process",
        "round",
        "order",
        "wall_ns",
        "user_ns",
        "sys_ns",
        "minflt",
        "rss_bytes",
        "peak_rss_bytes",
        "verified",
        "counters",
    ];
    scrolling(&html! {
        thead { tr { @for name in header { th { (name) } } } }
        tbody {
            @for workload in &run.workloads { @for arm in &workload.arms { @for proof in &arm.samples { tr {
                @let sample = &proof.sample;
                td.words { (workload.workload) }
                td { (workload.log_rows) }
                td { (workload.threads) }
                td.words { (arm.label) }
                @for number in [proof.process, proof.round, proof.order] { td { (number) } }
                @for number in [
                    sample.wall_ns, sample.user_ns, sample.sys_ns, sample.minflt, sample.rss_bytes,
                    sample.peak_rss_bytes,
                ] { td { (number) } }
                td.words { (sample.verified) }
                td.words { @for (name, value) in &sample.counters { (name) "=" (value) " " } }
            } } } }
        }
    })
}

/// A table that scrolls in a box of its own where the page is too narrow for it.
pub(super) fn scrolling(table: &Markup) -> Markup {
    html! { div.scroll tabindex="0" { table { (table) } } }
}
