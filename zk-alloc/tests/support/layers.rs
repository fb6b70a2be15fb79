//! Reads a crate's sources to find which module names which.
//!
//! It counts paths that begin with `crate::` or `super::`, in imports and elsewhere, and the names by which a folder's
//! `mod.rs` calls its own files. It ignores comments, and unit tests at the end of a file.

#![allow(dead_code, reason = "each crate's test uses its share")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules from the top down. Modules of one line may name modules of lower lines, but not each other.
pub(crate) type Order = [&'static [&'static str]];

/// Every breach of `order` in the sources, one per line. The crate's root may name everything; modules for which
/// `is_exempt` holds are skipped.
pub(crate) fn breaches(src: &Path, order: &Order, is_exempt: fn(&str) -> bool) -> Vec<String> {
    let mut breaches = Vec::new();
    for file in files(src) {
        let module = module(src, &file);
        if module == "lib" || is_exempt(&module) {
            continue;
        }
        let Some(from) = owner(order, &module) else {
            breaches.push(format!("{module} has no place in ORDER"));
            continue;
        };
        for path in named(&module, &code(&file)) {
            let Some(to) = owner(order, &path) else {
                breaches.push(format!("{module} names {path}, which lies in no module of ORDER"));
                continue;
            };
            if to != from && rank(order, to) <= rank(order, from) {
                breaches.push(format!("{module} names {path}, which does not stand below it"));
            }
        }
    }
    breaches
}

/// Files that name each other, directly or through others: one line per cycle found.
pub(crate) fn cycles(src: &Path, is_exempt: fn(&str) -> bool) -> Vec<String> {
    let files: BTreeMap<_, _> = files(src).into_iter().map(|file| (module(src, &file), file)).collect();
    let modules: BTreeSet<&str> = files.keys().map(String::as_str).filter(|name| !is_exempt(name)).collect();
    let uses = |name: &str| -> BTreeSet<&str> {
        let code = code(&files[name]);
        let outside = named(name, &code);
        let outside = outside.iter().filter_map(|path| longest(path, |module| modules.get(module).copied()));
        let inside = modules.iter().copied().filter(|module| is_child_named_in(module, name, &code));
        outside.chain(inside).filter(|module| *module != name).collect()
    };
    let graph: BTreeMap<&str, BTreeSet<&str>> =
        modules.iter().filter(|name| **name != "lib").map(|name| (*name, uses(name))).collect();
    let (mut done, mut found) = (BTreeSet::new(), Vec::new());
    for name in graph.keys() {
        walk(name, &graph, &mut Vec::new(), &mut done, &mut found);
    }
    found
}

fn walk<'a>(
    name: &'a str,
    graph: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    way: &mut Vec<&'a str>,
    done: &mut BTreeSet<&'a str>,
    found: &mut Vec<String>,
) {
    if let Some(at) = way.iter().position(|earlier| *earlier == name) {
        found.push(format!("{} -> {name}", way[at..].join(" -> ")));
    } else if !done.contains(name) {
        way.push(name);
        for next in graph.get(name).into_iter().flatten() {
            walk(next, graph, way, done, found);
        }
        way.pop();
        done.insert(name);
    }
}

/// Whether `code`, of the module `parent`, names its own file `module` by the last part of its path.
fn is_child_named_in(module: &str, parent: &str, code: &str) -> bool {
    let Some(child) = module.strip_prefix(parent).and_then(|rest| rest.strip_prefix("::")) else { return false };
    let path = format!("{child}::");
    let begins = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
    !child.contains("::") && code.match_indices(&path).any(|(at, _)| begins(at))
}

pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("the sources lie beside the tests") {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
    found
}

/// `arena/mod.rs` is `arena`, `arena/slab.rs` is `arena::slab`.
fn module(src: &Path, file: &Path) -> String {
    let relative = file.strip_prefix(src).expect("a file of the sources").with_extension("");
    let parts: Vec<_> = relative.iter().map(|part| part.to_str().expect("a plain name")).collect();
    parts.join("::").trim_end_matches("::mod").into()
}

/// The code without comments, up to the unit tests.
pub(crate) fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("a readable source");
    let tests = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(crate) mod tests {"];
    let end = tests.iter().filter_map(|begin| text.find(begin)).min().unwrap_or(text.len());
    text[..end].lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The paths that `{a, b::{c, d}}` or `a::b` stands for.
fn expand(tail: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    if !tail.starts_with('{') {
        let first = name(tail);
        let second = tail[first.len()..].strip_prefix("::").map(expand).unwrap_or_default();
        return match second.as_slice() {
            [] => vec![first],
            all => all.iter().map(|second| format!("{first}::{second}")).collect(),
        };
    }
    let mut depth = 0;
    let mut starts = Vec::new();
    for (at, c) in tail.char_indices() {
        let begins = (depth, c) == (1, ',') || (depth, c) == (0, '{');
        depth += i32::from(c == '{') - i32::from(c == '}');
        starts.extend(begins.then_some(at + 1));
        if depth == 0 {
            break;
        }
    }
    starts
        .into_iter()
        .map(|at| tail[at..].trim_start())
        .filter(|part| !part.starts_with('}'))
        .flat_map(expand)
        .collect()
}

/// All paths that a module names, as absolute paths.
pub(crate) fn named(module: &str, code: &str) -> BTreeSet<String> {
    let parent = |module: &str| module.rsplit_once("::").map_or(String::new(), |(parent, _)| parent.to_owned());
    let mut paths = BTreeSet::new();
    for prefix in ["crate::", "super::"] {
        // A `super::` that follows another is a part of that path.
        for (at, _) in code.match_indices(prefix).filter(|(at, _)| !code[..*at].ends_with("super::")) {
            let mut tail = code[at + prefix.len()..].trim_start();
            let mut base = if prefix == "crate::" { String::new() } else { parent(module) };
            while let Some(above) = tail.strip_prefix("super::") {
                (tail, base) = (above, parent(&base));
            }
            let path = expand(tail);
            paths.extend(path.into_iter().map(|path| if base.is_empty() { path } else { format!("{base}::{path}") }));
        }
    }
    paths
}

fn rank(order: &Order, module: &str) -> Option<usize> {
    order.iter().position(|line| line.contains(&module))
}

/// The module that contains a path: the longest that the order lists.
pub(crate) fn owner<'a>(order: &Order, path: &'a str) -> Option<&'a str> {
    longest(path, |module| rank(order, module).map(|_| module))
}

/// The result of `known` for the longest prefix of `path` that it knows.
fn longest<'a, T>(path: &'a str, known: impl Fn(&'a str) -> Option<T>) -> Option<T> {
    let ends = path.match_indices("::").map(|(at, _)| at).chain([path.len()]);
    ends.filter_map(|end| known(&path[..end])).last()
}
