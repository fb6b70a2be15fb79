//! snmalloc, through `snmalloc-rs`, whose version is pinned in the manifest.

use super::arm::{Arm, Colour};

#[cfg(feature = "peers")]
pub use linked::{ALLOCATOR, Allocator, installed};

pub(super) const ARMS: &[Arm] =
    &[Arm { colour: Colour { light: "#b8578f", dark: "#dd8fbd" }, ..Arm::new("snmalloc", "with-snmalloc") }];

/// What an arm's binary links. A bench that only starts other programs does without, and is built in a fraction of the time.
#[cfg(feature = "peers")]
mod linked {
    use super::super::installed::Installed;

    /// Its type.
    pub type Allocator = snmalloc_rs::SnMalloc;

    /// What to install.
    pub const ALLOCATOR: Allocator = snmalloc_rs::SnMalloc;

    /// What the arm says of it.
    #[inline]
    pub fn installed() -> Installed {
        Installed::named("snmalloc", "0.7.6", &[])
    }
}
