//! How much of the arena may be resident: the hard cap `ZK_ALLOC_MAX_BYTES`.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the arena that are resident, or will be when they are first touched.
static RESIDENT_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The most that may be.
static MAX_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// What may stay resident of what is freed now.
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// From now on, what is freed beyond so many resident bytes goes back to the kernel at once.
pub(crate) fn set_kept(bytes: usize) {
    KEPT_BYTES.store(bytes, Ordering::Relaxed);
}

/// Whether more is resident than may stay so.
#[inline(always)]
pub(super) fn is_beyond_kept() -> bool {
    let kept = KEPT_BYTES.load(Ordering::Relaxed);
    kept != usize::MAX && resident_bytes() > kept
}

pub(crate) fn set_max(bytes: usize) {
    MAX_BYTES.store(bytes, Ordering::Relaxed);
}

pub(crate) fn max_bytes() -> usize {
    MAX_BYTES.load(Ordering::Relaxed)
}

/// Bytes of the arena that may be resident now.
pub(crate) fn resident_bytes() -> usize {
    RESIDENT_BYTES.load(Ordering::Relaxed)
}

/// Books `bytes` more; `false`, and nothing booked, if that exceeds the cap.
pub(super) fn admit(bytes: usize) -> bool {
    let max = max_bytes();
    RESIDENT_BYTES
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |resident| {
            resident.checked_add(bytes).filter(|&total| total <= max)
        })
        .is_ok()
}

/// `bytes` went back to the kernel.
pub(super) fn returned(bytes: usize) {
    RESIDENT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
}
