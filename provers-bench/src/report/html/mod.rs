//! `report.html`: a run on one self-contained page, made from the recorded run alone. This file composes the page.
//!
//! - `charts`: bars of a workload
//! - `curves`: memory over time, and sweeps
//! - `tables`: all tables of the page
//! - `profile`: the page of a profile; `timeline`: its memory over time; `parts`: its parts
//! - `bars`: draws rows
//! - `lines`: draws curves
//! - `pareto`: time against memory
//! - `figure`: a chart's frame
//! - `document`: the frame of a page
//! - `scale`: maps values to positions
//! - `palette`: colours of the arms

mod bars;
mod charts;
mod curves;
mod document;
mod figure;
mod lines;
pub(super) mod palette;
pub(super) mod pareto;
mod parts;
mod profile;
mod scale;
mod tables;
mod timeline;

use super::facts::{self, command, commit};
use super::text::{self, LEGEND, at_once, notes};
use crate::results::record::{Advice, Run, WorkloadResult};
use crate::results::view;
use document::document;
use maud::{Markup, html};
use palette::Palette;
use pareto::Pareto;
#[cfg(feature = "profile")]
pub(crate) use profile::{FaultsPage, faults_page};
pub(crate) use profile::{ProfilePage, profile_page};
use std::collections::BTreeSet;
pub(crate) use timeline::picture as profile_picture;

/// The page loads and executes nothing, no matter which texts a run contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The page. Equal runs give equal bytes.
pub(super) fn page(run: &Run) -> String {
    let palette = Palette::of(run);
    let title = format!("{}: allocators, in lockstep", run.prover);
    let content = html! {
        (header(run, &title))
        @if let Some(advice) = &run.advice { (self::advice(advice)) }
        @if run.workloads.is_empty() { p { "Nothing was measured." } }
        p { (LEGEND) }
        (pareto(run, &palette))
        @if let Some(sweep) = run.sweep {
            @for (name, points) in curves::groups(run) {
                section {
                    h2 { (name) ", over the sweep" }
                    (legend(&points, &palette))
                    div.charts { (curves::sweep(sweep, &points, &palette)) }
                }
            }
        }
        @for workload in &run.workloads { (section(run, workload, &palette)) }
        section { h2 { "The arms" } dl { @for (label, what) in text::arms(run) { dt { (label) } dd { (what) } } } }
        (machine(run))
        section {
            h2 { "Raw samples" }
            details { summary { "Every sample, one a row" } (tables::samples(run)) }
        }
        footer {
            "Made from result.json of run " code { (run.run) } ", schema " (run.schema) ", by prove-bench. "
            code { "prove-bench report " (run.run) } " makes it again."
        }
    };
    document(&title, POLICY, &palette::css(), &content)
}

fn header(run: &Run, title: &str) -> Markup {
    let machine = &run.machine;
    html! {
        header {
            h1 { (title) }
            p {
                (machine.started_at.strftime("%Y-%m-%d %H:%M UTC")) " · commit " (commit(run)) " · "
                (facts::known(&machine.cpu)) ", " (machine.cores) " cores"
            }
            p { code { (command(run)) } }
        }
    }
}

/// Advice on a command: the possible gain, the recommended allocator, and the lines to paste.
fn advice(advice: &Advice) -> Markup {
    html! {
        section {
            h2 { "What to do" }
            @for text in advice.ceiling.iter().chain(&advice.verdict) { p { (text) } }
            @if let Some(line) = &advice.environment { p { "In a shell:" } pre { code { (line) } } }
            @if !advice.dockerfile.is_empty() {
                p { "At the end of a Dockerfile:" }
                pre { code { (advice.dockerfile.join("\n")) } }
            }
        }
    }
}

/// The first picture: time and memory of each arm, over all workloads.
fn pareto(run: &Run, palette: &Palette) -> Markup {
    let workloads: Vec<_> = run.workloads.iter().map(|workload| (view::name(run, workload), workload)).collect();
    html! {
        @if let Some(pareto) = Pareto::of(&workloads, palette) { section { h2 { "Time and memory" } (pareto.figure()) } }
    }
}

/// One workload. A workload of a sweep is one point and is folded, because the curves show all points together.
fn section(run: &Run, workload: &WorkloadResult, palette: &Palette) -> Markup {
    let name = view::name(run, workload);
    let threads = if workload.threads == 1 { "1 thread".into() } else { format!("{} threads", workload.threads) };
    let body = html! {
        @if workload.timed.is_of_command() {
            p { code { (workload.about) } ", " (run.rounds) " rounds." }
        } @else {
            p { (workload.about) "; 2^" (workload.log_rows) " rows, " (threads) ", " (at_once(run.concurrent)) (run.rounds) " warm rounds." }
        }
        (legend(&[workload], palette))
        div.charts { (charts::charts(workload, palette)) (curves::memory(workload, palette)) }
        (tables::figures(workload, palette))
        ul.notes { @for note in notes(run, workload) { li { (note) } } }
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

/// Colours and dashes of the arms in `workloads`.
fn legend(workloads: &[&WorkloadResult], palette: &Palette) -> Markup {
    let mut seen = BTreeSet::new();
    let labels = workloads.iter().flat_map(|workload| &workload.arms).map(|arm| &arm.label);
    html! {
        ul.legend { @for label in labels.filter(|label| seen.insert(*label)) {
            @let look = palette.look(label);
            li.ours[look.ours] { (tables::swatch(&look.class)) (label) }
        } }
    }
}

fn machine(run: &Run) -> Markup {
    html! {
        section {
            h2 { "Machine and command" }
            dl { @for (name, value) in facts::entries(run) {
                dt { (name) }
                dd { (if value.is_empty() { "none" } else { value.as_str() }) }
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, run, workload_of};
    use crate::results::record::tests::arm;
    use crate::results::record::{ArmResult, Outcome, RssPoint, Sweep};
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

    /// Reasons quote the output of dying processes. It must not become markup.
    #[test]
    fn hostile_text_stays_text() {
        let mut run = run(vec![workload_of(arms())]);
        run.command_line.push(HOSTILE.into());
        run.machine.cpu = Some(HOSTILE.into());
        run.workloads[0].about = format!("\0\u{1b}[31m{HOSTILE}");
        run.workloads[0].arms[1].label = HOSTILE.into();
        let page = parsed(&run);
        assert!(selected(&page, "script, img, [onerror]").is_empty());
        let notes: Vec<String> = selected(&page, ".notes li").iter().map(|item| item.text().collect()).collect();
        assert!(notes.iter().any(|text| text.contains(HOSTILE)), "{notes:?}");
    }

    /// The page is sent by mail and opened offline.
    #[test]
    fn the_page_needs_nothing_but_itself() {
        let run = run(vec![workload_of(arms())]);
        assert!(selected(&parsed(&run), "link, script, img, iframe, object, [src], [href]").is_empty());
        let text = page(&run);
        for outside in ["url(", "@import", "http:", "https:"] {
            assert!(!text.contains(outside), "{outside}");
        }
    }

    /// Some arms and drivers leave fields empty. Empty fields must not break the page or draw at NaN.
    #[test]
    fn a_run_draws_with_and_without_its_optional_fields() {
        let bare = run(vec![workload_of(vec![arm("glibc", Outcome::Interrupted, &[])])]);
        let nothing = run(Vec::new());
        let mut full = run(vec![workload_of(arms()), workload_of(arms())]);
        full.sweep = Some(Sweep::Threads);
        full.workloads[1].threads = 4;
        full.workloads[1].live_peak_bytes = Some(8_000_000);
        for run in [&bare, &nothing, &full] {
            let page = parsed(run);
            let drawn: Vec<_> = selected(&page, "svg *").iter().flat_map(|element| element.value().attrs()).collect();
            assert!(drawn.iter().all(|(_, value)| !value.contains("NaN") && !value.contains("inf")), "{drawn:?}");
        }
        let page = parsed(&full);
        assert_eq!(selected(&page, "polyline").len(), 3 * 3 + 2 * 3 * 2, "three curves of a sweep, two proofs a point");
        let text: String = page.root_element().text().collect();
        for part in ["poseidon2 2^15 on 4 threads", "live peak 8.00 MB", "Memory, first warm proof"] {
            assert!(text.contains(part), "{part}");
        }
    }

    /// A chart without the failed arm would show only those that did well.
    #[test]
    fn every_arm_has_a_row_in_every_chart() {
        let page = parsed(&run(vec![workload_of(arms())]));
        let charts = selected(&page, "figure:has(.row)");
        assert_eq!(charts.len(), 5);
        for chart in charts {
            let text: String = chart.text().collect();
            for part in ["glibc", "zk-alloc", "bump-reset", "FAILED in round 1"] {
                assert!(text.contains(part), "{part} in {text}");
            }
        }
    }
}
