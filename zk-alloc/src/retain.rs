//! The memory that stays resident between phases, and in idle processes.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use crate::arena::purge::rhythm::RHYTHM;
use crate::arena::{self, Arena, Purge};
use crate::background;
use crate::config::{self, Origin, Settings};
use crate::{accounts, gate, os};

/// The free memory that the arena keeps resident when the last open phase ends. Memory in use is never purged.
///
/// Without a call to [`set_retain`] and without `ZK_ALLOC_RETAIN_BYTES`, the arena adapts to the program's rhythm. If the last two pauses
/// between phases were each longer than the phase that ends, and longer than a second, all free memory is purged. Otherwise it stays, up to
/// half of the memory that the process may use (the limit of its control group, or the machine's memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retain {
    /// All memory: the next phase finds its pages resident, and RSS stays at its peak. No memory is purged within a phase either, even if
    /// much more is resident than the peak live size.
    Always,
    /// At most this many bytes, including memory in use. While no more than that is resident, nothing is purged within a phase either.
    /// `ZK_ALLOC_RETAIN_BYTES` sets this policy from the environment.
    Bytes(usize),
    /// As much as the program used at its peak in the last `Duration`. Between phases, free memory beyond that is purged. Once that time
    /// has passed without a phase, all free memory is purged. While a phase is open, nothing is purged.
    ///
    /// The program's own threads purge when they request memory. A process that goes fully idle requests none, so it keeps its memory. To
    /// free it, call [`release`], or start the background thread ([`start_background_thread`](crate::start_background_thread),
    /// `ZK_ALLOC_BACKGROUND=1`).
    ///
    /// In [`Mode::Resident`](crate::Mode::Resident) this is the default, with `ZK_ALLOC_RETAIN_FOR` seconds, or 8 if it is not set. In that
    /// mode, an idle process keeps its live size and a little more. Of freed runs of 256 KiB or more, only as many bytes stay resident as
    /// the program has requested again after earlier frees; the rest is purged at once.
    For(Duration),
    /// Nothing: every phase faults its pages in again.
    Never,
}

/// Tags and values of `POLICY`, which is one word so that it changes atomically. The tag is in the two highest bits.
const VALUE_BITS: u32 = 62;
const DEFAULT: u64 = 0;
const BYTES: u64 = 1 << VALUE_BITS;
const FOR_NS: u64 = 2 << VALUE_BITS;
const TAG_MASK: u64 = 3 << VALUE_BITS;
/// The longest duration of [`Retain::For`]. Longer durations are reduced to this one, which means forever.
const FOR_EVER_NS: u64 = !TAG_MASK;

static POLICY: AtomicU64 = AtomicU64::new(DEFAULT);

/// Sets the policy for free memory. It takes effect when the last open phase ends, or at once with
/// [`ZkAllocator::resident`](crate::ZkAllocator::resident). In that mode, [`Retain::For`] sets how soon free memory is purged, and any
/// other policy turns off purging by time.
///
/// ```
/// use std::time::Duration;
/// zk_alloc::set_retain(zk_alloc::Retain::For(Duration::from_secs(30)));
/// ```
pub fn set_retain(retain: Retain) {
    let bytes = |bytes: u64| BYTES | bytes.min(!TAG_MASK);
    let (policy, kept_bytes) = match retain {
        Retain::Always => (bytes(u64::MAX), usize::MAX),
        Retain::Bytes(limit) => (bytes(limit as u64), limit),
        Retain::For(idle) => (FOR_NS | u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX).min(FOR_EVER_NS), 0),
        Retain::Never => (bytes(0), 0),
    };
    POLICY.store(policy, Ordering::SeqCst);
    accounts::set_kept(kept_bytes);
    follow();
    background::start_if_set();
}

/// Whether an allocator in [`Mode::Resident`](crate::Mode::Resident) has served a request. From then on, memory is purged even if no phase
/// ends.
static IS_RESIDENT: AtomicBool = AtomicBool::new(false);

/// Turns on purging by time, for an allocator in [`Mode::Resident`](crate::Mode::Resident). Never waits, and allocates nothing.
pub(crate) fn follow_live() {
    IS_RESIDENT.store(true, Ordering::SeqCst);
    follow();
}

/// Returns whether an allocator in [`Mode::Resident`](crate::Mode::Resident) has served a request.
pub(crate) fn is_resident() -> bool {
    IS_RESIDENT.load(Ordering::SeqCst)
}

/// Turns purging by time on or off, according to the policy, or to the setting if the program set no policy.
fn follow() {
    let is_resident = IS_RESIDENT.load(Ordering::SeqCst);
    let by_setting = || arena::get().map_or(Duration::MAX, |arena| arena.config().settings.retain_for.value);
    let window_ns = window_ns(POLICY.load(Ordering::SeqCst), is_resident, by_setting);
    accounts::learn_reuse(is_resident && (1..FOR_EVER_NS).contains(&window_ns));
    arena::purge::decay::follow(window_ns, !is_resident);
}

/// Returns the time for which memory stays resident under a policy, in nanoseconds; 0 turns purging by time off.
fn window_ns(policy: u64, is_resident: bool, by_setting: impl FnOnce() -> Duration) -> u64 {
    match policy & TAG_MASK {
        FOR_NS => (policy & !TAG_MASK).max(1),
        DEFAULT if is_resident => match by_setting() {
            Duration::MAX => 0,
            time => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1),
        },
        _ => 0,
    }
}

/// Stops purging at frees. Called when a phase begins while none is open.
pub(crate) fn first_phase_began() {
    RHYTHM.begin(os::coarse_ns());
    keep_in_phase();
}

/// Retains all memory that is freed while a phase is open.
fn keep_in_phase() {
    // Pairs with the fence in `keep_between_phases`: either that thread sees this phase, or this thread's limit replaces that thread's.
    fence(Ordering::SeqCst);
    accounts::set_retained(usize::MAX);
}

/// Lets memory that is freed outside of phases stay resident, as long as no more than `bytes` are resident in total.
fn keep_between_phases(bytes: usize) {
    accounts::set_retained(bytes);
    // Another thread may have begun a phase in between, and set its limit before this thread set its own.
    fence(Ordering::SeqCst);
    if gate::is_any_phase_open() {
        keep_in_phase();
    }
}

/// Applies the policy at the end of the last phase. Never waits, and allocates nothing.
pub(crate) fn last_phase_ended() {
    let Some(arena) = arena::get() else { return };
    // Free the runs in thread caches, because the next phase may begin on other threads.
    arena.release_cached();
    let policy = POLICY.load(Ordering::Relaxed);
    let is_kept_over_pause = RHYTHM.end(os::coarse_ns());
    let by_setting = arena.config().settings.retain_bytes;
    let keep = match policy & TAG_MASK {
        BYTES => usize::try_from(policy & !TAG_MASK).unwrap_or(usize::MAX),
        // A time of 0 purges at once.
        FOR_NS if policy == FOR_NS && !IS_RESIDENT.load(Ordering::Relaxed) => 0,
        FOR_NS => {
            arena::purge::relieve();
            return gate::tick();
        }
        _ if is_kept_over_pause || by_setting.origin != Origin::Default || IS_RESIDENT.load(Ordering::Relaxed) => {
            by_setting.value
        }
        _ => 0,
    };
    if accounts::resident_bytes() > keep {
        arena::purge::trim(arena, keep, Purge::Now);
    }
    arena::purge::relieve();
    keep_between_phases(keep);
}

/// Purges all free memory of the arena, and returns the number of bytes purged. glibc also returns the free memory of its heap to the
/// system, which is not counted. Memory in use is not touched. The next phase takes new page faults. Until then, the process is as small as
/// it would be without the arena.
///
/// ```
/// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// zk_alloc::release();
/// ```
pub fn release() -> usize {
    os::trim_heap();
    trim(Purge::Now)
}

/// Purges all free memory of the arena. Returns how many bytes it purged.
pub(crate) fn trim(how: Purge) -> usize {
    arena::get().map_or(0, |arena| arena::purge::trim(arena, 0, how))
}

/// Installs a handler for the signal of `ZK_ALLOC_RELEASE_SIGNAL`, unless the program handles that signal. The handler purges all free
/// memory of the arena. Must not be called in a signal handler.
pub fn release_on_signal_if_set() {
    // The same as `release`, but without trimming the C library's heap, whose lock the interrupted code may hold. The arena has no lock. If
    // the signal interrupted its thread in the thread's cache or in a decay tick, the purge skips that cache or tick, as a request in a
    // signal handler does.
    config::on_signal_of(&config::RELEASE_SIGNAL, || _ = trim(Purge::Now));
}

/// Lets the system take the arena's free memory when memory runs short (`MADV_FREE`), and returns how many bytes it may take. Until the
/// system does so, the next phase takes no page faults for that memory, and RSS as the kernel counts it does not fall. There is one
/// exception: if a part of a huge page is in use, Linux from 6.12 on immediately takes the small pages in it that contain only zeroes.
/// `stats()` counts lazily purged memory as resident until it is purged or used again.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// println!("the system may take {} bytes", zk_alloc::purge_lazily());
/// ```
pub fn purge_lazily() -> usize {
    trim(Purge::Lazily)
}

/// Does the same as [`purge_lazily`], under its name in the crate zk-nalloc.
pub fn soften() -> usize {
    purge_lazily()
}

/// Prefaults `bytes` of the arena before the first phase, on several threads (with `MADV_POPULATE_WRITE`, if the kernel has it). Returns
/// how many bytes the first phase then finds resident. If a prover has one huge buffer, pass its size: the memory is then in the zone for
/// requests of that size. Returns 0 if there is no arena, or if the system refused.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// let resident_bytes = zk_alloc::reserve(32 << 20); // at start-up; the first phase then finds its pages
/// assert!(resident_bytes <= zk_alloc::stats().resident_bytes);
/// ```
pub fn reserve(bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    let arena = open_arena();
    background::start_if_set();
    arena.map_or(0, |arena| {
        let resident = arena.populate(bytes);
        accounts::keep_reserved(resident);
        accounts::check_memory_limit();
        resident
    })
}

/// Opens the arena with the program's settings. The global allocator passes them with its first request, so this makes a request. If the
/// global allocator is not ours, the defaults apply.
pub(crate) fn open_arena() -> Option<&'static Arena> {
    drop(black_box(Box::new(0u8)));
    config::init_settings(&Settings::new());
    arena::open()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_purged_by_time_under_retain_for_and_by_default_in_resident_mode() {
        let eight_seconds = || Duration::from_secs(8);
        for (policy, is_resident, expected_ns) in [
            (DEFAULT, false, 0),
            (DEFAULT, true, 8_000_000_000),
            (BYTES, true, 0),
            (FOR_NS | 500, true, 500),
            (FOR_NS | 500, false, 500),
            (FOR_NS, true, 1),
            (FOR_NS | !TAG_MASK, false, !TAG_MASK),
        ] {
            assert_eq!(window_ns(policy, is_resident, eight_seconds), expected_ns, "{policy:#x}, {is_resident}");
        }
        assert_eq!(window_ns(DEFAULT, true, || Duration::MAX), 0);
        assert_eq!(window_ns(DEFAULT, true, || Duration::ZERO), 1);
    }

    /// A thread ends the last phase, and another thread begins one before the first thread sets the limit between phases. Without the
    /// second check, that limit would apply in the new phase.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_phase_that_began_while_the_last_one_ended_keeps_memory_that_it_frees() {
        // The limit is process-wide, so this runs in a forked child, where no other test runs.
        let code = os::forks::in_a_fork(|| {
            gate::phase_began();
            keep_in_phase();
            keep_between_phases(7);
            let in_phase = accounts::retained_limit();
            gate::phase_ended();
            keep_between_phases(7);
            u8::from((in_phase, accounts::retained_limit()) != (usize::MAX, 7))
        });
        assert_eq!(code, 0);
    }
}
