//! A module names only modules below it. This test reads the sources, as `support/layers.rs` describes.

#[path = "support/layers.rs"]
mod layers;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use layers::{code, files};

/// From the top down. Modules of one line may name modules of lower lines, but not each other.
const ORDER: &[&[&str]] = &[
    &["names"],
    &["allocator", "c_api", "pool", "record", "scratch::allocator"],
    &["scratch", "secret"],
    &["scratch::bump"],
    &["phase"],
    &["retain", "report"],
    &["background", "limit", "parts"],
    &["stats"],
    &["arena", "observe"],
    &["arena::size_classes", "arena::lengths"],
    &["arena::slab", "arena::region"],
    &["arena::zone"],
    &["arena::huge"],
    &["arena::residency"],
    &["arena::layout", "arena::decay"],
    &["arena::window"],
    &["arena::thread_cache", "arena::budget"],
    &["arena::runs", "arena::mapped", "arena::moved", "arena::room"],
    &["arena::failures"],
    &["arena::holes"],
    &["arena::occupied"],
    &["arena::hints"],
    &["arena::bitmap", "arena::table"],
    &["counters", "escape", "helpers"],
    &["profile"],
    &["route"],
    &["config", "classes"],
    &["os"],
    &["arena::align", "frames", "observers", "open_phases", "sync", "tuning", "wipe", "written_once", "error"],
];

#[test]
fn a_module_names_only_what_stands_below_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // The checks are tests.
    let breaches = layers::breaches(&src, ORDER, |module| module.starts_with("arena::checks"));
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// The rule also holds within a folder. `os` is exempt: it is one layer, whose folder picks the platform.
#[test]
fn no_file_names_one_that_names_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let is_exempt = |module: &str| module.starts_with("arena::checks") || module.starts_with("os::");
    let cycles = layers::cycles(&src, is_exempt);
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
}

#[test]
fn imports_are_read_as_the_compiler_reads_them() {
    let code = "use crate::{arena::{self, Contents}, config, route::path};\nfn f() { super::get(); }\nuse crate::os;";
    let expected = ["arena::Contents", "arena::get", "arena::self", "config", "os", "route::path"];
    assert_eq!(layers::named("arena::slab", code).into_iter().collect::<Vec<_>>(), expected);
    let far = layers::named("arena::size_classes::slab", "use super::super::runs::Run;");
    assert_eq!(far.into_iter().collect::<Vec<_>>(), ["arena::runs::Run"]);
    assert_eq!(layers::owner(ORDER, "arena::slab::alloc"), Some("arena::slab"));
    assert_eq!(layers::owner(ORDER, "arena::align_up"), Some("arena"));
}

/// The design describes requests by the names of functions, and names change.
#[test]
fn the_walks_of_the_design_name_what_there_is() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let design = fs::read_to_string(crate_dir.join("../docs/design.md")).expect("the design lies beside the crate");
    let walks = design.split("\n## ").find(|part| part.starts_with("How a request flows")).expect("the walks");
    let sources = files(&crate_dir.join("src")).iter().map(|file| code(file)).collect::<Vec<_>>().join("\n");
    let known: BTreeSet<_> = sources.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    // Every other part stands between backticks.
    let quoted = walks.split('`').skip(1).step_by(2);
    let words = quoted.flat_map(|quoted| quoted.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':'));
    let paths = words.filter(|word| word.contains("::"));
    let (there, gone): (Vec<_>, Vec<_>) = paths.partition(|path| path.split("::").all(|name| known.contains(name)));
    assert!(gone.is_empty(), "docs/design.md names what is gone: {gone:?}");
    assert!(there.len() > 40, "only {} names were found in docs/design.md", there.len());
}
