//! Purging by time: resident memory follows the peak live size of the last seconds. `window` says how much may stay; this module decides
//! which thread state, and when.
//!
//! The program's own threads run the decay ticks, on the allocator's slow paths ([`tick`]). While the process has a background thread, that thread ticks
//! instead. A process that is idle and has no such thread keeps its memory.
//!
//! One thread ticks at a time. A second thread skips its tick, and so does a signal handler that interrupted one. The word that guards
//! this holds the [generation](os::process_generation) of the process, so that a forked child ignores a thread that it does not have.
#![allow(unsafe_code, reason = "a cell that one thread at a time looks at")]

use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use super::window::{Caller, Seen, TICKS, Window};
use crate::os::{self, Parking};
use crate::tuning;

/// The least time between two state, in nanoseconds.
fn min_tick_ns() -> u64 {
    tuning::min_decay_tick_us() as u64 * 1000
}

/// The length of the window, in nanoseconds; 0 as long as nothing is purged by time.
static WINDOW_NS: AtomicU64 = AtomicU64::new(0);
/// Whether an idle process purges all free memory.
static EMPTIES: AtomicBool = AtomicBool::new(false);
/// When the next tick is due, by [`os::monotonic_ns`].
static NEXT_TICK_NS: AtomicU64 = AtomicU64::new(0);
/// The function that a thread of the program calls for a tick.
static TICK: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// The generation of the process whose background thread ticks; 0 if none does.
static WATCHED: AtomicU64 = AtomicU64::new(0);
/// Where that thread sleeps.
static PARKER: Parking = Parking::new();

/// The rule by which free memory is purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// The length of the window, in nanoseconds; 0 purges nothing.
    pub(crate) window_ns: u64,
    /// Whether a process that idled for a window purges all free memory. This is set if phases say when the process works.
    pub(crate) empties: bool,
}

/// Changes the policy. A thread of the program calls `run` when a tick is due.
pub(super) fn follow(policy: Policy, run: fn()) {
    TICK.store(run as *mut (), Ordering::Relaxed);
    EMPTIES.store(policy.empties, Ordering::Relaxed);
    if WINDOW_NS.swap(policy.window_ns, Ordering::SeqCst) == 0 {
        // The ticks of an earlier policy are old.
        let _ = with_state(|state| *state = DecayState::new());
    }
    NEXT_TICK_NS.store(0, Ordering::Relaxed);
    // Without a window, no request would end the purge that another policy began.
    IS_UNFINISHED.store(false, Ordering::Relaxed);
    // The background thread may sleep for the tick of another window.
    wake_background();
}

/// DecayState, if a tick is due. Called at the end of a slow path.
#[inline]
pub(crate) fn tick() {
    if WINDOW_NS.load(Ordering::Acquire) != 0 {
        tick_if_due();
    }
}

#[cold]
fn tick_if_due() {
    let now = os::coarse_ns();
    let due = NEXT_TICK_NS.load(Ordering::Relaxed);
    if now < due || is_watched() {
        return;
    }
    let next = now.saturating_add(tick_ns());
    if NEXT_TICK_NS.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        let run = TICK.load(Ordering::Relaxed);
        // SAFETY: `follow` stored a function of this type before the window, which was seen with Acquire.
        let run = unsafe { std::mem::transmute::<*mut (), fn()>(run) };
        run();
    }
}

/// Whether requests have a purge to go on with.
static IS_UNFINISHED: AtomicBool = AtomicBool::new(false);

pub(super) fn is_unfinished() -> bool {
    IS_UNFINISHED.load(Ordering::Relaxed)
}

/// The time between two state, in nanoseconds.
fn tick_ns() -> u64 {
    (WINDOW_NS.load(Ordering::Relaxed) / TICKS as u64).max(min_tick_ns())
}

/// Whether this process has a background thread, which state.
pub(crate) fn is_watched() -> bool {
    let watched = WATCHED.load(Ordering::SeqCst);
    watched != 0 && watched == os::process_generation()
}

/// The background thread says that it begins or ends.
pub(crate) fn set_watched(is_watched: bool) {
    // SeqCst: a thread that changes the policy either sees this and wakes the background thread, or the background thread sees the change.
    WATCHED.store(if is_watched { os::process_generation() } else { 0 }, Ordering::SeqCst);
}

/// Where the background thread sleeps.
pub(crate) fn parker() -> &'static Parking {
    &PARKER
}

/// Wakes the background thread, where there is one.
fn wake_background() {
    if is_watched() {
        PARKER.wake();
    }
}

/// How long the background thread may sleep before its next tick; `None` without a window.
pub(super) fn time_to_tick() -> Option<Duration> {
    let is_on = WINDOW_NS.load(Ordering::SeqCst) != 0;
    is_on.then(|| Duration::from_nanos(NEXT_TICK_NS.load(Ordering::Relaxed).saturating_sub(os::monotonic_ns())))
}

/// The background thread looked. `is_at_rest` says that there is nothing to purge until the program does something.
pub(super) fn ticked(is_at_rest: bool) {
    let pause_ns = if is_at_rest { tick_ns().max(tuning::rest_ms() as u64 * 1_000_000) } else { tick_ns() };
    NEXT_TICK_NS.store(os::monotonic_ns().saturating_add(pause_ns), Ordering::Relaxed);
}

/// The ticks so far.
#[derive(Debug)]
pub(super) struct DecayState {
    window: Window,
    /// The time of the last tick, by [`os::monotonic_ns`]; 0 before the first.
    at_ns: u64,
    /// Bytes served by then, since the process started.
    served_bytes: u64,
    /// Resident and live bytes when a purge found nothing.
    last_failed_purge: Marks,
    /// The resident bytes that the program's threads purge down to, each request a part, until the next tick; `None` if there is nothing
    /// left to do.
    unfinished: Option<usize>,
}

/// The facts at a tick, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapSnapshot {
    pub(super) resident_bytes: usize,
    /// In use, thread caches included.
    pub(super) used_bytes: usize,
    pub(super) cached_bytes: usize,
    /// The peak live size since the last tick, as far as it was counted.
    pub(super) peak_bytes: usize,
    /// Served since the process started.
    pub(super) served_bytes: u64,
    /// Whether a phase is open, in which nothing is purged.
    pub(super) is_in_phase: bool,
}

/// What changes if there is something new to purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) resident_bytes: usize,
    /// Memory in a thread cache is free, although it counts as used.
    pub(super) live_bytes: usize,
}

impl Marks {
    const NONE: Self = Self { resident_bytes: 0, live_bytes: 0 };
}

impl HeapSnapshot {
    pub(super) fn marks(&self) -> Marks {
        Marks { resident_bytes: self.resident_bytes, live_bytes: self.used_bytes.saturating_sub(self.cached_bytes) }
    }
}

/// The result of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Purge nothing now.
    Wait,
    /// Purge nothing until the program does something.
    Rest,
    /// Purge down to this many resident bytes.
    Keep(usize),
}

impl DecayState {
    const fn new() -> Self {
        Self { window: Window::new(0), at_ns: 0, served_bytes: 0, last_failed_purge: Marks::NONE, unfinished: None }
    }

    /// Takes a tick in.
    pub(super) fn take_in(&mut self, snapshot: HeapSnapshot, now_ns: u64, by: Caller) -> Verdict {
        let is_first = self.at_ns == 0;
        let passed = if is_first { 1 } else { now_ns.saturating_sub(self.at_ns) / tick_ns() };
        let served_bytes = snapshot.served_bytes.saturating_sub(self.served_bytes);
        // Threads that live on their caches use that memory, although no counter says so.
        let is_cache_used = served_bytes >= (snapshot.cached_bytes / 8).max(1) as u64;
        let live_now_bytes = snapshot.used_bytes.saturating_sub(if is_cache_used { 0 } else { snapshot.cached_bytes });
        let seen = Seen { live_bytes: live_now_bytes.max(snapshot.peak_bytes), live_now_bytes, served_bytes };
        (self.at_ns, self.served_bytes, self.unfinished) = (now_ns.max(1), snapshot.served_bytes, None);
        IS_UNFINISHED.store(false, Ordering::Relaxed);
        if is_first {
            self.window = Window::new(live_now_bytes);
        }
        let ticks = usize::try_from(passed).unwrap_or(usize::MAX);
        let keep_bytes = self.window.take_in(seen, ticks, by);
        keep_bytes.map_or(Verdict::Wait, |keep_bytes| self.verdict(snapshot, keep_bytes, ticks, by))
    }

    /// The purge that the last tick began, if it is not time for the next tick yet.
    pub(super) fn unfinished(&self, now_ns: u64) -> Option<usize> {
        self.unfinished.filter(|_| now_ns.saturating_sub(self.at_ns) < tick_ns())
    }

    /// Ends the purge that the last tick began.
    pub(super) fn stop_purge(&mut self) {
        self.unfinished = None;
        IS_UNFINISHED.store(false, Ordering::Relaxed);
    }

    /// A request did its part of a purge down to `keep_bytes`.
    pub(super) fn purged_part(&mut self, keep_bytes: usize, marks: Marks, gone_bytes: usize) {
        self.purged(marks, gone_bytes);
        self.unfinished = Some(keep_bytes).filter(|&keep_bytes| gone_bytes > 0 && marks.resident_bytes > keep_bytes);
        IS_UNFINISHED.store(self.unfinished.is_some(), Ordering::Relaxed);
        if self.unfinished.is_some() {
            NEXT_TICK_NS.store(os::monotonic_ns().saturating_add(min_tick_ns()), Ordering::Relaxed);
        }
    }

    fn verdict(&self, snapshot: HeapSnapshot, keep_bytes: usize, ticks: usize, by: Caller) -> Verdict {
        let is_over = self.window.is_over();
        let keep_bytes = if is_over && EMPTIES.load(Ordering::Relaxed) { 0 } else { keep_bytes };
        let surplus = snapshot.resident_bytes.saturating_sub(keep_bytes);
        if surplus > 0 && !snapshot.is_in_phase && self.last_failed_purge != snapshot.marks() {
            let at_once = match by {
                Caller::Background => surplus,
                Caller::Program => surplus.min(
                    (surplus / tuning::tick_part()).max(tuning::tick_bytes()) * ticks.clamp(1, tuning::ticks_at_once()),
                ),
            };
            return Verdict::Keep(snapshot.resident_bytes - at_once);
        }
        if is_over { Verdict::Rest } else { Verdict::Wait }
    }

    /// A purge freed `gone_bytes`, and left this.
    pub(super) fn purged(&mut self, left: Marks, gone_bytes: usize) {
        if gone_bytes == 0 {
            self.last_failed_purge = left;
        }
    }
}

/// See [`with_state`].
struct Shared(UnsafeCell<DecayState>);

// SAFETY: only `with_state` reaches into it, on one thread at a time.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared(UnsafeCell::new(DecayState::new()));
/// The generation of the process in which a thread ticks; 0 if none does.
static TICKING: AtomicU64 = AtomicU64::new(0);

/// Calls `run` with the ticks so far. Returns `None`, and does nothing, while another thread ticks or this one was interrupted in a tick.
pub(super) fn with_state<R>(run: impl FnOnce(&mut DecayState) -> R) -> Option<R> {
    let own = os::process_generation();
    let other = TICKING.load(Ordering::Relaxed);
    // A word of another generation belongs to a thread of the parent, which this process does not have.
    if other == own || TICKING.compare_exchange(other, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return None;
    }
    // SAFETY: this thread alone moved the word to this process's generation, and other threads stay out until it is 0 again. A parent's
    // thread may have left some of the numbers half updated, and any number is valid there.
    let result = run(unsafe { &mut *SHARED.0.get() });
    TICKING.store(0, Ordering::Release);
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn idle(resident_mib: usize, used_mib: usize) -> HeapSnapshot {
        let (resident_bytes, used_bytes) = (resident_mib * MIB, used_mib * MIB);
        HeapSnapshot { resident_bytes, used_bytes, cached_bytes: 0, peak_bytes: 0, served_bytes: 0, is_in_phase: false }
    }

    /// DecayState of a process that idled for more than a window, at the time of the last.
    fn idled(snapshot: HeapSnapshot, by: Caller) -> (DecayState, u64) {
        let mut state = DecayState::new();
        for tick in 1..=2 * TICKS as u64 {
            state.take_in(snapshot, tick * min_tick_ns(), by);
        }
        (state, 2 * TICKS as u64 * min_tick_ns())
    }

    /// A request purges a part, and the next ones go on until the tick is done, or nothing goes, or it is time for the next tick.
    #[test]
    fn what_a_request_leaves_of_a_purge_is_left_to_the_next() {
        let snapshot = idle(1_000, 100);
        let (mut state, now_ns) = idled(snapshot, Caller::Program);
        assert_eq!(state.unfinished(now_ns), None);
        let left = |resident_mib: usize| Marks { resident_bytes: resident_mib * MIB, live_bytes: 100 * MIB };
        for (resident_mib, gone, is_unfinished) in [(900, 8 * MIB, true), (800, MIB, true), (700, MIB, false)] {
            state.purged_part(700 * MIB, left(resident_mib), gone);
            assert_eq!(state.unfinished(now_ns).is_some(), is_unfinished, "{resident_mib}");
        }
        state.purged_part(700 * MIB, left(900), MIB);
        assert_eq!(state.unfinished(now_ns + min_tick_ns()), None, "the next tick decides anew");
        state.purged_part(700 * MIB, left(900), 0);
        assert_eq!(state.unfinished(now_ns), None, "nothing goes");
    }

    /// The program's threads purge a part of the surplus after each tick: the program may need the rest soon.
    #[test]
    fn a_thread_of_the_program_purges_a_part_and_the_background_thread_all() {
        for (resident_mib, stays_mib, stays_when_late_mib) in [(1_000, 775, 327), (200, 136, 103), (150, 103, 103)] {
            let snapshot = idle(resident_mib, 100);
            let keep_mib = |late_ticks: u64| {
                let (mut state, now_ns) = idled(snapshot, Caller::Program);
                match state.take_in(snapshot, now_ns + late_ticks * min_tick_ns(), Caller::Program) {
                    Verdict::Keep(keep) => keep / MIB,
                    other => panic!("{other:?}, {state:?}"),
                }
            };
            assert_eq!((keep_mib(1), keep_mib(3)), (stays_mib, stays_when_late_mib), "of {resident_mib}");
            let (mut state, now_ns) = idled(snapshot, Caller::Background);
            let verdict = state.take_in(snapshot, now_ns + min_tick_ns(), Caller::Background);
            assert_eq!(verdict, Verdict::Keep(100 * MIB + 100 * MIB / 32));
        }
    }

    #[test]
    fn nothing_is_purged_in_a_phase() {
        let snapshot = HeapSnapshot { is_in_phase: true, ..idle(1_000, 100) };
        let (mut state, now_ns) = idled(snapshot, Caller::Background);
        assert_eq!(state.take_in(snapshot, now_ns + min_tick_ns(), Caller::Background), Verdict::Rest);
        let snapshot = HeapSnapshot { is_in_phase: false, ..snapshot };
        assert!(matches!(state.take_in(snapshot, now_ns + 2 * min_tick_ns(), Caller::Background), Verdict::Keep(_)));
    }

    /// Memory that can't be purged, such as locked pages, must not be tried at each tick.
    #[test]
    fn what_does_not_go_is_not_tried_again_before_something_changes() {
        let snapshot = idle(1_000, 100);
        let (mut state, mut now_ns) = idled(snapshot, Caller::Background);
        let mut tick = |state: &mut DecayState, snapshot| {
            now_ns += min_tick_ns();
            state.take_in(snapshot, now_ns, Caller::Background)
        };
        state.purged(snapshot.marks(), 0);
        assert_eq!(tick(&mut state, snapshot), Verdict::Rest);
        assert!(matches!(tick(&mut state, idle(1_001, 100)), Verdict::Keep(_)));
        state.purged(idle(1_001, 100).marks(), MIB);
        assert!(matches!(tick(&mut state, idle(1_001, 100)), Verdict::Keep(_)));
        state.purged(idle(1_001, 100).marks(), 0);
        let freed_to_its_cache = HeapSnapshot { cached_bytes: 20 * MIB, ..idle(1_001, 100) };
        assert!(matches!(tick(&mut state, freed_to_its_cache), Verdict::Keep(_)));
    }

    /// Threads may live on their caches. That memory is in use, although it lies in the caches at each tick.
    #[test]
    fn what_threads_keep_counts_as_alive_while_they_take_it() {
        let of = |served_mib: u64| {
            let mut state = DecayState::new();
            let mut snapshot = HeapSnapshot { cached_bytes: 60 * MIB, ..idle(100, 100) };
            for tick in 1..=3 * TICKS as u64 {
                snapshot.served_bytes += served_mib << 20;
                state.take_in(snapshot, tick * min_tick_ns(), Caller::Background);
            }
            state.window.is_over()
        };
        let mut state = DecayState::new();
        let snapshot = HeapSnapshot { cached_bytes: 60 * MIB, ..idle(100, 100) };
        let verdicts =
            (1..=3 * TICKS as u64).map(|tick| state.take_in(snapshot, tick * min_tick_ns(), Caller::Background));
        assert_eq!(verdicts.last(), Some(Verdict::Keep(40 * MIB + 40 * MIB / 32)));
        assert!(!of(10) && of(0));
    }

    /// A lock that a fork or a signal could wedge would end all purging.
    #[cfg(target_os = "linux")]
    #[test]
    fn who_ticks_keeps_others_out_but_no_forked_child() {
        let child = with_state(|_| {
            assert!(with_state(|_| ()).is_none(), "as a signal handler would");
            // SAFETY: the child state, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let code = i32::from(with_state(|_| ()).is_none() || with_state(|_| ()).is_none());
                // SAFETY: ends the child, without destructors.
                unsafe { libc::_exit(code) };
            }
            child
        });
        let child = child.expect("nobody ticks");
        let mut status = -1;
        // SAFETY: a child of ours, and a place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(with_state(|_| ()).is_some());
    }
}
