//! snmalloc, through `snmalloc-rs`, whose version is pinned in the manifest.

use super::arm::{Arm, Colour};
use super::installed::Installed;

/// Its type.
pub type Allocator = snmalloc_rs::SnMalloc;

/// What to install.
pub const ALLOCATOR: Allocator = snmalloc_rs::SnMalloc;

pub(super) const ARMS: &[Arm] =
    &[Arm { colour: Colour { light: "#b8578f", dark: "#dd8fbd" }, ..Arm::new("snmalloc", "with-snmalloc") }];

/// What the arm says of it.
#[inline]
pub fn installed() -> Installed {
    Installed::named("snmalloc", "0.7.6", &[])
}
