//! How many phases are open. Known by itself, because what waits for the end of the last one stands below phases.

use std::sync::atomic::{AtomicUsize, Ordering};

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Whether a phase is open in this process.
#[inline]
pub(crate) fn is_any() -> bool {
    OPEN.load(Ordering::Relaxed) != 0
}

/// One more; whether it is the only one.
pub(crate) fn began() -> bool {
    OPEN.fetch_add(1, Ordering::Relaxed) == 0
}

/// One less; whether it was the last. Where none was open, nothing happens.
pub(crate) fn ended() -> bool {
    OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1)) == Ok(1)
}
