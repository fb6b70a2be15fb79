//! The allocators that the arms' binaries install. Each allocator has a module, whose name is the first argument of [`arm!`](crate::arm).
//! The module contains the value to install and a function that describes the allocator, so a crate with its own prover needs no other
//! dependency.
//!
//! Some allocators take a long time to build, so they require the features `jemalloc` and `peers`. Without these features, the bench knows
//! the allocators' names but has no binaries for them.
//!
//! Functions that call into an allocator are `#[inline]`, so they are compiled into the calling binary and never into
//! this library. If this library called an allocator, every arm would link that allocator, including its code that runs
//! before `main`.

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
    /// Prefixes of the environment variables that configure it.
    pub setting_prefixes: &'static [&'static str],
    /// Returns counters summed since the process started; empty if the allocator has none.
    pub counters: fn() -> Counters,
    /// Returns gauges (current levels, not sums); empty if the allocator has none.
    pub gauges: fn() -> Counters,
    /// Returns the effective value of a setting, given the allocator's own name for it; `None` if the name is unknown.
    pub setting: fn(&str) -> Option<String>,
    /// Calls the given function once, in the scope in which the allocator expects provers to run. The proof's time includes the cost of the
    /// scope.
    pub scope: fn(&mut dyn FnMut()),
    /// Like `scope`, but for replaying a recorded phase: also does what the allocator's adapter does inside a prover.
    pub phase: fn(&mut dyn FnMut()),
    /// Returns all free memory to the kernel after a replay; `None` if a replay does not ask the allocator to do so.
    pub release: Option<fn()>,
}

impl Installed {
    /// Describes an allocator without counters.
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
        }
    }

    /// Returns the allocator's settings in this process's environment, as `NAME=value`, sorted. They change the
    /// measurements, so the results list them.
    pub(crate) fn settings(&self) -> Vec<String> {
        // A preloaded library may replace the allocator.
        let prefixes = || self.setting_prefixes.iter().chain(&["LD_PRELOAD="]);
        let all = env::vars_os().map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
        let mut settings: Vec<_> = all.filter(|setting| prefixes().any(|prefix| setting.starts_with(prefix))).collect();
        settings.sort();
        settings
    }

    /// Checks that each setting in `required` (name and value) is in force. Returns the settings as `name=value`; fails on the first that
    /// is not in force.
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

/// The allocator of the C library: glibc's malloc on most Linux systems.
pub mod glibc {
    use super::Installed;

    /// The allocator's type.
    pub type Allocator = std::alloc::System;

    /// The value to install as the global allocator.
    pub const ALLOCATOR: Allocator = std::alloc::System;

    /// Describes the installed allocator.
    #[inline]
    pub fn installed() -> Installed {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        {
            gnu::start_again_without_huge_pages();
            Installed {
                setting: gnu::setting,
                ..Installed::named("glibc", &gnu::version(), &["GLIBC_TUNABLES", "MALLOC_"])
            }
        }
        #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
        Installed::named("system", env!("PROVE_BENCH_TARGET"), &["MALLOC_"])
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "glibc is queried through its C interface")]
    mod gnu {
        use crate::machine::host;
        use std::env;
        use std::ffi::CStr;
        use std::os::unix::process::CommandExt;
        use std::process::Command;

        /// The environment variable that counts the restarts of this program.
        const STARTS: &str = "PROVE_BENCH_STARTS";
        const MAX_STARTS: usize = 30;

        /// Restarts this program if glibc was told to use huge pages but does not. glibc 2.36 reads the host's setting into a buffer
        /// without a terminating zero, and then compares it as a string. The comparison fails in about half of all processes.
        pub(super) fn start_again_without_huge_pages() {
            if !env::var("GLIBC_TUNABLES").is_ok_and(|tunables| tunables.contains("malloc.hugetlb=1")) {
                return;
            }
            let starts = env::var(STARTS).ok().and_then(|starts| starts.parse().ok()).unwrap_or(0_usize);
            let is_possible = host::chosen("enabled").as_deref() == Some("madvise");
            if is_possible && starts < MAX_STARTS && !asks_for_huge_pages() {
                let mut again = Command::new("/proc/self/exe");
                again.args(env::args_os().skip(1)).env(STARTS, (starts + 1).to_string());
                // `exec` returns only if it fails. The setting is then not in force, and the arm fails for that reason.
                let _refused = again.exec();
            }
        }

        /// Size of the block that tests glibc's settings, in bytes. It is above the maximum of glibc's mmap threshold, so by default glibc
        /// maps the block separately.
        const PROBE_BYTES: usize = 256 << 20;

        pub(super) fn version() -> String {
            // SAFETY: the function takes no arguments and returns a pointer to a string that lives as long as the process
            // (gnu_get_libc_version(3)).
            let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
            version.to_string_lossy().into_owned()
        }

        /// Infers a setting from glibc's behaviour, because glibc does not report its tunables and silently rejects bad values.
        pub(super) fn setting(name: &str) -> Option<String> {
            match name {
                "retains 256 MiB" => Some(retention().into()),
                "asks for huge pages" => Some(if asks_for_huge_pages() { "yes" } else { "no" }.into()),
                _ => None,
            }
        }

        /// Returns whether glibc advises the kernel to use huge pages (`hg` in smaps) for any part of a large block. One part is enough,
        /// because a block on the heap may begin in older heap memory, for which glibc gave no advice. The block is never touched.
        fn asks_for_huge_pages() -> bool {
            // SAFETY: the block is freed exactly once, and is never accessed.
            let at = std::hint::black_box(unsafe { libc::malloc(PROBE_BYTES) });
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
            // SAFETY: `malloc` returned the block above, and this is the only call that frees it.
            unsafe { libc::free(at) };
            let mut is_of_block = false;
            smaps.lines().any(|line| {
                let range = line.split(' ').next().and_then(|range| range.split_once('-'));
                let number = |text| usize::from_str_radix(text, 16).ok();
                if let Some((Some(start), Some(end))) = range.map(|(start, end)| (number(start), number(end))) {
                    is_of_block = start < at.addr() + PROBE_BYTES && at.addr() < end;
                }
                is_of_block && line.starts_with("VmFlags:") && line.contains(" hg")
            })
        }

        /// Tests whether glibc retains a large block after it is freed. The block is never touched, so it costs no memory.
        fn retention() -> &'static str {
            // SAFETY: the block is freed exactly once, and mallinfo2(3) only reads.
            let (before, used, after) = unsafe {
                let before = libc::mallinfo2();
                let at = std::hint::black_box(libc::malloc(PROBE_BYTES));
                let used = libc::mallinfo2();
                libc::free(at);
                (before, used, libc::mallinfo2())
            };
            if used.hblks > before.hblks {
                "no: it is mapped separately"
            } else if after.keepcost < PROBE_BYTES {
                "no: it is returned to the system"
            } else {
                "yes"
            }
        }
    }
}

/// jemalloc, through `tikv-jemallocator`.
#[cfg(feature = "jemalloc")]
pub mod jemalloc {
    use super::Installed;

    /// The allocator's type.
    pub type Allocator = tikv_jemallocator::Jemalloc;

    /// The value to install as the global allocator.
    pub const ALLOCATOR: Allocator = tikv_jemallocator::Jemalloc;

    /// Describes the installed allocator.
    #[inline]
    pub fn installed() -> Installed {
        // Ask the linked library for its version, instead of reading the manifest.
        let version = tikv_jemalloc_ctl::version::read().unwrap_or("unknown").trim_end_matches('\0');
        Installed { setting, ..Installed::named("jemalloc", version, &["_RJEM_MALLOC_"]) }
    }

    /// Returns a setting of jemalloc, given its `mallctl` name (jemalloc(3)).
    #[inline]
    #[expect(unsafe_code, reason = "jemalloc is queried through its C interface")]
    fn setting(name: &str) -> Option<String> {
        use tikv_jemalloc_ctl::raw;
        let key = format!("{name}\0");
        let key = key.as_bytes();
        match name {
            "opt.retain" | "opt.background_thread" | "opt.hpa" => {
                // SAFETY: the key is NUL-terminated, and the value is a `bool` (jemalloc(3)).
                Some(unsafe { raw::read::<bool>(key) }.ok()?.to_string())
            }
            "opt.thp" | "opt.metadata_thp" => {
                // SAFETY: the key is NUL-terminated, and the value is a string that jemalloc never frees.
                let value = unsafe { raw::read_str(key) }.ok()?;
                Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned())
            }
            "opt.dirty_decay_ms" | "opt.muzzy_decay_ms" => {
                // SAFETY: the key is NUL-terminated, and the value is an `ssize_t`.
                Some(unsafe { raw::read::<isize>(key) }.ok()?.to_string())
            }
            "opt.narenas" => {
                // SAFETY: the key is NUL-terminated, and the value is an `unsigned`.
                Some(unsafe { raw::read::<u32>(key) }.ok()?.to_string())
            }
            _ => None,
        }
    }
}

/// mimalloc.
#[cfg(feature = "peers")]
pub mod mimalloc {
    use super::Installed;

    /// The allocator's type.
    pub type Allocator = ::mimalloc::MiMalloc;

    /// The value to install as the global allocator.
    pub const ALLOCATOR: Allocator = ::mimalloc::MiMalloc;

    /// Describes the installed allocator.
    #[inline]
    pub fn installed() -> Installed {
        Installed { setting, ..Installed::named("mimalloc", &version(), &["MIMALLOC_"]) }
    }

    /// Returns a setting of mimalloc, given the name of its option.
    #[inline]
    fn setting(name: &str) -> Option<String> {
        let option = match name {
            "allow_large_os_pages" => libmimalloc_sys::mi_option_large_os_pages,
            // The binding has no name for this option. The number is its position in `mi_option_t` (mimalloc.h, version 3).
            "purge_delay" => 15,
            _ => return None,
        };
        // SAFETY: the function only reads a number, and returns 0 for an unknown option.
        #[expect(unsafe_code, reason = "mimalloc is queried through its C interface")]
        let value = unsafe { libmimalloc_sys::mi_option_get(option) };
        Some(value.to_string())
    }

    #[inline]
    fn version() -> String {
        // SAFETY: the function takes no arguments and returns a number.
        #[expect(unsafe_code, reason = "the only way to ask the linked library for its version")]
        let version = unsafe { libmimalloc_sys::mi_version() };
        // mimalloc.h: the major version, then two digits each for minor and patch.
        format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }
}

/// snmalloc, through `snmalloc-rs`, whose version is pinned in the manifest.
#[cfg(feature = "peers")]
pub mod snmalloc {
    use super::Installed;

    /// The allocator's type.
    pub type Allocator = snmalloc_rs::SnMalloc;

    /// The value to install as the global allocator.
    pub const ALLOCATOR: Allocator = snmalloc_rs::SnMalloc;

    /// Describes the installed allocator.
    #[inline]
    pub fn installed() -> Installed {
        Installed::named("snmalloc", "0.7.6", &[])
    }
}

/// Google's TCMalloc, through `tcmalloc-better`, whose version is pinned in the manifest.
#[cfg(feature = "peers")]
#[expect(unsafe_code, reason = "TCMalloc has a C interface for queries and settings")]
pub mod tcmalloc {
    use super::super::{CACHE_BYTES, SAMPLING_BYTES};
    use super::Installed;
    use std::env;

    /// The allocator's type.
    pub type Allocator = tcmalloc_better::TCMalloc;

    /// The value to install as the global allocator.
    pub const ALLOCATOR: Allocator = tcmalloc_better::TCMalloc;

    /// Applies the settings, then describes the installed allocator.
    #[inline]
    pub fn installed() -> Installed {
        let number = |name| env::var(name).ok().and_then(|value| value.parse().ok());
        // SAFETY: both functions take a number and may be called at any time (malloc_extension.h).
        unsafe {
            if let Some(bytes) = number(CACHE_BYTES) {
                MallocExtension_Internal_SetMaxPerCpuCacheSize(bytes);
            }
            if let Some(bytes) = number(SAMPLING_BYTES) {
                MallocExtension_Internal_SetProfileSamplingInterval(bytes.into());
            }
        }
        Installed {
            setting,
            ..Installed::named("tcmalloc", "tcmalloc-better 0.1.19", &["TCMALLOC_", "GLIBC_TUNABLES"])
        }
    }

    /// Returns a setting of TCMalloc, given its name in `MallocExtension`.
    #[inline]
    fn setting(name: &str) -> Option<String> {
        // SAFETY: these functions only read (malloc_extension.h).
        unsafe {
            match name {
                "PerCpuCachesActive" => Some(MallocExtension_Internal_GetPerCpuCachesActive().to_string()),
                "MaxPerCpuCacheSize" => Some(MallocExtension_Internal_GetMaxPerCpuCacheSize().to_string()),
                "ProfileSamplingInterval" => Some(MallocExtension_Internal_GetProfileSamplingInterval().to_string()),
                _ => None,
            }
        }
    }

    // The functions that the C++ class `MallocExtension` calls.
    unsafe extern "C" {
        fn MallocExtension_Internal_GetPerCpuCachesActive() -> bool;
        fn MallocExtension_Internal_GetMaxPerCpuCacheSize() -> i32;
        fn MallocExtension_Internal_SetMaxPerCpuCacheSize(value: i32);
        fn MallocExtension_Internal_GetProfileSamplingInterval() -> i64;
        fn MallocExtension_Internal_SetProfileSamplingInterval(value: i64);
    }
}

/// Bump and reset: the crate zk-alloc 0.0.9, which resets its memory whenever one of its own phases begins.
pub mod bump_reset {
    use super::Installed;

    /// The allocator's type.
    pub type Allocator = zk_alloc_0_0_9::ZkAllocator;

    /// The value to install as the global allocator.
    pub const ALLOCATOR: Allocator = zk_alloc_0_0_9::ZkAllocator;

    /// Describes the installed allocator.
    #[inline]
    pub fn installed() -> Installed {
        let phase: fn(&mut dyn FnMut()) = |prove| zk_alloc_0_0_9::phase(prove);
        let prefixes = &["GLIBC_TUNABLES", "MALLOC_", "ZK_ALLOC_"];
        Installed { scope: phase, phase, ..Installed::named("zk-alloc", "0.0.9", prefixes) }
    }
}

/// Our arena, backed by the C library's allocator.
pub mod zk_alloc {
    use super::Installed;
    use crate::machine::host;
    use crate::sample::Counters;

    /// The allocator's type.
    pub type Allocator = ::zk_alloc::ZkAllocator;

    /// The value to install as the global allocator.
    pub const ALLOCATOR: Allocator = ::zk_alloc::ZkAllocator;

    /// Describes the installed allocator.
    #[inline]
    pub fn installed() -> Installed {
        // The arm reports this library's version: the allocator is in the same workspace, with the same version.
        let prefixes = &["GLIBC_TUNABLES", "MALLOC_", "ZK_ALLOC_"];
        Installed {
            counters,
            gauges,
            phase: |play| ::zk_alloc::phase(play),
            release: Some(|| _ = ::zk_alloc::release()),
            // Returns the effective value of a constant, in builds that can override constants.
            #[cfg(feature = "tune")]
            setting: |name| ::zk_alloc::tuning::in_force(name).map(|value| value.to_string()),
            ..Installed::named("zk-alloc", env!("CARGO_PKG_VERSION"), prefixes)
        }
    }

    fn named(values: impl IntoIterator<Item = (&'static str, u64)>) -> Counters {
        values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn counters() -> Counters {
        let stats = ::zk_alloc::stats();
        named([
            ("arena_allocations", stats.arena_allocations),
            ("arena_bytes", stats.arena_bytes),
            ("fresh_bytes", stats.fresh_bytes),
            ("overflow_allocations", stats.overflow_allocations),
            ("overflow_bytes", stats.overflow_bytes),
            ("phases", stats.phases),
            ("refusals", stats.refusals),
            ("system_calls", stats.system_calls),
            // A sample records how much the live bytes grew during the proof. Like `PhaseReport::escaped_bytes` of zk_alloc, this counts
            // all memory that outlives the phase, including the finished proof.
            ("escaped_bytes", stats.live_bytes as u64),
        ])
    }

    fn gauges() -> Counters {
        let large_folio_bytes = host::large_folio_bytes().unwrap_or(0);
        named([
            ("large_folio_bytes", large_folio_bytes),
            ("peak_live_bytes", ::zk_alloc::stats().peak_live_bytes as u64),
            #[cfg(feature = "profile")]
            ("is_sampled", u64::from(::zk_alloc::profile::is_on())),
        ])
    }
}

/// Our arena in resident mode: it is always active, without phases.
pub mod zk_alloc_resident {
    pub use super::zk_alloc::{Allocator, installed};

    /// The value to install as the global allocator.
    pub const ALLOCATOR: Allocator = ::zk_alloc::ZkAllocator::resident();
}
