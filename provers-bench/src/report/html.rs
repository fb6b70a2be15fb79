//! `report.html`: a run on one self-contained page, made from the recorded run alone.

use super::chart::{self, Look, Palette};
use super::text::{self, LEGEND, Style, at_once, command, notes};
use crate::results::columns::{self, Medium};
use crate::results::{ArmResult, Run, WorkloadResult, view};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::iter;

/// The page loads and executes nothing, no matter which texts a run contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = include_str!("style.css");

/// The page. Equal runs give equal bytes.
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

/// A page with this content, which may quote any characters that a process printed. `style` follows the common style.
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

/// The section of one workload. The sections of a sweep's points are collapsed, because the curves show all points together.
fn section(run: &Run, name: &str, workload: &WorkloadResult, palette: &Palette) -> Markup {
    let body = html! {
        p {
            (workload.about) "; "
            @if !workload.timed.is_of_command() {
                "2^" (workload.log_rows) " rows, threads " (workload.threads) ", " (at_once(run.concurrent))
            }
            (text::rounds(workload)) "."
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

/// The figures of one workload, with a row per arm.
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

/// A figure, with its ratio and interval below it, so that the last column fits a screen.
fn cell(text: &str) -> Markup {
    match text.find(" (").or_else(|| text.find(" [")) {
        Some(at) => html! { (&text[..at]) " " small { (&text[at + 1..]) } },
        None => html! { (text) },
    }
}

/// A dash in an arm's colour.
fn swatch(look: &Look) -> Markup {
    html! { svg class={ "swatch " (look.class) } viewBox="0 0 22 10" aria-hidden="true" { line.sample x1="1" y1="5" x2="21" y2="5" {} } }
}

/// Every proof, with the column names of samples.csv.
fn samples(run: &Run) -> Markup {
    let header = columns::PLACE.into_iter().chain(columns::of_samples()).chain(["counters"]);
    scrolling(&html! {
        thead { tr { @for name in header { th { (name) } } } }
        tbody {
            @for workload in &run.workloads { @for arm in &workload.arms { @for proof in &arm.samples { tr {
                @let point = (workload.workload.as_str(), workload.log_rows, workload.threads);
                @let place = columns::place(point, &arm.label, proof);
                @let counters = proof.sample.counters.iter().map(|(name, value)| format!("{name}={value} "));
                @for value in place.into_iter().chain(columns::of_proof(proof)).chain(iter::once(counters.collect())) {
                    td { (value) }
                }
            } } } }
        }
    })
}

/// A table in its own box, which scrolls if the page is too narrow.
pub(super) fn scrolling(table: &Markup) -> Markup {
    html! { div.scroll tabindex="0" { table { (table) } } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, run, workload_of};
    use crate::results::record::tests::arm;
    use crate::results::{Outcome, RssPoint, Sweep};
    use scraper::{Html, Selector};

    const HOSTILE: &str = "</li><script>alert(1)</script><img src=x onerror='alert(2)'>&amp;\"";

    fn arms() -> Vec<ArmResult> {
        let mut ours = arm("zk-alloc", Outcome::Finished, &EVEN.map(|ns| ns / 2));
        ours.rss_over_time =
            (0..10).map(|at| RssPoint { round: at / 5, at_ms: at * 20, rss_bytes: 9_000_000 }).collect();
        let failed = Outcome::Failed { round: 1, reason: HOSTILE.into() };
        vec![arm("glibc", Outcome::Finished, &EVEN), ours, arm("bump-reset", failed, &EVEN[..2])]
    }

    fn selected<'a>(page: &'a Html, what: &str) -> Vec<scraper::ElementRef<'a>> {
        page.select(&Selector::parse(what).unwrap()).collect()
    }

    fn parsed(run: &Run) -> Html {
        let page = Html::parse_document(&page(run));
        assert_eq!(page.errors, Vec::<String>::new());
        page
    }

    /// Reasons quote the output of dying processes, which must not become markup. The page is sent by mail and opened
    /// offline, so it must load nothing.
    #[test]
    fn hostile_text_stays_text_and_the_page_loads_nothing() {
        let mut run = run(vec![workload_of(arms())]);
        run.command_line.push(HOSTILE.into());
        run.machine.cpu = Some(HOSTILE.into());
        run.workloads[0].about = format!("\0\u{1b}[31m{HOSTILE}");
        run.workloads[0].arms[1].label = HOSTILE.into();
        let html = parsed(&run);
        assert!(selected(&html, "link, script, img, iframe, object, [onerror], [src], [href]").is_empty());
        let notes: Vec<String> = selected(&html, ".notes li").iter().map(|item| item.text().collect()).collect();
        assert!(notes.iter().any(|text| text.contains(HOSTILE)), "{notes:?}");
        let text = page(&run);
        assert!(["url(", "@import", "http:", "https:"].iter().all(|outside| !text.contains(outside)), "{text}");
    }

    /// Some arms and drivers leave fields empty. Empty fields must not break the page or draw at NaN.
    #[test]
    fn a_run_draws_with_and_without_its_optional_fields() {
        let bare = run(vec![workload_of(vec![arm("glibc", Outcome::Interrupted, &[])])]);
        let mut full = run(vec![workload_of(arms()), workload_of(arms())]);
        full.sweep = Some(Sweep::Threads);
        full.workloads[1].threads = 4;
        full.workloads[1].live_peak_bytes = Some(8_000_000);
        for run in [&bare, &run(Vec::new()), &full] {
            let page = parsed(run);
            let drawn: Vec<_> = selected(&page, "svg *").iter().flat_map(|element| element.value().attrs()).collect();
            assert!(drawn.iter().all(|(_, value)| !value.contains("NaN") && !value.contains("inf")), "{drawn:?}");
        }
        let page = parsed(&full);
        let text: String = page.root_element().text().collect();
        for part in
            ["poseidon2 2^15 on 4 threads", "live peak 8.00 MB", "Memory, first warm proof", "FAILED in round 1"]
        {
            assert!(text.contains(part), "{part}");
        }
    }
}
