//! A module of the bench names only what stands below it, and no two files name each other. This test reads the sources;
//! how, is said in the file that it shares with the allocator's.

#[path = "../../zk-alloc/tests/support/layers.rs"]
mod layers;

use std::path::{Path, PathBuf};

/// From the top down. What stands on one line may name what stands on lower lines, and not its neighbours.
const ORDER: &[&[&str]] = &[
    &["driver"],
    &["cli"],
    &["check", "exec", "trace"],
    &["run"],
    &["report"],
    &["child", "measure"],
    &["plan"],
    &["results"],
    &["protocol"],
    &["workloads"],
    &["arms"],
    &["sample"],
    &["machine"],
];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Binaries and the macros that make them are the crate's outside: they name its root.
fn is_outside(module: &str) -> bool {
    module.starts_with("bin::") || ["main", "macros"].contains(&module)
}

#[test]
fn a_module_names_only_what_stands_below_it() {
    let breaches = layers::breaches(&src(), ORDER, is_outside);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// Within a wing, too: two files that need each other can neither be read nor changed one at a time.
#[test]
fn no_file_names_one_that_names_it() {
    let cycles = layers::cycles(&src(), is_outside);
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
}
