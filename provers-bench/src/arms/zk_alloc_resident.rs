//! Our arena in resident mode: it is always active, without phases.

use super::arm::Arm;
use super::installed::Installed;
use super::zk_alloc;

/// The allocator's type.
pub type Allocator = ::zk_alloc::ZkAllocator;

/// The value to install as the global allocator.
pub const ALLOCATOR: Allocator = ::zk_alloc::ZkAllocator::resident();

pub(super) const ARMS: &[Arm] =
    &[Arm { name: "zk-alloc-resident", binary: "with-zk-alloc-resident", ..zk_alloc::PLAIN }];

/// Describes the installed allocator.
#[inline]
pub fn installed() -> Installed {
    zk_alloc::installed()
}
