//! The allocators, as values.

use std::alloc::{GlobalAlloc, System};

use zk_alloc::ZkAllocator;

use crate::broken::Broken;

/// One allocator under its name in the report.
pub(crate) struct Arm {
    pub(crate) name: &'static str,
    pub(crate) allocator: &'static (dyn GlobalAlloc + Sync),
}

/// Every time is divided by this arm's. It takes part in every run.
pub(crate) const BASELINE: &str = "glibc";

/// The arm that is compared with its peers.
pub(crate) const OURS: &str = "zk-alloc";

static ZK_ALLOC: ZkAllocator = ZkAllocator::resident();

pub(crate) static ARMS: [Arm; 5] = [
    Arm { name: BASELINE, allocator: &System },
    Arm { name: "jemalloc", allocator: &tikv_jemallocator::Jemalloc },
    Arm { name: "mimalloc", allocator: &mimalloc::MiMalloc },
    Arm { name: "snmalloc", allocator: &snmalloc_rs::SnMalloc },
    Arm { name: OURS, allocator: &ZK_ALLOC },
];

static BROKEN_ALLOCATOR: Broken = Broken::new();

/// In no list: only the quick run uses it.
pub(crate) static BROKEN: Arm = Arm { name: "broken", allocator: &BROKEN_ALLOCATOR };
