//! The memory accounting of the process: the bytes requested, in use and resident, and the limits on resident bytes (the cap
//! `ZK_ALLOC_MAX_BYTES`, and the peak so far). [`stats`](crate::stats()) reports it.
#![allow(unsafe_code, reason = "keeps the program's function in an atomic")]

use std::mem::transmute;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::os::{self, Errno};
use crate::stats::Stats;
use crate::{observe, tuning};

// Requests, and the bytes in use.

static PHASES: AtomicU64 = AtomicU64::new(0);
static OVERFLOW_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static OVERFLOW_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes of blocks and page runs in use, including those in thread caches.
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The peak of the bytes in use in the current window, which began with the first of the open phases.
static PEAK_LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The peak of the bytes in use since the last decay tick.
static SEEN_PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The peak of the bytes in use since the last call of [`take_peak_live_bytes`].
static TAKEN_PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The peak of all earlier windows.
static FORMER_PEAK_LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The number of windows that have begun.
static WINDOWS: AtomicUsize = AtomicUsize::new(0);
/// The number of requests for runs that [`requested`] counted, and their bytes.
static RUN_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static RUN_BYTES: AtomicU64 = AtomicU64::new(0);
static FRESH_BYTES: AtomicU64 = AtomicU64::new(0);
static SYSTEM_CALLS: AtomicU64 = AtomicU64::new(0);
static REFUSALS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of requests that the backing allocator served because the arena could not, and their total bytes, since the process
/// started or since the last call of [`reset_overflow_stats`]. Both grow when memory runs short, or when `ZK_ALLOC_MAX_BYTES` is reached.
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

/// Sets the counters of [`overflow_stats`] to zero. See the example there.
pub fn reset_overflow_stats() {
    OVERFLOW_ALLOCATIONS.store(0, Ordering::Relaxed);
    OVERFLOW_BYTES.store(0, Ordering::Relaxed);
}

pub(crate) fn phases() -> u64 {
    PHASES.load(Ordering::Relaxed)
}

/// Returns the bytes of blocks and page runs in use now, including those in thread caches.
pub(crate) fn used_bytes() -> usize {
    USED_BYTES.load(Ordering::Relaxed)
}

/// Returns the peak of the bytes in use. It is updated when a thread fetches blocks or claims a run. A thread that takes memory from its
/// cache does not update it, so memory that was taken from caches since the last update is missing. With many threads, not every claim
/// updates it: up to 256 bytes for each live thread may be missing.
pub(crate) fn peak_live_bytes() -> usize {
    window_peak_bytes().max(FORMER_PEAK_LIVE_BYTES.load(Ordering::Relaxed))
}

/// Returns the peak of all windows before the current one; `None` until the second window begins.
pub(crate) fn former_peak_live_bytes() -> Option<usize> {
    (WINDOWS.load(Ordering::Acquire) >= 2).then(|| FORMER_PEAK_LIVE_BYTES.load(Ordering::Relaxed))
}

/// Returns the peak of the bytes in use since the last call, as precisely as [`peak_live_bytes`]; 0 if no memory has come into use since
/// then.
pub(crate) fn take_seen_peak_bytes() -> usize {
    SEEN_PEAK_BYTES.swap(0, Ordering::Relaxed)
}

/// Returns the peak of the bytes in use since the last call, as precisely as [`peak_live_bytes`], but at least `live_bytes`, the bytes that
/// are live now.
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

/// Returns the peak of the bytes in use since [`window_begun`], as precisely as [`peak_live_bytes`].
pub(crate) fn window_peak_bytes() -> usize {
    PEAK_LIVE_BYTES.load(Ordering::Relaxed)
}

#[cold]
pub(crate) fn overflowed(bytes: usize) {
    OVERFLOW_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    OVERFLOW_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// Counts a run that was handed out for a request of `bytes`, if the thread can't count it in its own cache.
pub(crate) fn requested(bytes: usize) {
    RUN_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    RUN_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Counts `more_bytes` that came into use, and `fresh_bytes` that become resident as a result. `cached_bytes` returns the bytes of runs in
/// thread caches, which the peak does not include. If it returns `None`, because it is too early to sum them up again, the peak is updated
/// later.
pub(crate) fn grown(more_bytes: usize, fresh_bytes: usize, cached_bytes: impl FnOnce() -> Option<usize>) {
    if fresh_bytes > 0 {
        will_fault(fresh_bytes);
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

/// Counts bytes that were freed.
pub(crate) fn released(bytes: usize) {
    USED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
}

/// Counts `bytes` that are not resident and that their new owner is about to touch.
pub(crate) fn will_fault(bytes: usize) {
    FRESH_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    reused(bytes);
    if observe::is_profiled() {
        observe::fresh(bytes);
    }
}

/// Returns the bytes that [`requested`] counted.
pub(crate) fn run_bytes() -> u64 {
    RUN_BYTES.load(Ordering::Relaxed)
}

/// Adds the counters of runs, fresh bytes, system calls and refusals to `stats`.
pub(crate) fn add_to(stats: &mut Stats) {
    stats.run_allocations += RUN_ALLOCATIONS.load(Ordering::Relaxed);
    stats.run_bytes += run_bytes();
    stats.fresh_bytes += FRESH_BYTES.load(Ordering::Relaxed);
    stats.system_calls += SYSTEM_CALLS.load(Ordering::Relaxed);
    stats.refusals += REFUSALS.load(Ordering::Relaxed);
}

pub(crate) fn system_call() {
    SYSTEM_CALLS.fetch_add(1, Ordering::Relaxed);
}

/// Counts a system call that the kernel refused. The process continues without it. The first refusal prints a warning to standard error.
#[cold]
pub(crate) fn refused(Errno(code): Errno, what: &str, bytes: usize) {
    if REFUSALS.fetch_add(1, Ordering::Relaxed) == 0 {
        os::warn(format_args!(
            "the system refused to {what} ({bytes} bytes, errno {code}); continuing without it; \
             further refusals are only counted in stats()"
        ));
    }
}

// Resident bytes, and their limits.

/// Bytes of the arena that are resident, or will be when they are first touched.
static RESIDENT_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes that were purged so far.
static PURGED_BYTES: AtomicU64 = AtomicU64::new(0);
/// The most bytes that may be resident.
static MAX_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Freed memory stays resident while no more than this many bytes are resident.
static RETAINED_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Sets the number of resident bytes above which freed memory is purged at once.
pub(crate) fn set_retained(bytes: usize) {
    RETAINED_BYTES.store(bytes, Ordering::Relaxed);
}

/// Returns the limit that [`set_retained`] set last.
#[cfg(test)]
pub(crate) fn retained_limit() -> usize {
    RETAINED_BYTES.load(Ordering::Relaxed)
}

/// Returns whether more bytes are resident than [`set_retained`] allows.
#[inline(always)]
pub(crate) fn is_beyond_retained() -> bool {
    let retained = RETAINED_BYTES.load(Ordering::Relaxed);
    retained != usize::MAX && resident_bytes() > retained
}

// In resident mode, freed long runs are purged at once, until the program requests as many bytes again. From then on, that much free memory
// stays resident until a decay tick purges it. So a program that does its work only once retains no memory for a second round that never
// comes. A prover that does repeat its work faults in again at most about as many bytes as are ever free at the same time.

/// Whether freed long runs are purged at once until the program requests as many bytes again.
static LEARNS_REUSE: AtomicBool = AtomicBool::new(false);
/// The number of free bytes that may stay resident, because the program requested as many again or reserved them.
static REUSED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The number of bytes of freed runs that were purged at once, and that the program has not requested again since.
static NOT_REUSED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sets whether freed long runs stay resident only up to the amount that the program requested again. Otherwise all of them stay.
pub(crate) fn learn_reuse(is_on: bool) {
    LEARNS_REUSE.store(is_on, Ordering::Relaxed);
}

/// Returns the resident free bytes beyond the amount that the program has requested again. The caller purges this many bytes of a long run
/// that was just freed.
pub(crate) fn bytes_beyond_reuse() -> usize {
    if !LEARNS_REUSE.load(Ordering::Relaxed) {
        return 0;
    }
    let resident = resident_bytes();
    let stays = REUSED_BYTES.load(Ordering::Relaxed).saturating_add(tuning::min_headroom_bytes());
    let beyond = resident.saturating_sub(used_bytes()).saturating_sub(stays);
    beyond.min(resident.saturating_sub(KEPT_BYTES.load(Ordering::Relaxed)))
}

/// Records that `bytes` of a freed run were purged, because the program had not requested as many again.
pub(crate) fn returned_until_reuse(bytes: usize) {
    NOT_REUSED_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// Records that `bytes` become resident. If freed runs have been purged at once, the program would have reused them, so as many more free
/// bytes may stay resident from now on.
fn reused(bytes: usize) {
    if NOT_REUSED_BYTES.load(Ordering::Relaxed) > 0 {
        let left = |gone: usize| Some(gone.saturating_sub(bytes));
        let (Ok(gone) | Err(gone)) = NOT_REUSED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        keep_for_reuse(bytes.min(gone));
    }
}

/// From now on, lets `bytes` more of free memory stay resident.
pub(crate) fn keep_for_reuse(bytes: usize) {
    let more = |kept: usize| Some(kept.saturating_add(bytes));
    let _ = REUSED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
}

/// Lets at least `bytes` of free memory stay resident, because the program reserved them.
pub(crate) fn keep_reserved(bytes: usize) {
    REUSED_BYTES.fetch_max(bytes, Ordering::Relaxed);
}

pub(crate) fn set_max(bytes: usize) {
    MAX_BYTES.store(bytes, Ordering::Relaxed);
}

pub(crate) fn max_bytes() -> usize {
    MAX_BYTES.load(Ordering::Relaxed)
}

/// Returns the bytes of the arena that are resident, or will be when they are first touched.
pub(crate) fn resident_bytes() -> usize {
    RESIDENT_BYTES.load(Ordering::Relaxed)
}

/// Returns the bytes that are resident and free.
pub(crate) fn free_bytes() -> usize {
    resident_bytes().saturating_sub(used_bytes())
}

/// A limit up to which memory may become resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// A little above the peak of the bytes in use. It applies only while enough resident memory is free to be worth a purge: the request
    /// does not fit in that memory, so the memory is purged before more becomes resident.
    Peak,
    /// The cap.
    Cap,
}

/// Up to this many resident bytes, free memory is retained even above the peak, because the program or the operator asked for it.
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(NOT_SET);
const NOT_SET: usize = usize::MAX - 1;

/// Sets the number of resident bytes up to which no memory is purged at the peak limit.
pub(crate) fn set_kept(bytes: usize) {
    KEPT_BYTES.store(bytes, Ordering::Relaxed);
}

/// Like [`set_kept`], but does nothing if the program called [`set_kept`] before the arena opened.
pub(crate) fn set_kept_at_opening(bytes: usize) {
    let _ = KEPT_BYTES.compare_exchange(NOT_SET, bytes, Ordering::Relaxed, Ordering::Relaxed);
}

/// An estimate of the bytes that were purged at the peak limit and soon needed again. Each such purge adds its bytes, and subtracts a part
/// of the bytes served since the previous one.
static CHURN_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The number of bytes that the arena had served when the last such purge was recorded.
static CHURN_SERVED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Records that a request at the peak limit purged `gone_bytes`. The arena has served `served_bytes` so far.
pub(crate) fn purged_at_peak(gone_bytes: usize, served_bytes: u64) {
    let since = served_bytes.saturating_sub(CHURN_SERVED_BYTES.swap(served_bytes, Ordering::Relaxed));
    let paid_off = usize::try_from(since).unwrap_or(usize::MAX) / tuning::churn_part();
    let max = 2 * peak_live_bytes();
    // A lost update by another thread only delays the growth of the headroom.
    let churn = CHURN_BYTES.load(Ordering::Relaxed).saturating_sub(paid_off).saturating_add(gone_bytes);
    CHURN_BYTES.store(churn.min(max), Ordering::Relaxed);
}

/// Returns the headroom above a peak, in bytes: the larger of a fixed part of the peak, and half of the peak clamped to fixed bounds
/// (docs/experiments/headroom.md). A program that repeatedly purges memory that it needs again gets up to half of the peak more.
fn headroom(peak: usize) -> usize {
    let bounded = (peak / 2).min(tuning::max_headroom_bytes()).max(tuning::min_headroom_bytes());
    let churn = CHURN_BYTES.load(Ordering::Relaxed).saturating_sub(peak / 2) / 2;
    bounded.max(peak / tuning::headroom_part()) + churn.min(peak / 2)
}

/// The number of free bytes that were still resident when nothing was left to purge, because they share their pages with live blocks.
static STUCK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Returns the resident free bytes, except those that cannot be purged.
fn purgeable_bytes(used: usize) -> usize {
    let free = resident_bytes().saturating_sub(used);
    let stuck = STUCK_BYTES.load(Ordering::Relaxed);
    if stuck > free {
        STUCK_BYTES.store(free, Ordering::Relaxed);
    }
    free.saturating_sub(stuck)
}

/// Records that a purge stopped short of its target because nothing was left to purge. The next purge waits until more is freed.
pub(crate) fn nothing_left_to_purge() {
    STUCK_BYTES.store(free_bytes(), Ordering::Relaxed);
}

/// The number of free and cached bytes when a purge last failed to make room below the cap.
static FREE_AT_CAP_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Returns whether `bytes` more would exceed the cap, while less than `bytes` of free memory is resident.
pub(crate) fn is_full(bytes: usize) -> bool {
    resident_bytes().saturating_add(bytes) > cap_bytes() && free_bytes() < bytes
}

/// Records that a purge did not make room below the cap.
pub(crate) fn cap_holds(cached_bytes: usize) {
    FREE_AT_CAP_BYTES.store(free_bytes().saturating_add(cached_bytes).max(1), Ordering::Relaxed);
}

/// Returns whether to try a purge that makes room for `bytes` below the cap, while threads cache `cached_bytes`. A purge reads many
/// bitmaps. After one that failed, the program must first free at least [`tuning::retry_at_cap_bytes`], and a sixteenth of the bytes by
/// which the request would exceed the cap.
pub(crate) fn may_make_room(bytes: usize, cached_bytes: usize) -> bool {
    let excess = resident_bytes().saturating_add(bytes).saturating_sub(max_bytes());
    let free = free_bytes().saturating_add(cached_bytes);
    let before = FREE_AT_CAP_BYTES.load(Ordering::Relaxed);
    if free < before {
        FREE_AT_CAP_BYTES.store(free.max(1), Ordering::Relaxed);
    }
    is_worth_a_purge(free, before, excess)
}

/// Decides for [`may_make_room`]: `free` bytes are free now, and `before` bytes were free when a purge last failed to make room (0 if none
/// failed).
fn is_worth_a_purge(free: usize, before: usize, excess: usize) -> bool {
    let min = if before == 0 { 1 } else { tuning::retry_at_cap_bytes() };
    free.saturating_sub(before) >= min.max(excess / 16)
}

/// Returns how many bytes may be resident under [`Limit::Peak`], if `more_bytes` are about to become resident.
pub(crate) fn peak_limit(more_bytes: usize) -> usize {
    let used = used_bytes();
    if purgeable_bytes(used) < used / 16 {
        return usize::MAX;
    }
    let peak = peak_live_bytes().max(used + more_bytes);
    (peak + headroom(peak)).max(KEPT_BYTES.load(Ordering::Relaxed))
}

/// The number of bytes that were counted as resident, but untouched, when a request at the cap last asked the kernel. The number is valid
/// only for a short time, because the owners may touch this memory.
static UNTOUCHED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The time until which that number is valid, on the clock of [`os::coarse_ns`].
static UNTOUCHED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// Excludes `bytes` that are counted as resident but untouched from the cap, for [`tuning::untouched_ms`].
pub(crate) fn set_untouched(bytes: usize) {
    UNTOUCHED_BYTES.store(bytes, Ordering::Relaxed);
    let until = os::coarse_ns().saturating_add(tuning::untouched_ms() as u64 * 1_000_000);
    UNTOUCHED_UNTIL_NS.store(until, Ordering::Relaxed);
}

/// Returns whether it is time to ask the kernel again how many bytes are untouched.
pub(crate) fn may_ask_for_untouched() -> bool {
    os::coarse_ns() >= UNTOUCHED_UNTIL_NS.load(Ordering::Relaxed)
}

/// Returns how many bytes may be counted as resident: the cap, plus the bytes that are known to be untouched.
fn cap_bytes() -> usize {
    let untouched = UNTOUCHED_BYTES.load(Ordering::Relaxed);
    let is_known = untouched > 0 && !may_ask_for_untouched();
    max_bytes().saturating_add(if is_known { untouched } else { 0 })
}

/// Counts `bytes` more as resident. Returns `false`, and counts nothing, if that would exceed the limit.
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

/// Stops counting `bytes` as resident, without counting them as purged.
pub(crate) fn unaccount(bytes: usize) {
    let before = RESIDENT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    debug_assert!(before >= bytes, "{bytes} bytes were taken off an account of {before}");
}

/// Stops counting `bytes` as resident, and counts them as purged.
pub(crate) fn returned(bytes: usize) {
    unaccount(bytes);
    // The purged pages may be among the untouched ones.
    let untouched = UNTOUCHED_BYTES.load(Ordering::Relaxed);
    if untouched > 0 {
        UNTOUCHED_BYTES.store(untouched.saturating_sub(bytes), Ordering::Relaxed);
    }
    PURGED_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Returns the bytes that were purged so far.
pub(crate) fn purged_bytes() -> u64 {
    PURGED_BYTES.load(Ordering::Relaxed)
}

// The function that the program sets to be called when resident memory comes near the cap.

/// A function for [`on_memory_limit`].
type Event = fn(resident_bytes: usize, max_bytes: usize);

/// The threshold, in percent of the limit; 0 if no function is set.
static PERCENT: AtomicUsize = AtomicUsize::new(0);
static EVENT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// Whether the function was called for the current crossing.
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// Sets a function that is called when the resident bytes of the arena reach `percent` of [`max_bytes`](crate::Settings::max_bytes)
/// (`ZK_ALLOC_MAX_BYTES`). It is called once for each crossing. It is called again only after the resident bytes have fallen an eighth of
/// the limit below that threshold. `event` replaces the function that was set before. With 0 percent, or without a limit, no function is
/// called.
///
/// The thread whose request crosses the threshold calls `event(resident_bytes, max_bytes)` within that request. So `event` should do
/// little, such as set a flag or wake a thread. It may allocate, which does not call it again, and may call [`release`](crate::release). If
/// it panics, the process aborts. It is not called in a signal handler, or on a thread that blocks signals.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static IS_TIGHT: AtomicBool = AtomicBool::new(false);
///
/// zk_alloc::on_memory_limit(80, |_resident_bytes, _max_bytes| IS_TIGHT.store(true, Ordering::Relaxed));
/// // A service now takes no new proofs while `IS_TIGHT` is set.
/// # zk_alloc::on_memory_limit(0, |_, _| ());
/// ```
pub fn on_memory_limit(percent: u8, event: fn(resident_bytes: usize, max_bytes: usize)) {
    EVENT.store(event as *mut (), Ordering::Relaxed);
    IS_CALLED.store(false, Ordering::Relaxed);
    // Release: a thread that sees the threshold calls the function that was set with it, or a later one.
    PERCENT.store(percent.into(), Ordering::Release);
}

/// Calls the function of [`on_memory_limit`] if the resident bytes have reached its threshold. Runs at the end of a request that may have
/// made memory resident.
#[inline(always)]
pub(crate) fn check_memory_limit() {
    if PERCENT.load(Ordering::Acquire) != 0 {
        check_memory_limit_now();
    }
}

#[cold]
#[inline(never)]
fn check_memory_limit_now() {
    let max_bytes = max_bytes();
    if max_bytes == usize::MAX {
        return;
    }
    let share_bytes = (max_bytes / 100).saturating_mul(PERCENT.load(Ordering::Relaxed));
    let resident_bytes = resident_bytes();
    if resident_bytes < share_bytes {
        if resident_bytes < share_bytes.saturating_sub(max_bytes / tuning::event_part()) {
            IS_CALLED.store(false, Ordering::Relaxed);
        }
        return;
    }
    if IS_CALLED.load(Ordering::Relaxed) || os::may_be_in_signal_handler() || IS_CALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: `on_memory_limit` stored a function of this type before the threshold, which the caller loaded with Acquire.
    let event = unsafe { transmute::<*mut (), Event>(EVENT.load(Ordering::Relaxed)) };
    // Abort on a panic, because an allocator must not unwind.
    catch_unwind(|| event(resident_bytes, max_bytes)).unwrap_or_else(|_| std::process::abort());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A purge reads many bitmaps. A program that stays at its cap must not pay for a purge at each request.
    #[test]
    fn failed_purge_at_the_cap_is_not_retried_until_enough_is_freed() {
        const MIB: usize = 1 << 20;
        assert!(is_worth_a_purge(1, 0, 0) && is_worth_a_purge(MIB, 0, 16 * MIB));
        assert!(!is_worth_a_purge(0, 0, 0) && !is_worth_a_purge(MIB - 1, 0, 16 * MIB));
        let retry = tuning::retry_at_cap_bytes();
        assert!(!is_worth_a_purge(5 * MIB, 5 * MIB, 100) && !is_worth_a_purge(5 * MIB + retry - 1, 5 * MIB, 100));
        assert!(is_worth_a_purge(5 * MIB + retry, 5 * MIB, 100));
        assert!(!is_worth_a_purge(6 * MIB, 5 * MIB, 32 * MIB) && is_worth_a_purge(7 * MIB, 5 * MIB, 32 * MIB));
    }
}
