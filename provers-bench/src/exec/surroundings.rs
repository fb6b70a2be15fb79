//! What the environment of this driver brings to every run: libraries that it preloads, and settings of allocators. An image
//! that has `LD_PRELOAD` set would otherwise show its own allocator under the name of glibc.

use super::libraries::{self, PRELOAD};
use super::target;
use std::env;
use std::path::PathBuf;

/// How the names of variables begin that allocators read.
const SETTINGS: &[&str] = &["GLIBC_TUNABLES", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "ZK_ALLOC_"];

/// The environment, as far as it matters here.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// What is preloaded into every run, as the loader takes it: everything that is no allocator.
    pub(super) preloaded: String,
    /// What should be known of the rest.
    pub(super) remarks: Vec<String>,
}

impl Surroundings {
    pub(super) fn observe() -> Self {
        let variables =
            env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
        Self::of(variables)
    }

    fn of(variables: impl Iterator<Item = (String, String)>) -> Self {
        let mut found = Self::default();
        let mut settings = Vec::new();
        for (name, value) in variables {
            if name == PRELOAD {
                // As ld.so(8) separates them.
                let files: Vec<_> = value.split([':', ' ']).filter(|file| !file.is_empty()).collect();
                let (allocators, others): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| is_allocator(file));
                found.preloaded = others.join(":");
                found.remarks.extend(allocators.iter().map(|file| {
                    format!("{PRELOAD} of this environment names {file}, an allocator: it is taken out for every run")
                }));
            } else if SETTINGS.iter().any(|prefix| name.starts_with(prefix)) {
                settings.push(format!("{name}={value}"));
            }
        }
        if !settings.is_empty() {
            settings.sort();
            let settings = settings.join(" ");
            found
                .remarks
                .push(format!("This environment sets {settings}, for every arm that does not set it otherwise"));
        }
        found
    }
}

fn is_allocator(file: &str) -> bool {
    let path = if file.contains('/') { Some(PathBuf::from(file)) } else { libraries::found(&[file]) };
    path.is_some_and(|path| target::is_allocator(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings from outside change what a plain arm is, and nothing else tells the reader.
    #[test]
    fn settings_from_outside_are_named_and_other_libraries_stay() {
        let variables =
            [("MIMALLOC_PURGE_DELAY", "9"), ("PATH", "/bin"), ("LD_PRELOAD", "libno-such.so /lib/other.so")];
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = Surroundings::of(owned.into_iter());
        assert_eq!(found.preloaded, "libno-such.so:/lib/other.so");
        assert_eq!(found.remarks.len(), 1, "{:?}", found.remarks);
        assert!(found.remarks[0].contains("MIMALLOC_PURGE_DELAY=9"), "{:?}", found.remarks);
    }
}
