//! snmalloc, through `snmalloc-rs`, whose version is pinned in the manifest.

use super::arm::{Arm, Colour};
#[cfg(feature = "peers")]
use super::installed::Installed;

/// The allocator's type.
#[cfg(feature = "peers")]
pub type Allocator = snmalloc_rs::SnMalloc;

/// The value to install as the global allocator.
#[cfg(feature = "peers")]
pub const ALLOCATOR: Allocator = snmalloc_rs::SnMalloc;

pub(super) const ARMS: &[Arm] =
    &[Arm { colour: Colour { light: "#b8578f", dark: "#dd8fbd" }, ..Arm::new("snmalloc", "with-snmalloc") }];

/// Describes the installed allocator.
#[cfg(feature = "peers")]
#[inline]
pub fn installed() -> Installed {
    Installed::named("snmalloc", "0.7.6", &[])
}
