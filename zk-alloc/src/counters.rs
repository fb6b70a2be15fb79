//! Counters of requests, memory and system calls. [`stats`](crate::stats()) gathers them. The bytes in use and their peak also
//! bound resident memory.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[cfg(feature = "profile")]
use crate::gate::{self, Observer};
use crate::os::{self, Errno};
#[cfg(feature = "profile")]
use crate::profile;
use crate::stats::Stats;

static PHASES: AtomicU64 = AtomicU64::new(0);
static OVERFLOW_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static OVERFLOW_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes of blocks and page runs in use, including those in thread caches.
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The peak of the current window, which began with the first of the open phases.
static PEAK_LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The peak since the last look at memory that may be purged.
static SEEN_PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The peak since the program last took it.
static TAKEN_PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The peak of all earlier windows.
static FORMER_PEAK_LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The number of windows that began.
static WINDOWS: AtomicUsize = AtomicUsize::new(0);
static WARNED_OF_REFUSAL: AtomicBool = AtomicBool::new(false);

/// Requests meant for the arena that the backing allocator served since the start or the last [`reset_overflow_stats`]: their
/// number and their bytes. They are not 0 if memory ran short, or if `ZK_ALLOC_MAX_BYTES` was reached.
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

/// Sets the counters of [`overflow_stats`] to zero. An example is there.
pub fn reset_overflow_stats() {
    OVERFLOW_ALLOCATIONS.store(0, Ordering::Relaxed);
    OVERFLOW_BYTES.store(0, Ordering::Relaxed);
}

pub(crate) fn phases() -> u64 {
    PHASES.load(Ordering::Relaxed)
}

/// Bytes of blocks and page runs in use now, including those in thread caches.
pub(crate) fn used_bytes() -> usize {
    USED_BYTES.load(Ordering::Relaxed)
}

/// The peak of the bytes in use. It is noted when blocks are fetched or a run is claimed. A thread that takes memory from its
/// cache does not note it, so memory that was taken since the last claim is missing. With many threads, not every claim notes it: up to
/// 256 bytes for each living thread may be missing.
pub(crate) fn peak_live_bytes() -> usize {
    window_peak_bytes().max(FORMER_PEAK_LIVE_BYTES.load(Ordering::Relaxed))
}

/// The peak of all windows before the current one; `None` until the second begins.
pub(crate) fn former_peak_live_bytes() -> Option<usize> {
    (WINDOWS.load(Ordering::Acquire) >= 2).then(|| FORMER_PEAK_LIVE_BYTES.load(Ordering::Relaxed))
}

/// The peak since the last call, as for [`peak_live_bytes`]; 0 if nothing came into use since.
pub(crate) fn take_seen_peak_bytes() -> usize {
    SEEN_PEAK_BYTES.swap(0, Ordering::Relaxed)
}

/// The peak since the last call, as for [`peak_live_bytes`], and at least `live_bytes`, which are live now.
pub(crate) fn take_peak_live_bytes(live_bytes: usize) -> usize {
    TAKEN_PEAK_BYTES.swap(live_bytes, Ordering::Relaxed).max(live_bytes)
}

pub(crate) fn phase_begun() {
    PHASES.fetch_add(1, Ordering::Relaxed);
}

/// Begins a new window for [`window_peak_bytes`], with this many live bytes.
pub(crate) fn window_begun(live_bytes: usize) {
    let former = PEAK_LIVE_BYTES.swap(live_bytes, Ordering::Relaxed);
    FORMER_PEAK_LIVE_BYTES.fetch_max(former, Ordering::Relaxed);
    // Pairs with the Acquire of `former_peak_live_bytes`.
    WINDOWS.fetch_add(1, Ordering::Release);
}

/// The peak since [`window_begun`], as for [`peak_live_bytes`].
pub(crate) fn window_peak_bytes() -> usize {
    PEAK_LIVE_BYTES.load(Ordering::Relaxed)
}

#[cold]
pub(crate) fn overflowed(bytes: usize) {
    OVERFLOW_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    OVERFLOW_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// The counters of one zone.
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

    /// Counts a run that was handed out for a request of `bytes`, to a thread that can't count it itself.
    pub(crate) fn requested(&self, bytes: usize) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts `more_bytes` that came into use, and `fresh_bytes` that become resident for them. `cached_bytes` returns the bytes
    /// in thread caches that the peak leaves out; `None` if it is too early to ask for them again. Then the peak is noted later.
    pub(crate) fn grown(&self, more_bytes: usize, fresh_bytes: usize, cached_bytes: impl FnOnce() -> Option<usize>) {
        if fresh_bytes > 0 {
            self.will_fault(fresh_bytes);
        }
        let used = USED_BYTES.fetch_add(more_bytes, Ordering::Relaxed) + more_bytes;
        let peaks = [&PEAK_LIVE_BYTES, &SEEN_PEAK_BYTES, &TAKEN_PEAK_BYTES];
        if peaks.iter().all(|peak| used <= peak.load(Ordering::Relaxed)) {
            return;
        }
        if let Some(cached_bytes) = cached_bytes() {
            let live = used.saturating_sub(cached_bytes);
            peaks.iter().for_each(|peak| _ = peak.fetch_max(live, Ordering::Relaxed));
        }
    }

    /// Counts bytes that are free again.
    pub(crate) fn released(&self, bytes: usize) {
        USED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts memory that is not resident, and that its new owner is about to touch.
    pub(crate) fn will_fault(&self, bytes: usize) {
        self.fresh_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        #[cfg(feature = "profile")]
        if gate::is_told(Observer::Profile) {
            profile::fresh(bytes);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds the counters of this zone.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        stats.run_allocations += self.allocations.load(Ordering::Relaxed);
        stats.run_bytes += self.bytes();
        stats.fresh_bytes += self.fresh_bytes.load(Ordering::Relaxed);
        stats.system_calls += self.system_calls.load(Ordering::Relaxed);
        stats.refusals += self.refusals.load(Ordering::Relaxed);
    }

    pub(crate) fn system_call(&self) {
        self.system_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that the kernel refused. The process goes on without it. A line on standard error warns of the first
    /// refusal.
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
