//! The observers of allocations and frees. A request asks one flag for all of them.

use std::sync::atomic::{AtomicU8, Ordering};

/// The observers.
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
static ON: AtomicU8 = AtomicU8::new(0);

/// Begins or ends telling an observer.
pub(crate) fn switch(observer: Observer, on: bool) {
    if on {
        ON.fetch_or(observer as u8, Ordering::Relaxed);
    } else {
        ON.fetch_and(!(observer as u8), Ordering::Relaxed);
    }
}

/// Whether any observer is told.
#[inline(always)]
pub(crate) fn is_any() -> bool {
    ON.load(Ordering::Relaxed) != 0
}

/// Whether this observer is told.
#[inline(always)]
pub(crate) fn is_told(observer: Observer) -> bool {
    ON.load(Ordering::Relaxed) & observer as u8 != 0
}
