//! Bump and reset: the crate zk-alloc 0.0.9, which resets its memory whenever a phase of its own begins.

use super::arm::{Arm, Colour};
use super::installed::Installed;

/// Its type.
pub type Allocator = zk_alloc_0_0_9::ZkAllocator;

/// What to install.
pub const ALLOCATOR: Allocator = zk_alloc_0_0_9::ZkAllocator;

pub(super) const ARMS: &[Arm] = &[Arm {
    colour: Colour { light: "#8a6d1d", dark: "#cdae58" },
    known_to_fail: Some("it resets memory that the prover still uses, so that a second proof may not verify"),
    ..Arm::new("bump-reset", "with-bump-reset")
}];

/// What the arm says of it.
#[inline]
pub fn installed() -> Installed {
    let phase: fn(&mut dyn FnMut()) = |prove| zk_alloc_0_0_9::phase(prove);
    let prefixes = &["GLIBC_TUNABLES", "MALLOC_", "ZK_ALLOC_"];
    Installed { scope: phase, phase, ..Installed::named("zk-alloc", "0.0.9", prefixes) }
}
