//! An allocator that hands memory out again while it is in use. The quick run of `--test` asks for it by name and demands
//! that the run fails: a check that never fails checks nothing.
#![allow(unsafe_code, reason = "implements GlobalAlloc, and badly")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Less than a hundredth of what the pattern `lifetimes` keeps alive.
const RING_BYTES: usize = 256 << 10;

#[repr(align(4096))]
struct Memory(UnsafeCell<[u8; RING_BYTES]>);

// SAFETY: only addresses of it are taken here. The patterns write there, from one thread, and what they read is theirs or not:
// that is what they are to find out.
unsafe impl Sync for Memory {}

/// Blocks one after another, around and around.
pub(crate) struct Broken {
    memory: Memory,
    next: AtomicUsize,
}

impl Broken {
    pub(crate) const fn new() -> Self {
        Self { memory: Memory(UnsafeCell::new([0; RING_BYTES])), next: AtomicUsize::new(0) }
    }

    fn serves(layout: Layout) -> bool {
        layout.size() <= RING_BYTES / 4 && layout.align() <= 4096
    }
}

// SAFETY: this breaks the contract of `GlobalAlloc` on purpose: blocks overlap. Each of them is memory of the process all the
// same, at least as long as asked and aligned, so that words written by one owner are words read by another, and no more.
unsafe impl GlobalAlloc for Broken {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::serves(layout) {
            // SAFETY: the caller's.
            return unsafe { System.alloc(layout) };
        }
        let size = layout.size().next_multiple_of(layout.align());
        let begin = self.next.fetch_add(size, Ordering::Relaxed).next_multiple_of(layout.align()) % (RING_BYTES / 2);
        // A quarter of the ring, begun in its first half, ends within it.
        self.memory.0.get().cast::<u8>().wrapping_add(begin)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !Self::serves(layout) {
            // SAFETY: the caller's; the size says that it came from `System`.
            unsafe { System.dealloc(at, layout) };
        }
    }
}
