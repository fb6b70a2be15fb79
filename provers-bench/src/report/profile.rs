//! The pages of a profile: memory over the stages of a proof, the call sites of its peak, and two flame graphs.

use super::chart::{self, Axis, Chart, Look, Point, Scale, Series, Shape, Span, time_tick};
use super::html::{document, scrolling};
use crate::protocol::profiles::{CallSite, Level, Lifetime, PARTS, Parts, Profile, moves};
use crate::results::format;
use maud::{Markup, html};

/// The flame graphs are documents of their own, with scripts that zoom. The page itself loads nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-src data:";

/// Largest number of call sites in a table.
const MAX_SITES: usize = 10;
/// Largest number of rows of stages in the timeline.
const MAX_ROWS: u32 = 8;
const SIZE: (f64, f64) = (1000.0, 254.0);

/// The page. Equal profiles give equal bytes. `earlier` is an earlier profile to compare with, and `tree` is the tree of
/// stages as text. `peak` and `fresh` are flame graphs as SVG: bytes alive at the peak of the warm proof, and bytes in fresh
/// pages of the first proof.
pub(crate) fn profile_page(
    title: &str,
    profile: &Profile,
    earlier: Option<&Profile>,
    tree: &str,
    (peak, fresh): (Option<&str>, Option<&str>),
) -> String {
    let content = html! {
        header {
            h1 { (title) }
            p {
                "Live bytes at the peak of a warm proof: " b { (format::mebibytes(profile.peak_bytes)) }
                @if profile.backing_bytes > 0 {
                    ", " (format::mebibytes(profile.backing_bytes)) " of it from the backing allocator"
                }
                "."
            }
        }
        @if let Some(before) = earlier { (against(before, profile)) }
        section {
            h2 { "The call sites with the most memory at the peak" }
            (sites(profile))
            @if profile.missed > 0 { p.notes { (profile.missed) " samples could not be recorded; the figures lack them." } }
        }
        section {
            h2 { "Memory over the stages of a warm proof" }
            (timeline(profile).figure())
        }
        @if !profile.parts.is_empty() { section {
            h2 { "The parts of the resident memory" }
            (parts(&profile.parts))
        } }
        section { h2 { "The stages" } pre { (tree) } }
        (flame_graph("What was alive at the peak", peak))
        (flame_graph("Fresh pages of the first proof", fresh))
        footer {
            "Made by prove-bench profile, from samples " (format::binary_bytes(profile.mean_bytes as usize))
            " apart on average, and all requests of 1 MiB and more. "
            code { "warm-proof/profile.pb.gz" } " is for pprof, " code { "warm-proof/trace.json" } " for Perfetto."
        }
    };
    document(title, POLICY, chart::STYLE, &content)
}

/// The timeline as a picture on its own. Equal profiles give equal bytes.
pub(crate) fn profile_picture(profile: &Profile) -> String {
    timeline(profile).picture()
}

/// The page of a command's page faults: the summary, a table of functions, and flame graphs as SVG. The table has the page faults of each
/// function, and its bytes alive at the peak under zk-alloc. The graphs show faulted bytes, and the bytes alive at that peak.
#[cfg(feature = "profile")]
pub(crate) fn faults_page(
    title: &str,
    facts: &[String],
    functions: &[(String, u64, Option<u64>)],
    faults: Option<&str>,
    peak: Option<&str>,
) -> String {
    let content = html! {
        header { h1 { (title) } @for fact in facts { p { (fact) } } }
        section {
            h2 { "Functions" }
            (scrolling(&html! {
                thead { tr { th { "function" } th { "page faults" } th { "at the peak, under zk-alloc" } } }
                tbody { @for (function, faults, peak) in functions { tr {
                    td.words { code { (function) } }
                    td { (format::count(*faults)) }
                    td { (peak.map_or("-".into(), format::mebibytes)) }
                } } }
            }))
            p.notes { "Each row names the innermost function of the program itself. Callers are known where the program has frame pointers." }
        }
        (flame_graph("Faulted bytes, by call chain", faults))
        (flame_graph("What was alive at the peak, under zk-alloc", peak))
        footer { "Made by prove-bench exec --profile, from samples of the kernel's page faults." }
    };
    document(title, POLICY, "", &content)
}

fn sites(profile: &Profile) -> Markup {
    scrolling(&html! {
        thead { tr { th { "call site" } @for name in ["at the peak", "share", "allocations"] { th { (name) } }
            th.words { "stage" } th.words { "lifetime" } } }
        tbody { @for group in profile.groups().iter().take(MAX_SITES) { tr {
            td.words { (stack(group.site, group.sites)) }
            td { (format::mebibytes(group.peak_bytes)) }
            td { (format!("{:.1}%", group.peak_bytes as f64 / profile.peak_bytes.max(1) as f64 * 100.0)) }
            td { (format::count(group.allocations)) }
            td.words { (if group.site.stage.is_empty() { "-".to_owned() } else { group.site.stage.join(" > ") }) }
            // Memory that outlives the proof may be a leak.
            td.words { span.worse[group.site.lifetime == Lifetime::Survives] { (group.site.lifetime) } }
        } } }
    })
}

/// A function that unfolds into the call chain of `site`, the largest of `sites` call sites.
fn stack(site: &CallSite, sites: usize) -> Markup {
    let calls: Vec<_> = site.calls.iter().rev().map(String::as_str).collect();
    html! { details {
        summary { code { (site.function()) } @if sites > 1 { " (" (sites) " call sites)" } }
        pre { (calls.join("\n")) }
    } }
}

fn against(before: &Profile, after: &Profile) -> Markup {
    let change = format::change(before.peak_bytes, after.peak_bytes);
    html! {
        section {
            h2 { "Compared with the earlier profile: " (change) " at the peak" }
            @if let Some(other) = after.other_than(before) { p.notes { (other) } }
            (scrolling(&html! {
                thead { tr { th { "call site" } @for name in ["before", "after", "change"] { th { (name) } } } }
                tbody { @for moved in moves(before, after).iter().take(MAX_SITES) { tr {
                    td.words { (stack(moved.site, 1)) }
                    td { (format::mebibytes(moved.before_bytes)) }
                    td { (format::mebibytes(moved.after_bytes)) }
                    td { (format::change(moved.before_bytes, moved.after_bytes)) }
                } } }
            }))
        }
    }
}

/// Live and resident memory over time, above the spans. The difference is retained or cached memory.
fn timeline(profile: &Profile) -> Chart {
    let area = |label: &str, bytes: fn(&Level) -> u64| {
        area(label, label, profile.levels.iter().map(|level| (level.at_ns, bytes(level))))
    };
    let mut chart =
        over_time("Memory over time", vec![area("resident", |of| of.resident_bytes), area("live", |of| of.live_bytes)]);
    let spans = profile.stages.iter().filter(|stage| stage.depth < MAX_ROWS).map(|stage| Span {
        row: stage.depth,
        from: stage.begin_ns as f64,
        to: stage.end_ns as f64,
        name: stage.name.clone(),
        meaning: format!("{}: {}", stage.name, format::time(stage.end_ns - stage.begin_ns)),
    });
    chart.spans = spans.collect();
    let ends = profile.stages.iter().map(|stage| stage.end_ns).chain(profile.levels.last().map(|level| level.at_ns));
    chart.x = Axis::round(Scale::linear(0.0, ends.max().unwrap_or(1) as f64), time_tick);
    chart
}

/// The parts as stacked areas over time, and as a table of two moments: when the most was live, and the end.
fn parts(readings: &[Parts]) -> Markup {
    let (Some(highest), Some(last)) = (readings.iter().max_by_key(|parts| parts.live()), readings.last()) else {
        return html! {};
    };
    let both = |of: &dyn Fn(&Parts) -> Option<u64>| {
        [highest, last].map(|parts| of(parts).map_or("-".into(), format::mebibytes))
    };
    // The upper parts are drawn first, each down to the axis, and the lower ones over them.
    let series = (0..PARTS.len()).rev().map(|part| {
        let heights = readings.iter().map(|parts| (parts.at_ns, parts.bytes[..=part].iter().sum()));
        area(PARTS[part], &format!("part{part}"), heights)
    });
    html! {
        (over_time("Parts of the resident memory", series.collect()).figure())
        (scrolling(&html! {
            thead { tr { th { "part" } th { "when most was live" } th { "at the end of the proof" } } }
            tbody {
                @for (index, name) in PARTS.iter().enumerate() { tr {
                    td.words { (name) }
                    @for cell in both(&|parts| Some(parts.bytes[index])) { td { (cell) } }
                } }
                tr { td.words { "sum" } @for cell in both(&|parts| Some(parts.sum())) { td { (cell) } } }
                tr { td.words { "as the kernel reports it" } @for cell in both(&|parts| parts.kernel_bytes) { td { (cell) } } }
            }
        }))
    }
}

/// Areas of bytes over time, in MiB.
fn over_time(title: &str, series: Vec<Series>) -> Chart {
    let points = || series.iter().flat_map(|series| &series.points);
    let mebibytes = |mebibytes: f64| if mebibytes == 0.0 { "0".into() } else { format!("{mebibytes} MiB") };
    Chart {
        title: title.into(),
        about: "of the arena; dark is live, pale is retained or cached".into(),
        size: SIZE,
        x: Axis::round(Scale::linear(0.0, points().map(|point| point.x).fold(1.0, f64::max)), time_tick),
        y: Axis::round(Scale::from_zero(points().map(|point| point.y)), mebibytes),
        legend: true,
        series,
        spans: Vec::new(),
    }
}

fn area(label: &str, class: &str, levels: impl Iterator<Item = (u64, u64)>) -> Series {
    let point = |(at_ns, bytes): (u64, u64)| {
        let y = bytes as f64 / f64::from(1 << 20);
        Point { x: at_ns as f64, y, ..Point::default() }
    };
    let look = Look { class: class.to_owned(), ours: false };
    Series { label: label.into(), look, shape: Shape::Area, points: levels.map(point).collect() }
}

fn flame_graph(title: &str, svg: Option<&str>) -> Markup {
    // An SVG document as a URL (RFC 2397).
    let encoded = svg.map(|svg| svg.replace('%', "%25").replace('#', "%23").replace('\n', "%0A"));
    // The first height in the text is that of the document. The border adds 2 pixels.
    let height = svg.and_then(|svg| svg.split_once(" height=\"")?.1.split('"').next()?.parse::<u32>().ok());
    let style = height.map(|height| format!("height:{}px", height + 2));
    html! {
        section {
            h2 { (title) }
            @match encoded {
                Some(svg) => iframe title=(title) style=[style] src={ "data:image/svg+xml;charset=utf-8," (svg) } {},
                None => p { "No data." },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::profiles::Stage;
    use crate::protocol::profiles::tests::site;
    use scraper::{Html, Selector};

    const HOSTILE: &str = "</td><img src=x onerror='alert(1)'>&\"";

    /// Names of functions and of spans come from the program. They must not become markup, and nothing may be drawn at NaN.
    #[test]
    fn a_profile_draws_with_and_without_its_parts_and_names_stay_text() {
        let stage = |name: &str, depth| Stage { name: name.into(), depth, begin_ns: 1_000_000, end_ns: 9_000_000 };
        let level = |at: u64| Level { at_ns: at * 1_000_000, live_bytes: at << 20, resident_bytes: 10 << 20 };
        let full = Profile {
            peak_bytes: 9 << 20,
            mean_bytes: 512 << 10,
            stages: vec![stage("prove", 0), stage(HOSTILE, 1)],
            levels: (0..10).map(level).collect(),
            parts: (0..3).map(|at| Parts { at_ns: at << 20, bytes: [at << 20; 6], kernel_bytes: None }).collect(),
            sites: vec![site(&["main", HOSTILE], 6 << 20), site(&["other"], 3 << 20)],
            ..Profile::default()
        };
        let texts = [full, Profile::default()].map(|profile| {
            // A `#` or `%` would cut or change the URL of a flame graph.
            let svg = Some("<svg xmlns=\"http://www.w3.org/2000/svg\"><text fill=\"#fff\">50%</text></svg>");
            let against = Profile::default();
            let text = profile_page("t", &profile, Some(&against), HOSTILE, (svg, None));
            assert!(text.contains("%23fff") && text.contains("50%25"), "{text}");
            let page = Html::parse_document(&text);
            assert_eq!(page.errors, Vec::<String>::new());
            assert!(page.select(&Selector::parse("img, script, [onerror]").unwrap()).next().is_none());
            assert!(!text.contains("NaN") && !text.contains("\"inf"), "{text}");
            page.root_element().text().collect::<String>()
        });
        for part in ["66.7%", "dies in the proof", "6.0 MiB", "12.0 MiB", HOSTILE].into_iter().chain(PARTS) {
            assert!(texts[0].contains(part), "{part} in {}", texts[0]);
        }
    }
}
