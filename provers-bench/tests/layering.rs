//! A module of the bench names only modules below it, and no two files name each other. This test reads the sources.
//! The file `layers.rs`, shared with the allocator's test, explains how.

#[path = "../../zk-alloc/tests/support/layers.rs"]
mod layers;

use std::path::{Path, PathBuf};

/// Modules from the top down. A module may name those on lower lines, but not those on its own line.
const ORDER: &[&[&str]] = &[
    &["driver"],
    &["cli"],
    &["check", "exec", "host", "profile", "trace"],
    &["run"],
    &["report"],
    &["child", "measure"],
    &["plan"],
    &["results"],
    &["protocol"],
    &["workloads"],
    &["arms", "together"],
    &["sample", "stack"],
    &["machine"],
];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Binaries and the macros that make them lie outside the modules. They name the crate's root.
fn is_outside(module: &str) -> bool {
    module.starts_with("bin::") || ["main", "macros"].contains(&module)
}

#[test]
fn a_module_names_only_what_stands_below_it() {
    let breaches = layers::breaches(&src(), ORDER, is_outside);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// This also holds within a module's folder: two files that need each other cannot be read or changed separately.
#[test]
fn no_file_names_one_that_names_it() {
    let cycles = layers::cycles(&src(), is_outside);
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
}
