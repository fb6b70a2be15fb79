//! mimalloc.

use super::arm::{Arm, Colour};
#[cfg(feature = "peers")]
use super::installed::Installed;

/// The allocator's type.
#[cfg(feature = "peers")]
pub type Allocator = ::mimalloc::MiMalloc;

/// The value to install as the global allocator.
#[cfg(feature = "peers")]
pub const ALLOCATOR: Allocator = ::mimalloc::MiMalloc;

const PLAIN: Arm =
    Arm { colour: Colour { light: "#009e73", dark: "#2fc497" }, ..Arm::new("mimalloc", "with-mimalloc") };

pub(super) const ARMS: &[Arm] = &[
    PLAIN,
    Arm {
        name: "mimalloc-tuned",
        environment: &[("MIMALLOC_PURGE_DELAY", "-1"), ("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")],
        confirms: &[("purge_delay", "-1"), ("allow_large_os_pages", "1")],
        ..PLAIN
    },
];

/// Describes the installed allocator.
#[cfg(feature = "peers")]
#[inline]
pub fn installed() -> Installed {
    Installed { setting, ..Installed::named("mimalloc", &version(), &["MIMALLOC_"]) }
}

/// A setting of mimalloc, by the name of its option.
#[cfg(feature = "peers")]
#[inline]
fn setting(name: &str) -> Option<String> {
    let option = match name {
        "allow_large_os_pages" => libmimalloc_sys::mi_option_large_os_pages,
        // The binding has no name for this option. The number is its position in `mi_option_t` (mimalloc.h, version 3).
        "purge_delay" => 15,
        _ => return None,
    };
    // SAFETY: only reads a number; an unknown option reads as 0.
    #[expect(unsafe_code, reason = "mimalloc is queried through its C interface")]
    let value = unsafe { libmimalloc_sys::mi_option_get(option) };
    Some(value.to_string())
}

#[cfg(feature = "peers")]
#[inline]
fn version() -> String {
    // SAFETY: takes no arguments and returns a number.
    #[expect(unsafe_code, reason = "the only way to ask the linked library for its version")]
    let version = unsafe { libmimalloc_sys::mi_version() };
    // mimalloc.h: the major version, then two digits each for minor and patch.
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}
