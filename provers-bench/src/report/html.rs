//! Generates `report.html`, a self-contained page about a run. All of its content comes from the recorded run.

use super::chart::{self, Look, Palette};
use super::text::{self, LEGEND, Style, command, notes};
use crate::results::columns::{self, Medium};
use crate::results::{ArmResult, Run, WorkloadResult, view};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Content security policy. The page loads and executes nothing, whatever text the run contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = include_str!("style.css");

/// Returns the page of a run. The result depends only on the run.
pub(super) fn page(run: &Run) -> String {
    let palette = Palette::of(&run.workloads);
    let title = format!("{}: allocators, in lockstep", run.prover);
    let named: Vec<_> = run.workloads.iter().map(|workload| (view::name(run, workload), workload)).collect();
    let content = html! {
        header {
            h1 { (title) }
            p { (text::on(run)) }
            p { code { (command(run)) } }
        }
        @if let Some(advice) = &run.advice { section {
            h2 { "What to do" }
            @for text in advice.ceiling.iter().chain(&advice.verdict) { p { (text) } }
            @if let Some(line) = &advice.environment { p { "In a shell:" } pre { code { (line) } } }
            @if !advice.dockerfile.is_empty() {
                p { "At the end of a Dockerfile:" }
                pre { code { (advice.dockerfile.join("\n")) } }
            }
        } }
        @if run.workloads.is_empty() { p { "Nothing was measured." } }
        p { (LEGEND) }
        @if let Some(chart) = chart::time_and_memory(&named) { section { h2 { "Time and memory" } (chart.figure()) } }
        @if run.sweep.is_some() { section { h2 { "Over the sweep" } pre { (text::curves(run, Style::Terminal)) } } }
        @for (name, workload) in &named { (section(run, name, workload, &palette)) }
        section { h2 { "The allocator configurations" } dl { @for (label, what) in text::arms(run) { dt { (label) } dd { (what) } } } }
        section {
            h2 { "Machine and command" }
            dl { @for (name, value) in text::facts_of(run) { dt { (name) } dd { (value) } } }
        }
        section {
            h2 { "Raw samples" }
            details { summary { "Every sample, one per row" } (samples(run)) }
        }
        footer {
            "Made from result.json of run " code { (run.run) } ", schema " (run.schema) ", by prove-bench. "
            code { "prove-bench report " (run.run) } " makes it again."
        }
    };
    document(&title, POLICY, &[chart::STYLE, &chart::css()].concat(), &content)
}

/// Returns an HTML document with this content, without control characters, which the output of a process may contain. `style` is appended
/// to the common style.
pub(super) fn document(title: &str, policy: &str, style: &str, content: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            body { main { (content) } }
        }
    }
    .into_string()
    // HTML allows only these control characters.
    .replace(|letter: char| letter.is_control() && !matches!(letter, '\n' | '\t'), "")
}

/// Returns the section of one workload. The sections of a sweep's points are collapsed, because the curves show all points together.
fn section(run: &Run, name: &str, workload: &WorkloadResult, palette: &Palette) -> Markup {
    let body = html! {
        p {
            (workload.about) "; "
            @if !workload.timed.is_of_command() { "2^" (workload.log_rows) " rows, " }
            (text::conditions(run, workload)) "."
        }
        (figures(workload, palette))
        ul.notes { @for note in notes(run, workload) { li { (note) } } }
        div.charts {
            @if let Some(chart) = chart::rounds(workload, palette) { (chart.figure()) }
            @for chart in chart::memory(workload, palette) { (chart.figure()) }
        }
    };
    html! {
        section {
            @if run.sweep.is_some() {
                details { summary { h2 { (name) } } (body) }
            } @else {
                h2 { (name) }
                (body)
            }
        }
    }
}

/// Returns the table of one workload, with a row per arm.
fn figures(workload: &WorkloadResult, palette: &Palette) -> Markup {
    let rows = text::rows(workload, Medium::Page);
    let row = |arm: &ArmResult, cells: &[String]| {
        let look = palette.look(&arm.label);
        html! { tr.ours[look.ours].broken[arm.summary.is_none()] {
            th scope="row" { (swatch(&look)) (arm.label) }
            @for text in &cells[1..] { td { @if arm.summary.is_some() { (cell(text)) } @else { (text) } } }
        } }
    };
    scrolling(&html! {
        thead { tr { @for heading in &rows[0] { th { (heading) } } } }
        tbody { @for (arm, cells) in workload.arms.iter().zip(&rows[1..]) { (row(arm, cells)) } }
    })
}

/// Returns a cell that shows the ratio or interval below the value, which keeps the table narrow enough for a screen.
fn cell(text: &str) -> Markup {
    match text.find(" (").or_else(|| text.find(" [")) {
        Some(at) => html! { (&text[..at]) " " small { (&text[at + 1..]) } },
        None => html! { (text) },
    }
}

/// Draws a short line in the arm's colour and dash pattern.
fn swatch(look: &Look) -> Markup {
    html! { svg class={ "swatch " (look.class) } viewBox="0 0 22 10" aria-hidden="true" { line.sample x1="1" y1="5" x2="21" y2="5" {} } }
}

/// Returns a table with a row for each proof. Its columns have the same names as those of samples.csv.
fn samples(run: &Run) -> Markup {
    let header = columns::sample_names().chain(["counters"]);
    scrolling(&html! {
        thead { tr { @for name in header { th { (name) } } } }
        tbody {
            @for workload in &run.workloads { @for arm in &workload.arms { @for proof in &arm.samples { tr {
                @let point = (workload.workload.as_str(), workload.log_rows, workload.threads);
                @for value in columns::sample_cells(point, &arm.label, proof) { td { (value) } }
                td { @for (name, value) in &proof.sample.counters { (name) "=" (value) " " } }
            } } } }
        }
    })
}

/// Wraps a table in a box that scrolls if the page is too narrow.
pub(super) fn scrolling(table: &Markup) -> Markup {
    html! { div.scroll tabindex="0" { table { (table) } } }
}
