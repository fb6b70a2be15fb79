//! The allocators, as values.
#![allow(unsafe_code, reason = "implements GlobalAlloc, and badly")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use zk_alloc::ZkAllocator;

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

/// Less than a hundredth of the live size of the pattern `lifetimes`.
const RING_BYTES: usize = 256 << 10;

#[repr(align(4096))]
struct Memory(UnsafeCell<[u8; RING_BYTES]>);

// SAFETY: this code only takes addresses of it. The patterns write there, from one thread, and check whether they read
// their own words.
unsafe impl Sync for Memory {}

/// An allocator that hands out memory that is in use: one block after another, in a ring. The quick run of `--test` selects it by name and
/// demands that the run fails, because a check that never fails checks nothing.
struct Broken {
    memory: Memory,
    next: AtomicUsize,
}

impl Broken {
    const fn new() -> Self {
        Self { memory: Memory(UnsafeCell::new([0; RING_BYTES])), next: AtomicUsize::new(0) }
    }

    fn serves(layout: Layout) -> bool {
        layout.size() <= RING_BYTES / 4 && layout.align() <= 4096
    }
}

// SAFETY: this breaks the contract of `GlobalAlloc` on purpose: blocks overlap. Each block is still memory of the
// process, aligned and long enough. So the only effect is that one owner reads words that another wrote.
unsafe impl GlobalAlloc for Broken {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::serves(layout) {
            // SAFETY: upheld by the caller.
            return unsafe { System.alloc(layout) };
        }
        let size = layout.size().next_multiple_of(layout.align());
        let begin = self.next.fetch_add(size, Ordering::Relaxed).next_multiple_of(layout.align()) % (RING_BYTES / 2);
        // A quarter of the ring that begins in its first half ends within the ring.
        self.memory.0.get().cast::<u8>().wrapping_add(begin)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !Self::serves(layout) {
            // SAFETY: upheld by the caller; the size says that it came from `System`.
            unsafe { System.dealloc(at, layout) };
        }
    }
}
