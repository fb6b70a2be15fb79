//! How many allocations of a slab are alive: biased counting.
//!
//! The thread that owns a slab counts in plain thread-local state (`live`: made minus freed, by itself). Other threads
//! count down the shared number, which starts at zero and so goes negative. When the owner retires the slab it adds its
//! `live`; from then on the number is what is still alive. It can reach zero only after retirement, and does so in exactly
//! one operation, whose thread recycles the slab. (Biased reference counting: Choi, Shull and Torrellas, PACT 2018.)

use crate::sync::{AtomicI64, Ordering};

/// The shared half of a slab's count; all zero is a slab without allocations.
#[derive(Debug)]
pub(crate) struct SharedCount(AtomicI64);

impl SharedCount {
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// One allocation was freed by a thread that does not own the slab. `true`: that was the last one of a retired slab,
    /// and the caller recycles it.
    #[inline]
    #[must_use]
    pub(crate) fn free(&self) -> bool {
        // Release: this thread's use of the memory ends before. Acquire: so did everybody else's, if we recycle.
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The owner, who counted `live`, leaves the slab. `true`: nothing is alive, and the caller recycles it.
    #[must_use]
    pub(crate) fn retire(&self, live: i64) -> bool {
        self.0.fetch_add(live, Ordering::AcqRel) + live == 0
    }

    /// The owner, who counts `live`, asks whether all its allocations were freed.
    #[inline]
    pub(crate) fn is_empty(&self, live: i64) -> bool {
        self.0.load(Ordering::Acquire) + live == 0
    }

    /// Whether the slab was retired with something in it that is still alive. For statistics.
    pub(crate) fn is_pinned(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// The owner starts over with an empty slab (see [`is_empty`](Self::is_empty)): nobody else can be counting.
    #[inline]
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
