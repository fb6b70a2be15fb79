//! Bump and reset: the crate zk-alloc 0.0.9, which resets its memory whenever one of its own phases begins.

use super::arm::{Arm, Colour};
use super::installed::Installed;

/// The allocator's type.
pub type Allocator = zk_alloc_0_0_9::ZkAllocator;

/// The value to install as the global allocator.
pub const ALLOCATOR: Allocator = zk_alloc_0_0_9::ZkAllocator;

pub(super) const ARMS: &[Arm] = &[Arm {
    colour: Colour { light: "#8a6d1d", dark: "#cdae58" },
    known_to_fail: Some("it resets memory that the prover still uses, so that a second proof may not verify"),
    ..Arm::new("bump-reset", "with-bump-reset")
}];

/// Describes the installed allocator.
#[inline]
pub fn installed() -> Installed {
    let phase: fn(&mut dyn FnMut()) = |prove| zk_alloc_0_0_9::phase(prove);
    let prefixes = &["GLIBC_TUNABLES", "MALLOC_", "ZK_ALLOC_"];
    Installed { scope: phase, phase, ..Installed::named("zk-alloc", "0.0.9", prefixes) }
}
