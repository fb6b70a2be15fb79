//! Follows the links of a Markdown file: to files of this repository, and to headings within them. Pages of the
//! web are only checked not to look like ours: the crate `zk-alloc` on crates.io belongs to another project.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Where a reader would take somebody else's project for this one.
const NOT_OURS: [&str; 3] = ["crates.io/crates/zk-alloc", "docs.rs/zk-alloc", "github.com/zk-alloc"];

/// The number of a page's links, and the broken ones.
pub(crate) fn check(page: &str, text: &str) -> (usize, Vec<String>) {
    let targets = targets(text);
    let why = |(line, target): &(usize, String)| {
        why_broken(Path::new(page), target).map(|why| format!("{page}:{line}: {target}: {why}"))
    };
    (targets.len(), targets.iter().filter_map(why).collect())
}

/// The lines with their numbers from 1 on, and whether they lie in a code block.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!is_fence).then_some((index + 1, line, in_code))
    })
}

/// What the links of a text lead to: `](target)`, `]: target`, `src="target"`, `srcset="target"`.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line, _) in lines(text).filter(|line| !line.2) {
        for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
            let ends = line.match_indices(opening).map(|(at, _)| &line[at + opening.len()..]);
            found.extend(ends.filter_map(|rest| rest.split(closing).next()).map(|target| (number, target.to_owned())));
        }
        if let Some((name, target)) = line.split_once("]: ").filter(|(name, _)| name.starts_with('[')) {
            // A note to a link, and no sentence that happens to look like one.
            if !name.contains("](") && !target.contains(' ') {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

fn why_broken(file: &Path, target: &str) -> Option<String> {
    if target.contains("://") {
        return NOT_OURS.iter().find(|page| target.contains(*page)).map(|page| format!("{page} is another project's"));
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = file.parent().unwrap_or(Path::new(""));
    let Some(found) = (if path.is_empty() { Some(file.to_owned()) } else { plain(&folder.join(path)) }) else {
        return Some("leads out of the repository".to_owned());
    };
    if !found.exists() {
        return Some("no such file".to_owned());
    }
    if heading.is_empty() || found.extension().is_none_or(|extension| extension != "md") {
        return None;
    }
    let text = fs::read_to_string(&found).ok()?;
    (!headings(&text).contains(heading)).then(|| "no such heading".to_owned())
}

/// The path without `..`; `None` where it leads above the root.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if !plain.pop() => return None,
            Component::Normal(name) => plain.push(name),
            _ => {}
        }
    }
    Some(plain)
}

/// What the headings of a text are called in links: as GitHub does, in small letters, dashes for spaces, other signs left out.
fn headings(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, line, _) in lines(text).filter(|line| !line.2 && line.1.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        // The second heading of a name is `name-1`.
        let free =
            (0..).map(|n| if n == 0 { name.clone() } else { format!("{name}-{n}") }).find(|n| !names.contains(n));
        names.extend(free);
    }
    names
}
