//! A module names only what stands below it. This test reads the sources.
//!
//! Counted are paths that begin with `crate::` or `super::`, in imports and elsewhere; comments and the unit tests at the
//! end of a file are not.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// From the top down. What stands on one line may name what stands on lower lines, and not its neighbours.
const ORDER: &[&[&str]] = &[
    &["allocator", "c_api", "pool", "scratch::allocator", "simulation"],
    &["scratch", "secret"],
    &["scratch::bump"],
    &["phase"],
    &["retain", "report"],
    &["stats"],
    &["arena"],
    &["arena::middle", "arena::lengths"],
    &["arena::slab", "arena::region"],
    &["arena::zone"],
    &["arena::residency"],
    &["arena::layout", "arena::decay"],
    &["arena::thread_cache", "arena::budget"],
    &["arena::hints", "arena::runs"],
    &["arena::bitmap", "arena::table"],
    &["counters", "escape", "workers"],
    &["route"],
    &["config", "classes"],
    &["os"],
    &["arena::align", "open", "sync", "wipe", "error"],
];

fn files(dir: &Path) -> Vec<PathBuf> {
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
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("a readable source");
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The paths that a `{a, b::{c, d}}` or an `a::b` stands for, as deep as two names.
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

/// What a module names, as absolute paths.
fn named(module: &str, code: &str) -> BTreeSet<String> {
    let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
    let mut paths = BTreeSet::new();
    for (prefix, base) in [("crate::", ""), ("super::", parent)] {
        for (at, _) in code.match_indices(prefix) {
            let path = expand(code[at + prefix.len()..].trim_start());
            paths.extend(path.into_iter().map(|path| if base.is_empty() { path } else { format!("{base}::{path}") }));
        }
    }
    paths
}

fn rank(module: &str) -> Option<usize> {
    ORDER.iter().position(|line| line.contains(&module))
}

/// The module that a path lies in: the longest that the order knows.
fn owner(path: &str) -> Option<&str> {
    let ends = path.match_indices("::").map(|(at, _)| at).chain([path.len()]);
    ends.map(|end| &path[..end]).filter(|module| rank(module).is_some()).last()
}

#[test]
fn a_module_names_only_what_stands_below_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut breaches = Vec::new();
    for file in files(&src) {
        let module = module(&src, &file);
        // The crate's root names everything; the checks are tests.
        if module == "lib" || module.starts_with("arena::checks") {
            continue;
        }
        let Some(from) = owner(&module) else {
            breaches.push(format!("{module} has no place in ORDER"));
            continue;
        };
        for path in named(&module, &code(&file)) {
            let Some(to) = owner(&path) else {
                breaches.push(format!("{module} names {path}, which lies in no module of ORDER"));
                continue;
            };
            if to != from && rank(to) <= rank(from) {
                breaches.push(format!("{module} names {path}, which does not stand below it"));
            }
        }
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn imports_are_read_as_the_compiler_reads_them() {
    let code = "use crate::{arena::{self, Contents}, config, route::path};\nfn f() { super::get(); }\nuse crate::os;";
    let expected = ["arena::Contents", "arena::get", "arena::self", "config", "os", "route::path"];
    assert_eq!(named("arena::slab", code).into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(owner("arena::slab::alloc"), Some("arena::slab"));
    assert_eq!(owner("arena::align_up"), Some("arena"));
}
