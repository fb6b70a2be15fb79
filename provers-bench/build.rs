//! Records in the library how it was built, so that every result names its compiler, its flags and its sources.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The sources that every measured binary contains. Its prover and the crates that a lock file pins are not among them. The driver checks
/// the prover's sources by their modification time (`measure::binaries`). If the harness is vendored, only the first folder exists.
const SOURCES: [&str; 2] = ["src", "../zk-alloc/src"];

fn main() {
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc)
        .arg("-V")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .unwrap_or_else(|| "unknown".into());
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default().replace('\u{1f}', " ");
    println!("cargo::rustc-env=PROVE_BENCH_RUSTC={}", version.trim());
    println!("cargo::rustc-env=PROVE_BENCH_RUSTFLAGS={flags}");
    for (name, from) in [("TARGET", "TARGET"), ("PROFILE", "PROFILE"), ("OPT_LEVEL", "OPT_LEVEL")] {
        println!("cargo::rustc-env=PROVE_BENCH_{name}={}", env::var(from).unwrap_or_default());
    }

    // The driver and the arms contain a hash of the sources. The driver rejects an arm whose hash differs from its own.
    let mut files = Vec::new();
    for source in SOURCES.map(Path::new).into_iter().filter(|source| source.exists()) {
        println!("cargo::rerun-if-changed={}", source.display());
        collect(source, &mut files);
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        fs::read(&file).unwrap_or_default().hash(&mut hasher);
    }
    println!("cargo::rustc-env=PROVE_BENCH_SOURCES={:016x}", hasher.finish());
    println!("cargo::rerun-if-env-changed=RUSTFLAGS");
    // The arms of this package only replay traces, because it has no crate `prover`.
    println!("cargo::rustc-check-cfg=cfg(without_prover)\ncargo::rustc-cfg=without_prover");
}

/// Collects every Rust source and manifest under `path`.
fn collect(path: &Path, into: &mut Vec<PathBuf>) {
    let name = path.file_name().unwrap_or_default();
    if path.is_dir() && name != "target" {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.for_each(|entry| collect(&entry.path(), into));
    } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "toml" || extension == "lock")
    {
        into.push(path.to_owned());
    }
}
