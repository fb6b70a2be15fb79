//! Generates the pages of profiles: memory over the stages of a proof, the call sites of its peak, and flame graphs.

use super::chart::{self, Axis, Chart, Look, Point, Scale, Series, Shape, Span, time_tick};
use super::html::{document, scrolling};
use super::text::{Style, drawn};
use crate::protocol::profiles::{Group, Level, Lifetime, Move, PARTS, Parts, Profile, moves};
use crate::results::format;
use maud::{Markup, html};

/// Content security policy. The page loads nothing; the flame graphs are documents in `data:` URLs, with scripts for zooming.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-src data:";

/// Maximum number of rows in a table of call sites.
const MAX_SITES: usize = 10;
/// Maximum depth of nested stages that the timeline shows, one row per level.
const MAX_ROWS: u32 = 8;
const SIZE: (f64, f64) = (1000.0, 254.0);

/// Returns the page of a profile. The result depends only on the arguments. `earlier` is an earlier profile to compare with, and `tree` is
/// the tree of stages as text. `peak` and `fresh` are flame graphs as SVG: `peak` shows the bytes live at the peak of the warm proof, and
/// `fresh` the bytes in fresh pages of the first proof.
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
                "Live bytes at the peak of a warm proof: " b { (at_peak(profile)) } "."
            }
        }
        @if let Some(before) = earlier { section {
            h2 { "Compared with the earlier profile: " (format::change(before.peak_bytes, profile.peak_bytes)) " at the peak" }
            @if let Some(other) = profile.other_than(before) { p.notes { (other) } }
            (moved(before, profile).markup())
        } }
        section {
            h2 { "The call sites with the most memory at the peak" }
            (sites_of(profile).markup())
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

/// Returns the timeline as a standalone picture. The result depends only on the profile.
pub(crate) fn profile_picture(profile: &Profile) -> String {
    timeline(profile).picture()
}

/// Returns the page of a command's page faults: the summary, the table of functions, and flame graphs as SVG. `faults` shows the faulted
/// bytes, and `peak` the bytes live at the peak under zk-alloc.
#[cfg(feature = "profile")]
pub(crate) fn faults_page(
    title: &str,
    facts: &[String],
    functions: &FunctionTable<'_>,
    faults: Option<&str>,
    peak: Option<&str>,
) -> String {
    let content = html! {
        header { h1 { (title) } @for fact in facts { p { (fact) } } }
        section {
            h2 { "Functions" }
            (functions.markup())
            p.notes { "Each row names the innermost function of the program itself. Callers are known where the program has frame pointers." }
        }
        (flame_graph("Faulted bytes, by call chain", faults))
        (flame_graph("What was alive at the peak, under zk-alloc", peak))
        footer { "Made by prove-bench exec --profile, from samples of the kernel's page faults." }
    };
    document(title, POLICY, "", &content)
}

/// A table of functions, for a page and for the terminal.
pub(crate) struct FunctionTable<'a> {
    /// The headings, separated by `|`.
    pub(crate) header: &'static str,
    pub(crate) rows: Vec<FunctionRow<'a>>,
}

/// A function, and its cells after the name.
pub(crate) struct FunctionRow<'a> {
    pub(crate) name: String,
    /// A call chain that leads to the function, if one is known.
    pub(crate) calls: &'a [String],
    pub(crate) cells: Vec<String>,
}

/// Headings of the columns that contain text and not numbers.
const WORDS: [&str; 2] = ["stage", "lifetime"];

impl FunctionTable<'_> {
    pub(crate) fn text(&self) -> String {
        let cells = |row: &FunctionRow<'_>| [std::slice::from_ref(&row.name), &row.cells].concat();
        drawn(self.header, self.rows.iter().map(cells), Style::Terminal)
    }

    /// Returns the table for a page. A click on a function shows its call chain.
    fn markup(&self) -> Markup {
        let names: Vec<_> = self.header.split('|').collect();
        let chain = |row: &FunctionRow<'_>| row.calls.iter().rev().map(String::as_str).collect::<Vec<_>>().join("\n");
        // Memory that outlives the proof may be a leak, so its cell is marked.
        let leaks = |cell: &String| cell == Lifetime::Survives.text();
        scrolling(&html! {
            thead { tr { @for name in &names { th.words[WORDS.contains(name)] { (name) } } } }
            tbody { @for row in &self.rows { tr {
                td.words { @if row.calls.is_empty() { code { (row.name) } } @else {
                    details { summary { code { (row.name) } } pre { (chain(row)) } }
                } }
                @for (name, cell) in names[1..].iter().zip(&row.cells) {
                    td.words[WORDS.contains(name)] { span.worse[leaks(cell)] { (cell) } }
                }
            } } }
        })
    }
}

/// Returns a table of the functions with the most live bytes at the peak.
fn sites_of(profile: &Profile) -> FunctionTable<'_> {
    let rows = profile.groups().into_iter().take(MAX_SITES).map(|Group { site, sites, peak_bytes, allocations }| {
        let share = format!("{:.1}%", peak_bytes as f64 / profile.peak_bytes.max(1) as f64 * 100.0);
        let stage = if site.stage.is_empty() { "-".to_owned() } else { site.stage.join(" > ") };
        let others = if sites > 1 { format!(" ({sites} call sites)") } else { String::new() };
        let figures = [format::mebibytes(peak_bytes), share, format::count(allocations)];
        let cells = figures.into_iter().chain([stage, site.lifetime.text().to_owned()]).collect();
        FunctionRow { name: site.function() + &others, calls: &site.calls, cells }
    });
    FunctionTable { header: "call site|at the peak|share|allocations|stage|lifetime", rows: rows.collect() }
}

/// Returns a table of the call sites whose live bytes at the peak changed most.
fn moved<'a>(before: &'a Profile, after: &'a Profile) -> FunctionTable<'a> {
    let rows = moves(before, after).into_iter().take(MAX_SITES).map(|Move { site, before_bytes, after_bytes }| {
        let [old, new] = [before_bytes, after_bytes].map(format::mebibytes);
        let cells = vec![old, new, format::change(before_bytes, after_bytes)];
        FunctionRow { name: site.function(), calls: &site.calls, cells }
    });
    FunctionTable { header: "call site|before|after|change", rows: rows.collect() }
}

/// Describes the live bytes at the peak, in words.
fn at_peak(profile: &Profile) -> String {
    let backing = match profile.backing_bytes {
        0 => String::new(),
        bytes => format!(", {} of it from the backing allocator", format::mebibytes(bytes)),
    };
    format::mebibytes(profile.peak_bytes) + &backing
}

/// Formats the profile for the terminal, followed by the changes since an `earlier` profile. `tree` is the tree of stages.
pub(crate) fn profile_text(profile: &Profile, earlier: Option<&Profile>, tree: &str) -> String {
    let (peak, sites) = (at_peak(profile), sites_of(profile).text());
    let mut text = format!("{tree}\nLive bytes at the peak of the warm proof: {peak}\n{sites}\n");
    if let Some(before) = earlier {
        let [old, new] = [before, profile].map(|profile| format::mebibytes(profile.peak_bytes));
        let other = profile.other_than(before).map_or_else(String::new, |other| format!("{other}\n"));
        text += &format!("\ncompared with the earlier profile: the peak was {old} and is now {new}\n{other}");
        text += &format!("{}\n", moved(before, profile).text());
    }
    text
}

/// Draws live and resident memory over time, with the stages as spans below. The difference between the two is memory that the allocator
/// retains or caches.
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

/// Draws the parts of resident memory as stacked areas over time. A table lists them at the live peak and at the end.
fn parts(readings: &[Parts]) -> Markup {
    let (Some(highest), Some(last)) = (readings.iter().max_by_key(|parts| parts.live()), readings.last()) else {
        return html! {};
    };
    let both = |of: &dyn Fn(&Parts) -> Option<u64>| {
        [highest, last].map(|parts| of(parts).map_or("-".into(), format::mebibytes))
    };
    // Each area extends down to the axis, so the topmost part is drawn first and the lower parts cover it.
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

/// Returns a chart of areas over time, in MiB.
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
    // The SVG document as a URL (RFC 2397).
    let encoded = svg.map(|svg| svg.replace('%', "%25").replace('#', "%23").replace('\n', "%0A"));
    // The first `height` attribute is that of the whole document. The border adds 2 pixels.
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
    use crate::protocol::profiles::tests::site;
    use crate::protocol::profiles::{CallSite, Stage};
    use scraper::{Html, Selector};

    const HOSTILE: &str = "</td><img src=x onerror='alert(1)'>&\"";

    /// Names of functions and spans come from the program and must not become markup. No coordinate may be NaN.
    #[test]
    fn a_profile_draws_with_and_without_its_parts_and_names_stay_text() {
        let stage = |name: &str, depth| Stage { name: name.into(), depth, begin_ns: 1_000_000, end_ns: 9_000_000 };
        let level = |at: u64| Level { at_ns: at * 1_000_000, live_bytes: at << 20, resident_bytes: 10 << 20 };
        // Call sites in one function must share a row; otherwise they would crowd other functions out of the table.
        let later = CallSite { stage: vec!["open".into()], ..site(&["c", "a<T>"], 3 << 20) };
        let sites = vec![later, site(&["a<T>"], 2 << 20), site(&["main", HOSTILE], 1 << 20), site(&["a<U>"], 2 << 20)];
        let full = Profile {
            peak_bytes: 8 << 20,
            mean_bytes: 512 << 10,
            stages: vec![stage("prove", 0), stage(HOSTILE, 1)],
            levels: (0..10).map(level).collect(),
            parts: (0..3).map(|at| Parts { at_ns: at << 20, bytes: [at << 20; 6], kernel_bytes: None }).collect(),
            sites,
            ..Profile::default()
        };
        let cells = |table: FunctionTable<'_>| -> Vec<String> {
            table.rows.iter().map(|row| format!("{} {}", row.name, row.cells.join(" "))).collect()
        };
        let rows =
            ["a (2 call sites) 4.0 MiB 50.0% 2 commit dies in the proof", "a 3.0 MiB 37.5% 1 open dies in the proof"];
        assert_eq!(cells(sites_of(&full))[..2], rows);
        // Call sites that have disappeared must be listed, because users look for savings.
        let before = Profile { sites: vec![site(&["a<T>"], 7 << 20), site(&["b"], 4 << 20)], ..Profile::default() };
        let changes = ["a 7.0 MiB 2.0 MiB \u{2212}5.0 MiB", "b 4.0 MiB 0.0 MiB \u{2212}4.0 MiB"];
        assert_eq!(cells(moved(&before, &full))[..2], changes);
        let texts = [full, Profile::default()].map(|profile| {
            // An unescaped `#` or `%` would truncate or change the URL of a flame graph.
            let svg = Some("<svg xmlns=\"http://www.w3.org/2000/svg\"><text fill=\"#fff\">50%</text></svg>");
            let text = profile_page("t", &profile, Some(&before), HOSTILE, (svg, None));
            assert!(text.contains("%23fff") && text.contains("50%25"), "{text}");
            let page = Html::parse_document(&text);
            assert_eq!(page.errors, Vec::<String>::new());
            assert!(page.select(&Selector::parse("img, script, [onerror]").unwrap()).next().is_none());
            assert!(!text.contains("NaN") && !text.contains("\"inf"), "{text}");
            page.root_element().text().collect::<String>()
        });
        for part in ["a (2 call sites)", "37.5%", "12.0 MiB", HOSTILE].into_iter().chain(PARTS) {
            assert!(texts[0].contains(part), "{part} in {}", texts[0]);
        }
    }
}
