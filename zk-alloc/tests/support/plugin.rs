//! Builds tests/plugin, a shared object with zk-alloc as its global allocator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the plugin in one of the allocator's modes. The plugin is a package of its own, because cargo builds no
/// shared object for a test. It uses the workspace's lock file, so cargo fetches nothing.
pub(crate) fn plugin(is_resident: bool) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let zk_alloc =
        own.ancestors().map(|folder| folder.join("zk-alloc")).find(|folder| folder.join("Cargo.toml").is_file());
    let zk_alloc = zk_alloc.expect("the allocator's package");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin");
    fs::create_dir_all(&folder).expect("a folder for the package");
    let manifest = format!(
        "[package]\nname = \"plugin\"\nedition = \"2024\"\n[lib]\npath = {source:?}\ncrate-type = [\"cdylib\"]\n\
         [features]\nresident = []\n[dependencies]\nzk-alloc = {{ path = {zk_alloc:?}, default-features = false }}\n\
         [profile.dev]\nopt-level = 1\ndebug = false\nincremental = false\n[workspace]\n",
        source = zk_alloc.join("tests/plugin/lib.rs"),
    );
    fs::write(folder.join("Cargo.toml"), manifest).expect("the manifest");
    fs::copy(zk_alloc.join("../Cargo.lock"), folder.join("Cargo.lock")).expect("the lock file");
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--offline", "--target-dir", "target"]).current_dir(&folder);
    if is_resident {
        command.args(["--features", "resident"]);
    }
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let kept = folder.join(if is_resident { "resident" } else { "scoped" });
    fs::create_dir_all(&kept).expect("a folder for the plugin");
    let kept = kept.join("libplugin.so");
    // Creates a new file, because a process may have the old one mapped.
    let _ = fs::remove_file(&kept);
    fs::copy(folder.join("target/debug/libplugin.so"), &kept).expect("the plugin");
    kept
}
