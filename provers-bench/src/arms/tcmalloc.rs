//! Google's TCMalloc, through `tcmalloc-better`, whose version is pinned in the manifest.

#![cfg_attr(feature = "peers", expect(unsafe_code, reason = "TCMalloc has a C interface for queries and settings"))]

use super::arm::{Arm, Colour};
#[cfg(feature = "peers")]
use super::installed::Installed;
#[cfg(feature = "peers")]
use std::env;

/// The allocator's type.
#[cfg(feature = "peers")]
pub type Allocator = tcmalloc_better::TCMalloc;

/// The value to install as the global allocator.
#[cfg(feature = "peers")]
pub const ALLOCATOR: Allocator = tcmalloc_better::TCMalloc;

const PLAIN: Arm =
    Arm { colour: Colour { light: "#7a5cc0", dark: "#b39df0" }, ..Arm::new("tcmalloc", "with-tcmalloc") };

pub(super) const ARMS: &[Arm] = &[
    PLAIN,
    Arm {
        name: "tcmalloc-tuned",
        // glibc registers the kernel's restartable sequences for itself. TCMalloc needs them for its per-CPU caches, so
        // its documentation says to set this.
        environment: &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0"), (CACHE_BYTES, "16777216"), (SAMPLING_BYTES, "0")],
        confirms: &[
            ("PerCpuCachesActive", "true"),
            ("MaxPerCpuCacheSize", "16777216"),
            ("ProfileSamplingInterval", "0"),
        ],
        ..PLAIN
    },
];

/// TCMalloc takes its settings from the program, through `MallocExtension`. The arm's binary reads these variables and
/// applies them: the maximum size of a per-CPU cache, and the bytes between two profiled allocations. 0 disables
/// profiling.
const CACHE_BYTES: &str = "TCMALLOC_MAX_PER_CPU_CACHE_SIZE";
const SAMPLING_BYTES: &str = "TCMALLOC_PROFILE_SAMPLING_INTERVAL";

/// Applies the settings, then describes the installed allocator.
#[cfg(feature = "peers")]
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
    Installed { setting, ..Installed::named("tcmalloc", "tcmalloc-better 0.1.19", &["TCMALLOC_", "GLIBC_TUNABLES"]) }
}

/// A setting of TCMalloc, by its name in `MallocExtension`.
#[cfg(feature = "peers")]
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
#[cfg(feature = "peers")]
unsafe extern "C" {
    fn MallocExtension_Internal_GetPerCpuCachesActive() -> bool;
    fn MallocExtension_Internal_GetMaxPerCpuCacheSize() -> i32;
    fn MallocExtension_Internal_SetMaxPerCpuCacheSize(value: i32);
    fn MallocExtension_Internal_GetProfileSamplingInterval() -> i64;
    fn MallocExtension_Internal_SetProfileSamplingInterval(value: i64);
}
