//! Our arena, which takes part always, without phases.

use super::arm::Arm;
use super::installed::Installed;
use super::zk_alloc;

/// Its type.
pub type Allocator = ::zk_alloc::ZkAllocator;

/// What to install.
pub const ALLOCATOR: Allocator = ::zk_alloc::ZkAllocator::resident();

pub(super) const ARMS: &[Arm] =
    &[Arm { name: "zk-alloc-resident", binary: "with-zk-alloc-resident", ..zk_alloc::PLAIN }];

/// What the arm says of it.
#[inline]
pub fn installed() -> Installed {
    zk_alloc::installed()
}
