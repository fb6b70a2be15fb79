//! The properties of the machine and of the build that can change a run's measurements.
//!
//! - `mod`: the record of the machine and the build in a result
//! - `host`: the kind of host, and the memory that it has
//! - `process`: memory and time of a process

pub(crate) mod host;
pub(crate) mod process;

use host::{Kind, line_of, number};
use process::field_bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// The machine, as recorded in a result. Fields are `None` if the machine does not report them.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: Option<String>,
    /// Number of cores that this process may use.
    pub(crate) cores: usize,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) kernel: Option<String>,
    /// Setting for transparent huge pages; used for results without a [kind](Self::kind).
    pub(crate) transparent_huge_pages: Option<String>,
    /// `None` in results that are older than this field.
    pub(crate) kind: Option<Kind>,
    /// The lowest memory limit of this process's control groups.
    pub(crate) limit_bytes: Option<u64>,
    /// The lowest CPU limit of this process's control groups, in CPUs.
    pub(crate) cpu_limit: Option<f64>,
    pub(crate) numa_nodes: Option<usize>,
    pub(crate) max_map_count: Option<u64>,
    /// `vm.overcommit_memory`.
    pub(crate) overcommit_memory: Option<String>,
    /// Load averages at the start of the run; high values mean that other programs were busy.
    pub(crate) load_average: Option<String>,
    pub(crate) started_at: jiff::Timestamp,
    pub(crate) build: BuildInfo,
    pub(crate) git_commit: Option<String>,
    /// Whether the working tree differs from the commit.
    pub(crate) git_dirty: Option<bool>,
    /// SHA-256 of the `Cargo.lock` in the working directory or above it.
    pub(crate) lockfile_sha256: Option<String>,
}

impl Machine {
    /// Reads the current state.
    pub(crate) fn observe() -> Self {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
        let kind = Kind::observe();
        let status = git(&["status", "--porcelain"]);
        let here = env::current_dir().unwrap_or_default();
        let lockfile = here.ancestors().map(|folder| folder.join("Cargo.lock")).find(|path| path.is_file());
        Self {
            cpu: model.map(|(_, model)| model.trim().to_owned()),
            cores: host::cores(),
            memory_bytes: field_bytes("/proc/meminfo", "MemTotal:"),
            kernel: line_of("/proc/sys/kernel/osrelease"),
            transparent_huge_pages: kind.huge_pages.clone(),
            kind: Some(kind),
            limit_bytes: host::limit_bytes(),
            cpu_limit: host::cpu_limit(),
            numa_nodes: Some(host::nodes()),
            max_map_count: number("/proc/sys/vm/max_map_count"),
            overcommit_memory: line_of("/proc/sys/vm/overcommit_memory"),
            load_average: line_of("/proc/loadavg"),
            started_at: jiff::Timestamp::now(),
            build: BuildInfo::current(),
            git_commit: git(&["rev-parse", "HEAD"]),
            git_dirty: status.map(|status| !status.is_empty()),
            lockfile_sha256: lockfile.and_then(|path| sha256_of(&path)),
        }
    }

    /// Describes the kind of host in words. Older results have only the setting for transparent huge pages.
    pub(crate) fn kind_of_host(&self) -> String {
        let huge_pages = self.transparent_huge_pages.as_deref().unwrap_or("unknown");
        self.kind.as_ref().map_or_else(|| format!("THP {huge_pages}"), Kind::to_string)
    }
}

/// How this library was built: compiler, flags and sources. The arms link the same library, and the driver rejects an arm
/// that links another build.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct BuildInfo {
    /// `rustc -V`.
    pub(crate) rustc: String,
    pub(crate) target: String,
    /// Flags from `RUSTFLAGS` or `.cargo/config.toml`, which include `target-cpu`.
    pub(crate) rustflags: String,
    /// Vector instructions that the compiler may use. Provers choose their field arithmetic accordingly.
    pub(crate) vector_features: Vec<String>,
    /// `release` or `debug`; cargo assigns custom profiles to one of them.
    pub(crate) profile: String,
    pub(crate) opt_level: String,
    /// Hash of the sources of the harness and the allocator.
    pub(crate) sources: String,
}

impl BuildInfo {
    /// Describes the build of the running binary.
    pub(crate) fn current() -> Self {
        let features = [
            ("avx2", cfg!(target_feature = "avx2")),
            ("avx512f", cfg!(target_feature = "avx512f")),
            ("neon", cfg!(target_feature = "neon")),
        ];
        Self {
            rustc: env!("PROVE_BENCH_RUSTC").into(),
            target: env!("PROVE_BENCH_TARGET").into(),
            rustflags: env!("PROVE_BENCH_RUSTFLAGS").into(),
            vector_features: features.into_iter().filter(|(_, on)| *on).map(|(name, _)| name.into()).collect(),
            profile: env!("PROVE_BENCH_PROFILE").into(),
            opt_level: env!("PROVE_BENCH_OPT_LEVEL").into(),
            sources: env!("PROVE_BENCH_SOURCES").into(),
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Returns the SHA-256 of a file; `None` if the file cannot be read.
pub(crate) fn sha256_of(path: &Path) -> Option<String> {
    Some(in_hex(&Sha256::digest(fs::read(path).ok()?)))
}

/// Formats a digest as `sha256sum` does.
pub(crate) fn in_hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
