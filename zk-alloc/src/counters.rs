//! Counters of requests, memory and system calls. [`stats`](crate::stats()) gathers them. The bytes in use and their peak also bound resident memory.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::os::{self, Errno};

static PHASES: AtomicU64 = AtomicU64::new(0);
static OVERFLOW_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static OVERFLOW_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes of blocks and page runs in use, and of those that threads keep for their next request.
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The most since the window began: since the first of the phases that are open now began.
static PEAK_LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The most since somebody looked last what may go.
static SEEN_PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The most in all windows before.
static FORMER_PEAK_LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static WARNED_OF_REFUSAL: AtomicBool = AtomicBool::new(false);

/// Requests meant for the arena that the backing allocator served, since the start or the last
/// [`reset_overflow_stats`]: how many, and their bytes. Not 0 where memory ran short, or `ZK_ALLOC_MAX_BYTES` was reached.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// zk_alloc::reset_overflow_stats();
/// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// let (allocations, bytes) = zk_alloc::overflow_stats();
/// assert!(bytes >= allocations);
/// ```
#[must_use]
pub fn overflow_stats() -> (usize, usize) {
    (OVERFLOW_ALLOCATIONS.load(Ordering::Relaxed), OVERFLOW_BYTES.load(Ordering::Relaxed))
}

/// Sets what [`overflow_stats`] returns to zero: see there for an example.
pub fn reset_overflow_stats() {
    OVERFLOW_ALLOCATIONS.store(0, Ordering::Relaxed);
    OVERFLOW_BYTES.store(0, Ordering::Relaxed);
}

pub(crate) fn phases() -> u64 {
    PHASES.load(Ordering::Relaxed)
}

/// Bytes of blocks and page runs in use now, with what threads keep.
pub(crate) fn used_bytes() -> usize {
    USED_BYTES.load(Ordering::Relaxed)
}

/// The most of them when blocks were fetched or a run was claimed. Taking again what a thread kept does not look: what other
/// threads take again until the next claim is missing.
pub(crate) fn peak_live_bytes() -> usize {
    window_peak_bytes().max(FORMER_PEAK_LIVE_BYTES.load(Ordering::Relaxed))
}

/// The most bytes in use at once since this was asked last, as [`peak_live_bytes`] has it; 0 where none became used.
pub(crate) fn take_seen_peak_bytes() -> usize {
    SEEN_PEAK_BYTES.swap(0, Ordering::Relaxed)
}

pub(crate) fn phase_begun() {
    PHASES.fetch_add(1, Ordering::Relaxed);
}

/// Begins a new window for [`window_peak_bytes`], with so many bytes alive.
pub(crate) fn window_begun(live_bytes: usize) {
    let former = PEAK_LIVE_BYTES.swap(live_bytes, Ordering::Relaxed);
    FORMER_PEAK_LIVE_BYTES.fetch_max(former, Ordering::Relaxed);
}

/// The most bytes in use at once since [`window_begun`], as [`peak_live_bytes`] has it.
pub(crate) fn window_peak_bytes() -> usize {
    PEAK_LIVE_BYTES.load(Ordering::Relaxed)
}

#[cold]
pub(crate) fn overflowed(bytes: usize) {
    OVERFLOW_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    OVERFLOW_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// What one zone counts.
#[derive(Debug)]
pub(crate) struct ZoneCounters {
    allocations: AtomicU64,
    bytes: AtomicU64,
    fresh_bytes: AtomicU64,
    system_calls: AtomicU64,
    refusals: AtomicU64,
}

impl ZoneCounters {
    pub(crate) const fn new() -> Self {
        Self {
            allocations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            fresh_bytes: AtomicU64::new(0),
            system_calls: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    /// A run was handed out for a request of `bytes`.
    pub(crate) fn requested(&self, bytes: usize) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// `more_bytes` more are in use, besides those that threads keep.
    pub(crate) fn grown(&self, more_bytes: usize, fresh_bytes: usize, cached_bytes: impl FnOnce() -> usize) {
        if fresh_bytes > 0 {
            self.fresh_bytes.fetch_add(fresh_bytes as u64, Ordering::Relaxed);
        }
        let used = USED_BYTES.fetch_add(more_bytes, Ordering::Relaxed) + more_bytes;
        let is_peak = used > PEAK_LIVE_BYTES.load(Ordering::Relaxed);
        if is_peak || used > SEEN_PEAK_BYTES.load(Ordering::Relaxed) {
            let live = used.saturating_sub(cached_bytes());
            SEEN_PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
            PEAK_LIVE_BYTES.fetch_max(live, Ordering::Relaxed);
        }
    }

    /// So many bytes came back.
    pub(crate) fn released(&self, bytes: usize) {
        USED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Memory was purged that its new owner is going to touch.
    pub(crate) fn will_fault(&self, bytes: usize) {
        self.fresh_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn fresh_bytes(&self) -> u64 {
        self.fresh_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn system_calls(&self) -> u64 {
        self.system_calls.load(Ordering::Relaxed)
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    pub(crate) fn system_call(&self) {
        self.system_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel refused a call. The process goes on without what was asked for; people are told once.
    #[cold]
    pub(crate) fn refused(&self, Errno(code): Errno, what: &str, bytes: usize) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        if !WARNED_OF_REFUSAL.swap(true, Ordering::Relaxed) {
            os::warn(format_args!(
                "the system refused to {what} ({bytes} bytes, errno {code}); going on without, \
                 further refusals are only counted in stats()"
            ));
        }
    }
}
