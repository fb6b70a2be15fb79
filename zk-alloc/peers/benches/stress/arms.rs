//! The allocators, as values.
#![allow(unsafe_code, reason = "implements GlobalAlloc, and badly")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;

use crate::support::blocks::{Allocator, RESIDENT};

/// One allocator under its name in the report.
pub(crate) struct Arm {
    pub(crate) name: &'static str,
    pub(crate) allocator: Allocator,
}

/// Every time is divided by this arm's. It takes part in every run.
pub(crate) const BASELINE: &str = "glibc";

/// The arm that is compared with its peers.
pub(crate) const OURS: &str = "zk-alloc";

pub(crate) static ARMS: [Arm; 5] = [
    Arm { name: BASELINE, allocator: &System },
    Arm { name: "jemalloc", allocator: &tikv_jemallocator::Jemalloc },
    Arm { name: "mimalloc", allocator: &mimalloc::MiMalloc },
    Arm { name: "snmalloc", allocator: &snmalloc_rs::SnMalloc },
    Arm { name: OURS, allocator: &RESIDENT },
];

/// In no list: only the quick run of `--test` uses it, and demands that it fails, because a check that never fails checks
/// nothing.
pub(crate) static BROKEN: Arm = Arm { name: "broken", allocator: &Broken };

/// An allocator that hands out the same memory again and again, while it is in use.
struct Broken;

/// As long as the longest block of the pattern `lifetimes`.
static MEMORY: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

// SAFETY: this breaks the contract of `GlobalAlloc` on purpose: blocks overlap. Each block is still memory of the
// process, aligned and long enough. So the only effect is that one owner reads words that another wrote.
unsafe impl GlobalAlloc for Broken {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let fits = layout.size() <= size_of_val(&MEMORY) && layout.align() <= align_of::<AtomicU64>();
        if fits { MEMORY.as_ptr().cast_mut().cast() } else { null_mut() }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
