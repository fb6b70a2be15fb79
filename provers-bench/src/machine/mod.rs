//! The machine and the code of a run, as far as they can change its figures.

pub(crate) mod build_info;
pub(crate) mod interrupts;
pub(crate) mod kind;
pub(crate) mod memory;

use build_info::BuildInfo;
use kind::Kind;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

/// Fields are `None` if the machine does not report them.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: Option<String>,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) kernel: Option<String>,
    /// Setting of transparent huge pages, for results without a [kind](Self::kind).
    pub(crate) transparent_huge_pages: Option<String>,
    /// `None` in results of before it was recorded.
    #[serde(default)]
    pub(crate) kind: Option<Kind>,
    /// `vm.overcommit_memory`.
    pub(crate) overcommit_memory: Option<String>,
    /// Load averages when the run started; high values mean that other programs were busy.
    pub(crate) load_average: Option<String>,
    pub(crate) started_at: jiff::Timestamp,
    pub(crate) build: BuildInfo,
    pub(crate) git_commit: Option<String>,
    /// The working tree differs from the commit.
    pub(crate) git_dirty: Option<bool>,
    /// SHA-256 of the `Cargo.lock` in the working directory or above it.
    pub(crate) lockfile_sha256: Option<String>,
}

impl Machine {
    /// Reads the current state.
    pub(crate) fn observe() -> Self {
        let (kind, status) = (Kind::observe(), git(&["status", "--porcelain"]));
        Self {
            cpu: cpu_model(),
            cores: cores(),
            memory_bytes: memory::total_bytes(),
            kernel: kernel(),
            transparent_huge_pages: kind.huge_pages.clone(),
            kind: Some(kind),
            overcommit_memory: line_of("/proc/sys/vm/overcommit_memory"),
            load_average: line_of("/proc/loadavg"),
            started_at: jiff::Timestamp::now(),
            build: build_info::current(),
            git_commit: git(&["rev-parse", "HEAD"]),
            git_dirty: status.map(|status| !status.is_empty()),
            lockfile_sha256: lockfile().and_then(|path| sha256_of(&path)),
        }
    }
}

impl Machine {
    /// The kind of host in words. Older results have a part of it.
    pub(crate) fn kind_of_host(&self) -> String {
        let huge_pages = self.transparent_huge_pages.as_deref().unwrap_or("unknown");
        self.kind.as_ref().map_or_else(|| format!("THP {huge_pages}"), Kind::to_string)
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// The kernel's release.
pub(crate) fn kernel() -> Option<String> {
    line_of("/proc/sys/kernel/osrelease")
}

pub(crate) fn cpu_model() -> Option<String> {
    let cpus = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = cpus.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The text of a file, without the white space around it.
pub(crate) fn line_of(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The word in brackets: the kernel lists every choice and marks the active one.
pub(crate) fn chosen(line: &str) -> Option<String> {
    Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn lockfile() -> Option<PathBuf> {
    let here = env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join("Cargo.lock")).find(|path| path.is_file())
}

/// SHA-256 of a file; `None` if it cannot be read.
pub(crate) fn sha256_of(path: &Path) -> Option<String> {
    Some(in_hex(&Sha256::digest(fs::read(path).ok()?)))
}

/// A digest as `sha256sum` writes it.
pub(crate) fn in_hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_choice_is_the_word_in_brackets() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("none"), None);
    }
}
