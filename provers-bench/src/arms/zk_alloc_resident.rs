//! Our arena in resident mode: it is always active, without phases.

use super::arm::Arm;
use super::installed::Installed;
use super::zk_alloc;

/// The allocator's type.
pub type Allocator = ::zk_alloc::ZkAllocator;

/// The value to install as the global allocator.
pub const ALLOCATOR: Allocator = ::zk_alloc::ZkAllocator::resident();

const PLAIN: Arm = Arm { name: "zk-alloc-resident", binary: "with-zk-alloc-resident", ..zk_alloc::PLAIN };

pub(super) const ARMS: &[Arm] = &[
    PLAIN,
    // Its background thread purges what the last second did not need.
    Arm {
        name: "zk-alloc-idle-1s",
        environment: &[("ZK_ALLOC_RETAIN_FOR", "1"), ("ZK_ALLOC_BACKGROUND", "1")],
        ..PLAIN
    },
];

/// Describes the installed allocator.
#[inline]
pub fn installed() -> Installed {
    zk_alloc::installed()
}
