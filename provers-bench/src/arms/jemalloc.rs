//! jemalloc, through `tikv-jemallocator`.

use super::arm::{Arm, Colour};
#[cfg(feature = "jemalloc")]
use super::installed::Installed;

/// The allocator's type.
#[cfg(feature = "jemalloc")]
pub type Allocator = tikv_jemallocator::Jemalloc;

/// The value to install as the global allocator.
#[cfg(feature = "jemalloc")]
pub const ALLOCATOR: Allocator = tikv_jemallocator::Jemalloc;

const PLAIN: Arm =
    Arm { colour: Colour { light: "#d98200", dark: "#f0a636" }, ..Arm::new("jemalloc", "with-jemalloc") };

pub(super) const ARMS: &[Arm] = &[
    PLAIN,
    Arm {
        name: "jemalloc-tuned",
        environment: &[("_RJEM_MALLOC_CONF", RETAINS)],
        confirms: &[
            ("opt.thp", "always"),
            ("opt.metadata_thp", "auto"),
            ("opt.retain", "true"),
            ("opt.dirty_decay_ms", "-1"),
            ("opt.muzzy_decay_ms", "-1"),
        ],
        ..PLAIN
    },
    // Settings of other projects; each arm has the name of its project. The sources are in docs/benchmarking.md.
    Arm {
        name: "jemalloc-plonky3",
        environment: &[("_RJEM_MALLOC_CONF", "thp:always,metadata_thp:auto,retain:true")],
        confirms: &[
            ("opt.thp", "always"),
            ("opt.metadata_thp", "auto"),
            ("opt.retain", "true"),
            ("opt.dirty_decay_ms", "10000"),
        ],
        ..PLAIN
    },
    Arm {
        name: "jemalloc-triton",
        environment: &[("_RJEM_MALLOC_CONF", "thp:always,metadata_thp:always,background_thread:true,narenas:32")],
        confirms: &[
            ("opt.thp", "always"),
            ("opt.metadata_thp", "always"),
            ("opt.background_thread", "true"),
            ("opt.narenas", "32"),
        ],
        ..PLAIN
    },
    Arm {
        name: "jemalloc-openvm",
        environment: &[(
            "_RJEM_MALLOC_CONF",
            "retain:true,background_thread:true,metadata_thp:always,thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1",
        )],
        confirms: &[
            ("opt.thp", "always"),
            ("opt.metadata_thp", "always"),
            ("opt.background_thread", "true"),
            ("opt.dirty_decay_ms", "-1"),
            ("opt.muzzy_decay_ms", "-1"),
        ],
        ..PLAIN
    },
    // The lowest memory use that jemalloc offers: it purges freed pages at once.
    Arm {
        name: "jemalloc-decay-0",
        environment: &[("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")],
        confirms: &[("opt.dirty_decay_ms", "0"), ("opt.muzzy_decay_ms", "0")],
        ..PLAIN
    },
];

/// Makes jemalloc purge nothing and ask for huge pages.
pub(crate) const RETAINS: &str = "thp:always,metadata_thp:auto,retain:true,dirty_decay_ms:-1,muzzy_decay_ms:-1";

/// Describes the installed allocator.
#[cfg(feature = "jemalloc")]
#[inline]
pub fn installed() -> Installed {
    // Ask the linked library, not its manifest.
    let version = tikv_jemalloc_ctl::version::read().unwrap_or("unknown");
    Installed { setting, ..Installed::named("jemalloc", version, &["_RJEM_MALLOC_"]) }
}

/// A setting of jemalloc, by its name in `mallctl` (jemalloc(3)).
#[cfg(feature = "jemalloc")]
#[inline]
#[expect(unsafe_code, reason = "jemalloc is queried through its C interface")]
fn setting(name: &str) -> Option<String> {
    use tikv_jemalloc_ctl::raw;
    let key = format!("{name}\0");
    let key = key.as_bytes();
    match name {
        "opt.retain" | "opt.background_thread" => {
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
        "opt.narenas" => {
            // SAFETY: as above, and the value is an `unsigned`.
            Some(unsafe { raw::read::<u32>(key) }.ok()?.to_string())
        }
        _ => None,
    }
}
