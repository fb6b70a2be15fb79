//! The number of open phases. It has a module of its own because modules below `phase` read it.

use std::sync::atomic::{AtomicUsize, Ordering};

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Whether a phase is open in this process.
#[inline]
pub(crate) fn is_any() -> bool {
    OPEN.load(Ordering::Relaxed) != 0
}

/// Counts one more open phase. Returns whether it is the only one.
pub(crate) fn began() -> bool {
    OPEN.fetch_add(1, Ordering::Relaxed) == 0
}

/// Counts one open phase less. Returns whether it was the last. Does nothing if none is open.
pub(crate) fn ended() -> bool {
    OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1)) == Ok(1)
}
