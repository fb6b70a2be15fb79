//! The page of a profile: memory over the stages of a proof, the call sites of its peak, and two flame graphs.

use super::document::document;
use super::tables::scrolling;
use super::{parts, timeline};
use crate::protocol::profiles::{CallSite, Lifetime, Profile, moves};
use crate::results::format;
use maud::{Markup, html};

/// The flame graphs are documents of their own, with scripts that zoom. The page itself loads nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-src data:";
const OWN_STYLE: &str = "
figure.timeline { max-width: 1100px; margin: 12px 0; }
iframe { width: 100%; height: 560px; border: 1px solid var(--rule); border-radius: 6px; background: #fff; }
td.words { white-space: normal; min-width: 110px; } td.words details { min-width: 300px; }
td.words details pre { white-space: pre-wrap; overflow-wrap: anywhere; }";

/// The call sites in a table.
const MOST_SITES: usize = 10;

/// The parts of the page.
pub(crate) struct ProfilePage<'a> {
    pub(crate) title: &'a str,
    pub(crate) profile: &'a Profile,
    /// The tree of the stages, as text.
    pub(crate) tree: &'a str,
    /// The flame graphs, as SVG: bytes alive at the peak of the warm proof, and fresh bytes of the first one.
    pub(crate) peak: Option<String>,
    pub(crate) fresh: Option<String>,
    /// An earlier profile.
    pub(crate) against: Option<&'a Profile>,
}

/// The page. Equal profiles give equal bytes.
pub(crate) fn profile_page(page: &ProfilePage<'_>) -> String {
    let profile = page.profile;
    let content = html! {
        header {
            h1 { (page.title) }
            p {
                "Live bytes at the peak of a warm proof: " b { (format::mebibytes(profile.peak_bytes)) }
                @if profile.backing_bytes > 0 {
                    ", " (format::mebibytes(profile.backing_bytes)) " of it from the backing allocator"
                }
                "."
            }
        }
        @if let Some(before) = page.against { (against(before, profile)) }
        section {
            h2 { "The call sites that hold the peak" }
            (sites(profile))
            @if profile.missed > 0 { p.notes { (profile.missed) " samples could not be noted; the figures lack them." } }
        }
        section {
            h2 { "Memory over the stages of a warm proof" }
            (timeline::figure(profile))
        }
        @if !profile.parts.is_empty() { section {
            h2 { "The parts of the resident memory" }
            (parts::figure(&profile.parts))
        } }
        section {
            h2 { "The stages" }
            pre { (page.tree) }
        }
        (flame_graph("What was alive at the peak", page.peak.as_deref()))
        (flame_graph("Fresh pages of the first proof", page.fresh.as_deref()))
        footer {
            "Made by prove-bench profile, from samples " (format::binary_bytes(profile.mean_bytes as usize))
            " apart on average, and all requests of 1 MiB and more. "
            code { "warm-proof/profile.pb.gz" } " is for pprof, " code { "warm-proof/trace.json" } " for Perfetto."
        }
    };
    document(page.title, POLICY, &[OWN_STYLE, timeline::STYLE, parts::STYLE].concat(), &content)
}

/// The parts of the page of a command.
#[cfg(feature = "profile")]
pub(crate) struct FaultsPage<'a> {
    pub(crate) title: &'a str,
    /// Sentences.
    pub(crate) facts: Vec<String>,
    /// Page faults by function, the most first.
    pub(crate) functions: &'a [(String, u64)],
    /// Flame graphs, as SVG: of the faulted bytes, and of the peak under our library.
    pub(crate) faults: Option<String>,
    pub(crate) peak: Option<String>,
}

/// The page of a command's page faults.
#[cfg(feature = "profile")]
pub(crate) fn faults_page(page: &FaultsPage<'_>) -> String {
    let content = html! {
        header { h1 { (page.title) } @for fact in &page.facts { p { (fact) } } }
        section {
            h2 { "Functions" }
            (scrolling(&html! {
                thead { tr { th { "function" } th { "page faults" } } }
                tbody { @for (function, faults) in page.functions { tr {
                    td.words { code { (function) } }
                    td { (format::count(*faults)) }
                } } }
            }))
            p.notes { "The innermost function of the program itself. Callers are known where the program has frame pointers." }
        }
        (flame_graph("Faulted bytes, by call chain", page.faults.as_deref()))
        (flame_graph("What was alive at the peak, under zk-alloc", page.peak.as_deref()))
        footer { "Made by prove-bench exec --profile, from samples of the kernel's page faults." }
    };
    document(page.title, POLICY, &[OWN_STYLE, timeline::STYLE].concat(), &content)
}

fn sites(profile: &Profile) -> Markup {
    scrolling(&html! {
        thead { tr { th { "call site" } @for name in ["at the peak", "share", "allocations"] { th { (name) } }
            th.words { "stage" } th.words { "lifetime" } } }
        tbody { @for group in profile.groups().iter().take(MOST_SITES) { tr {
            td.words { (stack(group.site, group.sites)) }
            td { (format::mebibytes(group.peak_bytes)) }
            td { (format!("{:.1}%", group.peak_bytes as f64 / profile.peak_bytes.max(1) as f64 * 100.0)) }
            td { (format::count(group.allocations)) }
            td.words { (if group.site.stage.is_empty() { "-".to_owned() } else { group.site.stage.join(" > ") }) }
            td.words { span class=(tone(group.site.lifetime)) { (group.site.lifetime) } }
        } } }
    })
}

/// A function, and all those that led to it on request: those of the largest of `sites` call sites.
fn stack(site: &CallSite, sites: usize) -> Markup {
    let calls: Vec<_> = site.calls.iter().rev().map(String::as_str).collect();
    html! { details {
        summary { code { (site.function()) } @if sites > 1 { " (" (sites) " call sites)" } }
        pre { (calls.join("\n")) }
    } }
}

/// Memory that outlives the proof is what a leak looks like.
fn tone(lifetime: Lifetime) -> &'static str {
    if lifetime == Lifetime::Survives { "worse" } else { "neutral" }
}

fn against(before: &Profile, after: &Profile) -> Markup {
    let change = format::change(before.peak_bytes, after.peak_bytes);
    html! {
        section {
            h2 { "Against the earlier profile: " (change) " at the peak" }
            @if let Some(other) = after.other_than(before) { p.notes { (other) } }
            (scrolling(&html! {
                thead { tr { th { "call site" } @for name in ["before", "after", "change"] { th { (name) } } } }
                tbody { @for moved in moves(before, after).iter().take(MOST_SITES) { tr {
                    td.words { (stack(moved.site, 1)) }
                    td { (format::mebibytes(moved.before_bytes)) }
                    td { (format::mebibytes(moved.after_bytes)) }
                    td { (format::change(moved.before_bytes, moved.after_bytes)) }
                } } }
            }))
        }
    }
}

fn flame_graph(title: &str, svg: Option<&str>) -> Markup {
    html! {
        section {
            h2 { (title) }
            @match svg {
                Some(svg) => iframe title=(title) src=(data_url(svg)) {},
                None => p { "Nothing." },
            }
        }
    }
}

/// An SVG document as a URL (RFC 2397).
fn data_url(svg: &str) -> String {
    let encoded = svg.replace('%', "%25").replace('#', "%23").replace('\n', "%0A");
    format!("data:image/svg+xml;charset=utf-8,{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::profiles::tests::site;
    use crate::protocol::profiles::{Level, PARTS, Parts, Stage};
    use scraper::{Html, Selector};

    const HOSTILE: &str = "</td><img src=x onerror='alert(1)'>&\"";

    fn profile() -> Profile {
        let stage = |name: &str, depth| Stage { name: name.into(), depth, begin_ns: 1_000_000, end_ns: 9_000_000 };
        let level = |at: u64| Level { at_ns: at * 1_000_000, live_bytes: at << 20, resident_bytes: 10 << 20 };
        Profile {
            peak_bytes: 9 << 20,
            mean_bytes: 512 << 10,
            stages: vec![stage("prove", 0), stage(HOSTILE, 1)],
            levels: (0..10).map(level).collect(),
            parts: (0..3).map(|at| Parts { at_ns: at << 20, bytes: [at << 20; 6], kernel_bytes: None }).collect(),
            sites: vec![site(&["main", HOSTILE], 6 << 20), site(&["other"], 3 << 20)],
            ..Profile::default()
        }
    }

    fn parsed(profile: &Profile, against: Option<&Profile>) -> Html {
        let svg = Some("<svg xmlns=\"http://www.w3.org/2000/svg\"><text fill=\"#fff\">50%</text></svg>".to_owned());
        let page = ProfilePage { title: "t", profile, tree: HOSTILE, peak: svg, fresh: None, against };
        let page = Html::parse_document(&profile_page(&page));
        assert_eq!(page.errors, Vec::<String>::new());
        page
    }

    fn selected<'a>(page: &'a Html, what: &str) -> Vec<scraper::ElementRef<'a>> {
        page.select(&Selector::parse(what).unwrap()).collect()
    }

    /// Names of functions and of spans come from the program. They must not become markup.
    #[test]
    fn hostile_names_stay_text() {
        let page = parsed(&profile(), None);
        assert!(selected(&page, "img, script, [onerror]").is_empty());
        let names: String = selected(&page, "details pre").iter().flat_map(|name| name.text()).collect();
        assert!(names.contains(HOSTILE), "{names}");
    }

    #[test]
    fn a_profile_draws_with_and_without_its_parts() {
        for profile in [profile(), Profile::default()] {
            let page = parsed(&profile, Some(&Profile::default()));
            let drawn: Vec<_> = selected(&page, "svg *").iter().flat_map(|element| element.value().attrs()).collect();
            assert!(drawn.iter().all(|(_, value)| !value.contains("NaN") && !value.contains("inf")), "{drawn:?}");
            assert_eq!(selected(&page, "iframe").len(), 1);
        }
        let text: String = parsed(&profile(), None).root_element().text().collect();
        for part in ["66.7%", "dies in the proof", "commit", "6.0 MiB", "12.0 MiB"].into_iter().chain(PARTS) {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    /// A `#` or `%` in a flame graph would cut or change its URL.
    #[test]
    fn a_flame_graph_survives_as_a_url() {
        assert_eq!(data_url("<a b=\"#c\">5%\n"), "data:image/svg+xml;charset=utf-8,<a b=\"%23c\">5%25%0A");
    }
}
