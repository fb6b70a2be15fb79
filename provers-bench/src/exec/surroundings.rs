//! The driver's own environment, which every run inherits: preloaded libraries, and settings of allocators. In an image
//! that sets `LD_PRELOAD`, the row glibc would otherwise show the image's allocator.

use super::libraries::{self, PRELOAD};
use super::target;
use std::env;
use std::path::PathBuf;

/// Prefixes of the variables that allocators read.
const SETTINGS: &[&str] = &["GLIBC_TUNABLES", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "ZK_ALLOC_"];

/// The relevant part of the environment.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// The preloaded libraries that are not allocators, in the loader's syntax. Every run preloads them.
    pub(super) preloaded: String,
    /// Notes for the reader on the rest.
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
                // ld.so(8) allows both separators.
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

    /// Settings from outside change the plain arms, and nothing else tells the reader.
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
