//! What an arm's binary says about the allocator that it links: its name, its settings, its counters.
//!
//! What calls into an allocator is `#[inline]`, so that only the binary that uses it refers to that allocator. Another
//! binary would link it as well, and run its start-up code.

use crate::machine::memory;
use crate::sample::Counters;
use anyhow::{Context, ensure};
use std::env;

/// The allocator of this process, as its binary describes it.
#[derive(Debug)]
pub struct Installed {
    /// Name of the allocator.
    pub name: String,
    /// Version of the linked code.
    pub version: String,
    /// How the names of the environment variables begin that set it.
    pub setting_prefixes: &'static [&'static str],
    /// Counters since the process started; empty where an allocator has none.
    pub counters: fn() -> Counters,
    /// Levels that are no sums; empty likewise.
    pub gauges: fn() -> Counters,
    /// Asks the allocator for a setting that is in force, by its own name; `None` if it knows none of that name.
    pub setting: fn(&str) -> Option<String>,
    /// Runs a prover the way the allocator wants it; it calls the function once. Timed with the proof.
    pub scope: fn(&mut dyn FnMut()),
    /// Replays a recorded phase: what `scope` does, and what an adapter of the allocator does for the prover within.
    pub phase: fn(&mut dyn FnMut()),
    /// Gives all free memory back to the system; `None` where a replay does not ask for that.
    pub release: Option<fn()>,
    /// What the allocator says of itself, for people; `None` if it says nothing.
    pub report: fn() -> Option<String>,
}

impl Installed {
    /// An allocator without counters of its own.
    pub fn named(name: &str, version: &str, setting_prefixes: &'static [&'static str]) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            setting_prefixes,
            counters: Counters::new,
            gauges: Counters::new,
            setting: |_| None,
            scope: |prove| prove(),
            phase: |play| play(),
            release: None,
            report: || None,
        }
    }

    /// The allocator of the C library.
    pub fn system() -> Self {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        return Self {
            setting: glibc::setting,
            ..Self::named("glibc", &glibc::version(), &["GLIBC_TUNABLES", "MALLOC_"])
        };
        #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
        Self::named("system", env!("PROVE_BENCH_TARGET"), &["MALLOC_"])
    }

    /// jemalloc, as the crate `tikv-jemallocator` links it.
    #[inline]
    pub fn jemalloc() -> Self {
        // Asked of the library that is linked, not of its manifest.
        let version = tikv_jemalloc_ctl::version::read().unwrap_or("unknown");
        Self { setting: jemalloc_setting, ..Self::named("jemalloc", version, &["_RJEM_MALLOC_"]) }
    }

    /// mimalloc, as the crate `mimalloc` links it.
    #[inline]
    pub fn mimalloc() -> Self {
        Self { setting: mimalloc_setting, ..Self::named("mimalloc", &mimalloc_version(), &["MIMALLOC_"]) }
    }

    /// Bump and reset: the crate zk-alloc 0.0.9, which resets its memory whenever a phase of its own begins.
    #[inline]
    pub fn bump_reset() -> Self {
        let prefixes = &["GLIBC_TUNABLES", "MALLOC_", "ZK_ALLOC_"];
        let phase: fn(&mut dyn FnMut()) = |prove| zk_alloc_0_0_9::phase(prove);
        Self { scope: phase, phase, ..Self::named("zk-alloc", "0.0.9", prefixes) }
    }

    /// Our arena, over the allocator of the C library.
    pub fn zk_alloc() -> Self {
        // The library's manifest: the allocator is a member of the same workspace, under the same version.
        let prefixes = &["GLIBC_TUNABLES", "MALLOC_", "ZK_ALLOC_"];
        Self {
            counters: zk_alloc_counters,
            gauges: zk_alloc_gauges,
            phase: |play| zk_alloc::phase(play),
            release: Some(|| _ = zk_alloc::release()),
            report: || Some(zk_alloc::stats().to_string()),
            ..Self::named("zk-alloc", env!("CARGO_PKG_VERSION"), prefixes)
        }
    }

    /// The allocator's settings in this process's environment, as `NAME=value`, sorted: whatever was set from outside
    /// is named beside the figures that it changed.
    pub(crate) fn settings(&self) -> Vec<String> {
        // A preloaded library may be another allocator.
        let is_setting =
            |name: &str| name == "LD_PRELOAD" || self.setting_prefixes.iter().any(|prefix| name.starts_with(prefix));
        let mut settings: Vec<_> = env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, _)| is_setting(name))
            .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
            .collect();
        settings.sort();
        settings
    }

    /// Asks the allocator for each of `required`, names with values. Returns them as `name=value`; fails on the first
    /// that is not in force.
    pub(crate) fn confirm(&self, required: &[(String, String)]) -> anyhow::Result<Vec<String>> {
        let confirmed = required.iter().map(|(name, wanted)| {
            let found = (self.setting)(name)
                .with_context(|| format!("its setting did not take: {} has no setting {name}", self.name))?;
            ensure!(found == *wanted, "its setting did not take: {name} is {found}, not {wanted}");
            Ok(format!("{name}={wanted}"))
        });
        confirmed.collect()
    }
}

fn named(values: impl IntoIterator<Item = (&'static str, u64)>) -> Counters {
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn zk_alloc_counters() -> Counters {
    let stats = zk_alloc::stats();
    named([
        ("arena_allocations", stats.arena_allocations),
        ("arena_bytes", stats.arena_bytes),
        ("fresh_bytes", stats.fresh_bytes),
        ("overflow_allocations", stats.overflow_allocations),
        ("overflow_bytes", stats.overflow_bytes),
        ("phases", stats.phases),
        ("refusals", stats.refusals),
        ("system_calls", stats.system_calls),
        // Goes up and down. A sample holds by how much it grew in the proof: what left its phase, the proof included, as
        // zk_alloc's PhaseReport counts it.
        ("escaped_bytes", stats.live_bytes as u64),
    ])
}

fn zk_alloc_gauges() -> Counters {
    let huge_page_bytes = memory::huge_page_bytes().unwrap_or(0);
    named([("huge_page_bytes", huge_page_bytes), ("peak_live_bytes", zk_alloc::stats().peak_live_bytes as u64)])
}

/// A setting of jemalloc, by its name in `mallctl` (jemalloc(3)).
#[inline]
#[expect(unsafe_code, reason = "jemalloc is asked through its C interface")]
fn jemalloc_setting(name: &str) -> Option<String> {
    use tikv_jemalloc_ctl::raw;
    let key = format!("{name}\0");
    let key = key.as_bytes();
    match name {
        "opt.retain" => {
            // SAFETY: the key ends in a zero, and the value is a `bool` (jemalloc(3)).
            Some(unsafe { raw::read::<bool>(key) }.ok()?.to_string())
        }
        "opt.thp" | "opt.metadata_thp" => {
            // SAFETY: as above, and the value is a string that jemalloc never frees.
            let value = unsafe { raw::read_str(key) }.ok()?;
            Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned())
        }
        "opt.dirty_decay_ms" | "opt.muzzy_decay_ms" => {
            // SAFETY: as above, and the value is an `ssize_t`.
            Some(unsafe { raw::read::<isize>(key) }.ok()?.to_string())
        }
        _ => None,
    }
}

/// A setting of mimalloc, by the name of its option.
#[inline]
fn mimalloc_setting(name: &str) -> Option<String> {
    let option = match name {
        "allow_large_os_pages" => libmimalloc_sys::mi_option_large_os_pages,
        // The binding has no name for it: its place in `mi_option_t` (mimalloc.h, version 3).
        "purge_delay" => 15,
        _ => return None,
    };
    // SAFETY: reads a number, and an option that does not exist reads as 0.
    #[expect(unsafe_code, reason = "mimalloc is asked through its C interface")]
    let value = unsafe { libmimalloc_sys::mi_option_get(option) };
    Some(value.to_string())
}

#[inline]
fn mimalloc_version() -> String {
    // SAFETY: takes nothing and returns a number.
    #[expect(unsafe_code, reason = "the only way to ask the linked library for its version")]
    let version = unsafe { libmimalloc_sys::mi_version() };
    // mimalloc.h: major, and two digits each of minor and patch.
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "glibc is asked through its C interface")]
mod glibc {
    use std::ffi::CStr;

    /// More than the largest threshold above which glibc maps a request by itself.
    const PROBE_BYTES: usize = 256 << 20;

    pub(super) fn version() -> String {
        // SAFETY: the function takes no arguments and returns a pointer to a string that lives as long as the process
        // (gnu_get_libc_version(3)).
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        version.to_string_lossy().into_owned()
    }

    /// glibc does not tell its tunables, and refuses values without a word: it is watched instead.
    pub(super) fn setting(name: &str) -> Option<String> {
        (name == "retains 256 MiB").then(|| retention().into())
    }

    /// What becomes of a large request, which is never touched and so costs no memory.
    fn retention() -> &'static str {
        // SAFETY: what was allocated is freed once; mallinfo2(3) only reads.
        let (before, used, after) = unsafe {
            let before = libc::mallinfo2();
            let at = std::hint::black_box(libc::malloc(PROBE_BYTES));
            let used = libc::mallinfo2();
            libc::free(at);
            (before, used, libc::mallinfo2())
        };
        if used.hblks > before.hblks {
            "no: it is mapped by itself"
        } else if after.keepcost < PROBE_BYTES {
            "no: it is given back"
        } else {
            "yes"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An arm whose settings were refused would show the defaults' figures under the tuned name.
    #[test]
    fn a_setting_that_is_not_in_force_is_named_with_what_is() {
        let setting = |name: &str| (name == "opt.thp").then(|| "default".to_owned());
        let installed = Installed { setting, ..Installed::named("m", "1", &[]) };
        let confirm = |name: &str, value: &str| installed.confirm(&[(name.into(), value.into())]);
        assert_eq!(confirm("opt.thp", "default").unwrap(), ["opt.thp=default"]);
        let reason = confirm("opt.thp", "always").unwrap_err().to_string();
        assert_eq!(reason, "its setting did not take: opt.thp is default, not always");
        assert!(confirm("opt.pht", "1").unwrap_err().to_string().ends_with("m has no setting opt.pht"));
    }
}
