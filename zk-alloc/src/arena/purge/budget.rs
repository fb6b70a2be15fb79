//! The budget: the bytes of the arena that are resident, and that may be, by the cap `ZK_ALLOC_MAX_BYTES` and the peak so far.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::{counters, os, tuning};

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
pub(crate) fn is_beyond_retained() -> bool {
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

/// Resident bytes up to which the program or the operator asked to keep memory, also above the peak.
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(NOT_SET);
const NOT_SET: usize = usize::MAX - 1;

/// From now on, no memory is purged at the peak limit while at most this many bytes are resident.
pub(crate) fn set_kept(bytes: usize) {
    KEPT_BYTES.store(bytes, Ordering::Relaxed);
}

/// As [`set_kept`], unless the program did so before the arena opened.
pub(crate) fn set_kept_at_opening(bytes: usize) {
    let _ = KEPT_BYTES.compare_exchange(NOT_SET, bytes, Ordering::Relaxed, Ordering::Relaxed);
}

/// The bytes that purges at the peak limit took and the program soon needed again: each purge adds its bytes, and a part of what was served
/// since is taken off.
static CHURN_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes served when the last such purge was noted.
static CHURN_SERVED_BYTES: AtomicU64 = AtomicU64::new(0);

/// A request at the peak limit purged `gone_bytes`. So far, `served_bytes` were served.
pub(crate) fn purged_at_peak(gone_bytes: usize, served_bytes: u64) {
    let since = served_bytes.saturating_sub(CHURN_SERVED_BYTES.swap(served_bytes, Ordering::Relaxed));
    let paid_off = usize::try_from(since).unwrap_or(usize::MAX) / tuning::churn_part();
    let max = 2 * counters::peak_live_bytes();
    // A lost update of another thread only delays the headroom.
    let churn = CHURN_BYTES.load(Ordering::Relaxed).saturating_sub(paid_off).saturating_add(gone_bytes);
    CHURN_BYTES.store(churn.min(max), Ordering::Relaxed);
}

/// The headroom above a peak, in bytes: the larger of a part of the peak, and of half of the peak within bounds
/// (docs/experiments/headroom.md). A program that keeps purging what it needs again gets up to half of the peak more.
fn headroom(peak: usize) -> usize {
    let bounded = (peak / 2).min(tuning::max_headroom_bytes()).max(tuning::min_headroom_bytes());
    let churn = CHURN_BYTES.load(Ordering::Relaxed).saturating_sub(peak / 2) / 2;
    bounded.max(peak / tuning::headroom_part()) + churn.min(peak / 2)
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
pub(crate) fn nothing_left_to_purge() {
    STUCK_BYTES.store(resident_bytes().saturating_sub(counters::used_bytes()), Ordering::Relaxed);
}

/// Free and cached bytes when a request last found no room below the cap, whatever it purged.
static FREE_AT_CAP_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are free, or cached by threads.
fn free_bytes(cached_bytes: usize) -> usize {
    resident_bytes().saturating_sub(counters::used_bytes()).saturating_add(cached_bytes)
}

/// Whether `bytes` exceed the cap, and there is no free memory of that size, either.
pub(super) fn is_full(bytes: usize) -> bool {
    let resident = resident_bytes();
    resident.saturating_add(bytes) > cap_bytes() && resident.saturating_sub(counters::used_bytes()) < bytes
}

/// A purge did not make room below the cap.
pub(crate) fn cap_holds(cached_bytes: usize) {
    FREE_AT_CAP_BYTES.store(free_bytes(cached_bytes).max(1), Ordering::Relaxed);
}

/// Whether a purge may make room for `bytes` below the cap, where threads cache `cached_bytes`. A purge looks at much memory. After
/// one in vain, a sixteenth of the excess must be freed before the next, and no less than pays for it.
pub(crate) fn may_make_room(bytes: usize, cached_bytes: usize) -> bool {
    let excess = resident_bytes().saturating_add(bytes).saturating_sub(max_bytes());
    let (free, before) = (free_bytes(cached_bytes), FREE_AT_CAP_BYTES.load(Ordering::Relaxed));
    if free < before {
        FREE_AT_CAP_BYTES.store(free.max(1), Ordering::Relaxed);
    }
    is_worth_a_purge(free, before, excess)
}

/// As [`may_make_room`], with `free` bytes now and `before` when a purge was in vain; 0 if none was.
fn is_worth_a_purge(free: usize, before: usize, excess: usize) -> bool {
    let min = if before == 0 { 1 } else { tuning::retry_at_cap_bytes() };
    free.saturating_sub(before) >= min.max(excess / 16)
}

/// The bytes that may be resident under [`Limit::Peak`], for `more_bytes` that are about to be.
pub(crate) fn peak_limit(more_bytes: usize) -> usize {
    let used = counters::used_bytes();
    if purgeable_bytes(used) < used / 16 {
        return usize::MAX;
    }
    let peak = counters::peak_live_bytes().max(used + more_bytes);
    (peak + headroom(peak)).max(KEPT_BYTES.load(Ordering::Relaxed))
}

/// Accounted bytes that the kernel had no pages for when a request at the cap last asked. They are known to be untouched for a moment only,
/// because their owners may touch them.
static UNTOUCHED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// When that ends, by [`os::coarse_ns`].
static UNTOUCHED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// For a moment, the cap does not count `bytes` that are accounted and untouched.
pub(crate) fn set_untouched(bytes: usize) {
    UNTOUCHED_BYTES.store(bytes, Ordering::Relaxed);
    let until = os::coarse_ns().saturating_add(tuning::untouched_ms() as u64 * 1_000_000);
    UNTOUCHED_UNTIL_NS.store(until, Ordering::Relaxed);
}

/// Whether it is time to ask again how much is untouched.
pub(crate) fn may_ask_for_untouched() -> bool {
    os::coarse_ns() >= UNTOUCHED_UNTIL_NS.load(Ordering::Relaxed)
}

/// The most bytes that may be accounted below the cap.
fn cap_bytes() -> usize {
    let untouched = UNTOUCHED_BYTES.load(Ordering::Relaxed);
    let is_known = untouched > 0 && !may_ask_for_untouched();
    max_bytes().saturating_add(if is_known { untouched } else { 0 })
}

/// Accounts for `bytes` more; `false`, and nothing accounted, if that exceeds the limit.
pub(crate) fn admit(bytes: usize, limit: Limit) -> bool {
    let max = match limit {
        Limit::Cap => cap_bytes(),
        Limit::Peak => cap_bytes().min(peak_limit(bytes)),
    };
    RESIDENT_BYTES
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |resident| {
            resident.checked_add(bytes).filter(|&total| total <= max)
        })
        .is_ok()
}

/// Accounts for `bytes` more, whatever the limits say.
pub(crate) fn exceed(bytes: usize) {
    RESIDENT_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// Accounts for `bytes` less: they are accounted elsewhere.
pub(crate) fn unaccount(bytes: usize) {
    let before = RESIDENT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    debug_assert!(before >= bytes, "{bytes} bytes were taken off an account of {before}");
}

/// `bytes` went back to the kernel.
pub(crate) fn returned(bytes: usize) {
    unaccount(bytes);
    // The purged pages may be the untouched ones.
    let untouched = UNTOUCHED_BYTES.load(Ordering::Relaxed);
    if untouched > 0 {
        UNTOUCHED_BYTES.store(untouched.saturating_sub(bytes), Ordering::Relaxed);
    }
    PURGED_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Bytes that went back to the kernel so far.
pub(crate) fn purged_bytes() -> u64 {
    PURGED_BYTES.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A purge looks at much memory. A program that stays at its cap must not pay for one at each request.
    #[test]
    fn purge_in_vain_at_the_cap_is_not_repeated_until_enough_is_freed() {
        const MIB: usize = 1 << 20;
        assert!(is_worth_a_purge(1, 0, 0) && is_worth_a_purge(MIB, 0, 16 * MIB));
        assert!(!is_worth_a_purge(0, 0, 0) && !is_worth_a_purge(MIB - 1, 0, 16 * MIB));
        let retry = tuning::retry_at_cap_bytes();
        assert!(!is_worth_a_purge(5 * MIB, 5 * MIB, 100) && !is_worth_a_purge(5 * MIB + retry - 1, 5 * MIB, 100));
        assert!(is_worth_a_purge(5 * MIB + retry, 5 * MIB, 100));
        assert!(!is_worth_a_purge(6 * MIB, 5 * MIB, 32 * MIB) && is_worth_a_purge(7 * MIB, 5 * MIB, 32 * MIB));
    }
}
