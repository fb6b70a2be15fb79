//! The three words that each request reads first: how many phases are open, from which size on the arena serves, and which observers are
//! told of allocations. Only rare events write them.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// The number of open phases.
static OPEN_PHASES: AtomicUsize = AtomicUsize::new(0);

/// Whether a phase is open in this process.
#[inline]
pub(crate) fn is_any_phase_open() -> bool {
    OPEN_PHASES.load(Ordering::Relaxed) != 0
}

/// Counts one more open phase. Returns whether it is the only one.
pub(crate) fn phase_began() -> bool {
    OPEN_PHASES.fetch_add(1, Ordering::Relaxed) == 0
}

/// Counts one open phase less. Returns whether it was the last. Does nothing if none is open.
pub(crate) fn phase_ended() -> bool {
    OPEN_PHASES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1)) == Ok(1)
}

/// The smallest request that the arena serves, in bytes.
static MIN_BYTES: AtomicUsize = AtomicUsize::new(UNKNOWN);
/// The smallest request before it is known: more than any request.
pub(crate) const UNKNOWN: usize = usize::MAX;

/// The smallest request that the arena serves, in bytes. It is [`UNKNOWN`] until an allocator was
/// [introduced](crate::config::init_settings).
#[inline(always)]
pub(crate) fn min_bytes() -> usize {
    MIN_BYTES.load(Ordering::Relaxed)
}

pub(crate) fn set_min_bytes(bytes: usize) {
    MIN_BYTES.store(bytes, Ordering::Relaxed);
}

/// The observers of allocations and frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Observer {
    /// The tracing of what outlives its phase (`escape`).
    Escapes = 1,
    /// The sampling of call sites (`profile`).
    #[cfg(feature = "profile")]
    Profile = 2,
}

/// A bit for each [`Observer`].
static OBSERVERS: AtomicU8 = AtomicU8::new(0);

/// Begins or ends telling an observer.
pub(crate) fn switch(observer: Observer, on: bool) {
    if on {
        OBSERVERS.fetch_or(observer as u8, Ordering::Relaxed);
    } else {
        OBSERVERS.fetch_and(!(observer as u8), Ordering::Relaxed);
    }
}

/// Whether any observer is told.
#[inline(always)]
pub(crate) fn is_observed() -> bool {
    OBSERVERS.load(Ordering::Relaxed) != 0
}

/// Whether this observer is told.
#[inline(always)]
pub(crate) fn is_told(observer: Observer) -> bool {
    OBSERVERS.load(Ordering::Relaxed) & observer as u8 != 0
}
