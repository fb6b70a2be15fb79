//! snmalloc, through `snmalloc-rs`, whose version is pinned in the manifest.

use super::arm::{Arm, Colour};
#[cfg(feature = "peers")]
use super::installed::Installed;

/// Its type.
#[cfg(feature = "peers")]
pub type Allocator = snmalloc_rs::SnMalloc;

/// What to install.
#[cfg(feature = "peers")]
pub const ALLOCATOR: Allocator = snmalloc_rs::SnMalloc;

pub(super) const ARMS: &[Arm] =
    &[Arm { colour: Colour { light: "#b8578f", dark: "#dd8fbd" }, ..Arm::new("snmalloc", "with-snmalloc") }];

/// What the arm says of it.
#[cfg(feature = "peers")]
#[inline]
pub fn installed() -> Installed {
    Installed::named("snmalloc", "0.7.6", &[])
}
