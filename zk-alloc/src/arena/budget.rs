//! How much of the arena is resident, and how much may be: the cap `ZK_ALLOC_MAX_BYTES`, and what was needed so far.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::counters;

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

/// Up to where memory may become resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Little more than was ever in use at once, as long as some of what is resident is free: it lies in the wrong place, and
    /// is better given back than paid for twice.
    Peak,
    /// As [`Peak`](Self::Peak), with as much slack as there may be in the end: what is paged in ahead is used next.
    Ahead,
    /// The cap.
    Cap,
}

/// What may be resident beyond the peak, in bytes, as far as is known ([`gave_way`]).
static SLACK_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The peak when memory was last given back for [`Limit::Peak`].
static PEAK_AT_LAST_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Giving back less gains nobody anything.
const LEAST_SLACK_BYTES: usize = 512 << 10;
/// What may be beyond the peak from the start, at most as much again as the peak, or else a sixteenth of it.
const FIRST_SLACK_BYTES: usize = 2 << 20;
/// What may be beyond the peak in the end, at most as much again as the peak, or else a tenth of it. A Dory proof that peaks at
/// 40 MiB under glibc takes 0.96 of that if this is 4 MiB, 1.01 at 6 and 1.13 at 8, for 1,600, 700 and 5 faults.
const MOST_SLACK_BYTES: usize = 6 << 20;

/// The most that may be resident beyond a peak, in bytes.
fn most_slack(peak: usize) -> usize {
    (peak / 10).max(peak.clamp(LEAST_SLACK_BYTES, MOST_SLACK_BYTES))
}

/// What may be resident beyond a peak, in bytes, as far as is known.
fn slack(peak: usize) -> usize {
    // As much as a piece that is paged in at once.
    let first = (peak / 16).max(peak.clamp(LEAST_SLACK_BYTES, FIRST_SLACK_BYTES));
    SLACK_BYTES.load(Ordering::Relaxed).clamp(first, most_slack(peak))
}

/// What may be resident under [`Limit::Peak`] if `more_bytes` are to be, in bytes.
pub(super) fn peak_limit(more_bytes: usize) -> usize {
    limit_with(slack, more_bytes)
}

/// What may be resident if `more_bytes` are to be, with so much beyond the peak.
fn limit_with(slack: impl FnOnce(usize) -> usize, more_bytes: usize) -> usize {
    let used = counters::used_bytes();
    let is_nearly_all_used = resident_bytes().saturating_sub(used) < used / 16;
    if is_nearly_all_used {
        return usize::MAX;
    }
    let peak = counters::peak_live_bytes().max(used + more_bytes);
    peak + slack(peak)
}

/// `bytes` of free memory went back for [`Limit::Peak`]. If little more is in use at once than when that happened last, they were
/// given back for a place that was used before, and so on in turn: with more slack, each has its own.
pub(super) fn gave_way(bytes: usize) {
    let peak = counters::peak_live_bytes();
    let last = PEAK_AT_LAST_BYTES.swap(peak, Ordering::Relaxed);
    if peak <= last + last / 16 {
        let now = slack(peak);
        // At least doubled, so that the second proof is the last that pays.
        let more = now.max(bytes);
        // Of two threads that were short at once, one may count alone.
        SLACK_BYTES.store((now + more).min(most_slack(peak)), Ordering::Relaxed);
    }
}

/// Books `bytes` more; `false`, and nothing booked, if that exceeds the limit.
pub(super) fn admit(bytes: usize, limit: Limit) -> bool {
    let most = match limit {
        Limit::Cap => max_bytes(),
        Limit::Peak => max_bytes().min(peak_limit(bytes)),
        Limit::Ahead => max_bytes().min(limit_with(most_slack, bytes)),
    };
    RESIDENT_BYTES
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |resident| {
            resident.checked_add(bytes).filter(|&total| total <= most)
        })
        .is_ok()
}

/// Books `bytes` more, whatever the limits say.
pub(super) fn exceed(bytes: usize) {
    RESIDENT_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// `bytes` went back to the kernel.
pub(super) fn returned(bytes: usize) {
    RESIDENT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
}
