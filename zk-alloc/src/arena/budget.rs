//! The budget: the bytes of the arena that are resident, and that may be, by the cap `ZK_ALLOC_MAX_BYTES` and the peak so far.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::counters;
use crate::tuning;

/// Bytes of the arena that are resident, or will be when they are first touched.
static RESIDENT_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes that went back to the kernel so far.
static PURGED_BYTES: AtomicU64 = AtomicU64::new(0);
/// The most that may be.
static MAX_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The resident bytes up to which freed memory stays resident.
static RETAINED_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// From now on, memory that is freed while more bytes than this are resident is purged at once.
pub(crate) fn set_retained(bytes: usize) {
    RETAINED_BYTES.store(bytes, Ordering::Relaxed);
}

/// What [`set_retained`] said last.
#[cfg(test)]
pub(crate) fn retained_limit() -> usize {
    RETAINED_BYTES.load(Ordering::Relaxed)
}

/// Whether more is resident than may stay so.
#[inline(always)]
pub(super) fn is_beyond_retained() -> bool {
    let retained = RETAINED_BYTES.load(Ordering::Relaxed);
    retained != usize::MAX && resident_bytes() > retained
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

/// Up to where memory may become resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// A little above the peak, while some resident memory is free. That memory lies in the wrong place, and is better purged than paid
    /// for twice.
    Peak,
    /// The cap.
    Cap,
}

/// The headroom above a peak, in bytes: the larger of a part of the peak, and of half of the peak within bounds
/// (docs/experiments/headroom.md).
fn headroom(peak: usize) -> usize {
    let bounded = (peak / 2).min(tuning::most_headroom_bytes()).max(tuning::least_headroom_bytes());
    bounded.max(peak / tuning::headroom_part())
}

/// Bytes that were resident and free when nothing was left to purge. They share their pages with live blocks.
static STUCK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are resident and free, without those that cannot be purged.
fn purgeable_bytes(used: usize) -> usize {
    let free = resident_bytes().saturating_sub(used);
    let stuck = STUCK_BYTES.load(Ordering::Relaxed);
    if stuck > free {
        STUCK_BYTES.store(free, Ordering::Relaxed);
    }
    free.saturating_sub(stuck)
}

/// A purge missed its limit, and nothing was left to purge. The next purge has to wait until more is freed.
pub(super) fn nothing_left_to_purge() {
    STUCK_BYTES.store(resident_bytes().saturating_sub(counters::used_bytes()), Ordering::Relaxed);
}

/// Whether a purge may make room for `bytes` below the cap, where threads cache `cached_bytes`. A purge looks at all memory. After
/// one that missed its limit, a sixteenth of the excess must be freed before the next.
pub(super) fn may_make_room(bytes: usize, cached_bytes: usize) -> bool {
    let excess = resident_bytes().saturating_add(bytes).saturating_sub(max_bytes());
    let freed = purgeable_bytes(counters::used_bytes()).saturating_add(cached_bytes);
    freed > 0 && freed >= excess / 16
}

/// The bytes that may be resident under [`Limit::Peak`], for `more_bytes` that are about to be.
pub(super) fn peak_limit(more_bytes: usize) -> usize {
    let used = counters::used_bytes();
    if purgeable_bytes(used) < used / 16 {
        return usize::MAX;
    }
    let peak = counters::peak_live_bytes().max(used + more_bytes);
    peak + headroom(peak)
}

/// Accounts for `bytes` more; `false`, and nothing accounted, if that exceeds the limit.
pub(super) fn admit(bytes: usize, limit: Limit) -> bool {
    let most = match limit {
        Limit::Cap => max_bytes(),
        Limit::Peak => max_bytes().min(peak_limit(bytes)),
    };
    RESIDENT_BYTES
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |resident| {
            resident.checked_add(bytes).filter(|&total| total <= most)
        })
        .is_ok()
}

/// Accounts for `bytes` more, whatever the limits say.
pub(super) fn exceed(bytes: usize) {
    RESIDENT_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// Accounts for `bytes` less: they are accounted elsewhere.
pub(super) fn unaccount(bytes: usize) {
    let before = RESIDENT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    debug_assert!(before >= bytes, "{bytes} bytes were taken off an account of {before}");
}

/// `bytes` went back to the kernel.
pub(super) fn returned(bytes: usize) {
    unaccount(bytes);
    PURGED_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Bytes that went back to the kernel so far.
pub(crate) fn purged_bytes() -> u64 {
    PURGED_BYTES.load(Ordering::Relaxed)
}
