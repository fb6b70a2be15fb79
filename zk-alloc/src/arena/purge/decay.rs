//! Purging by time: resident memory follows the peak live size of the last few seconds. [`Window`] decides how much may stay;
//! [`DecayState`] decides which thread purges, and when.
//!
//! The program's own threads run the decay ticks, on the allocator's slow paths ([`gate::tick`]). If the process has a background thread,
//! that thread runs them instead. An idle process without such a thread keeps its memory.
//!
//! Only one thread at a time runs a tick. A second thread skips its tick, and so does a signal handler that interrupted a tick. The word
//! that enforces this holds the [generation](os::process_generation) of the process, so that a forked child ignores a thread that exists
//! only in its parent.
#![allow(unsafe_code, reason = "a cell that one thread at a time accesses")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::arena::purge::run_tick;
use crate::{background, gate, os, tuning};

/// Returns the minimum time between two ticks, in nanoseconds.
fn min_tick_ns() -> u64 {
    tuning::min_decay_tick_us() as u64 * 1000
}

/// The length of the window, in nanoseconds; 0 while purging by time is off.
static WINDOW_NS: AtomicU64 = AtomicU64::new(0);
/// Whether an idle process purges all free memory.
static EMPTIES: AtomicBool = AtomicBool::new(false);
/// The time at which the next tick is due, by [`os::monotonic_ns`].
static NEXT_TICK_NS: AtomicU64 = AtomicU64::new(0);

/// The number of ticks per window.
pub(crate) const TICKS: usize = 8;
/// The number of windows whose peaks count while a process is busy. A proof may take longer than one window, and be at its peak only for a
/// moment.
const WINDOWS: usize = 8;

/// Sets the policy: memory above the peak live size of the last `window_ns` nanoseconds may be purged; 0 turns purging by time off. If
/// `empties` is set, all free memory is purged once the process has been idle for a window: for programs with phases, which show when they
/// work. The call neither waits nor allocates.
pub(crate) fn follow(window_ns: u64, empties: bool) {
    EMPTIES.store(empties, Ordering::Relaxed);
    if WINDOW_NS.swap(window_ns, Ordering::SeqCst) == 0 {
        // No ticks ran while purging by time was off, so the state is out of date.
        let _ = with_state(|state| *state = DecayState::new());
    }
    NEXT_TICK_NS.store(0, Ordering::Relaxed);
    // End any purge that the previous policy began: without a window, no request would finish it.
    IS_UNFINISHED.store(false, Ordering::Relaxed);
    gate::set_ticking(window_ns != 0);
    // The background thread may be asleep until the next tick of the previous policy.
    if background::is_running() {
        background::PARKER.wake();
    }
}

/// Runs a tick, if one is due. Called at the end of a slow path, while purging by time is on.
#[cold]
pub(crate) fn tick_if_due() {
    let now = os::coarse_ns();
    let due = NEXT_TICK_NS.load(Ordering::Relaxed);
    if now < due || background::is_running() {
        return;
    }
    let next = now.saturating_add(tick_ns());
    if NEXT_TICK_NS.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        run_tick(Caller::Program);
    }
}

/// Whether the purge of the last tick is unfinished: requests continue it.
static IS_UNFINISHED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_unfinished() -> bool {
    IS_UNFINISHED.load(Ordering::Relaxed)
}

/// Returns the time between two ticks, in nanoseconds.
fn tick_ns() -> u64 {
    (WINDOW_NS.load(Ordering::Relaxed) / TICKS as u64).max(min_tick_ns())
}

/// Returns how long the background thread may sleep before its next tick, or `None` if purging by time is off.
pub(crate) fn time_to_tick() -> Option<Duration> {
    let is_on = WINDOW_NS.load(Ordering::SeqCst) != 0;
    is_on.then(|| Duration::from_nanos(NEXT_TICK_NS.load(Ordering::Relaxed).saturating_sub(os::monotonic_ns())))
}

/// Schedules the background thread's next tick. `is_at_rest` is `true` if there is nothing to purge until the program is active again.
pub(crate) fn ticked(is_at_rest: bool) {
    let pause_ns = if is_at_rest { tick_ns().max(tuning::rest_ms() as u64 * 1_000_000) } else { tick_ns() };
    NEXT_TICK_NS.store(os::monotonic_ns().saturating_add(pause_ns), Ordering::Relaxed);
}

/// The state that one decay tick passes on to the next.
#[derive(Debug)]
pub(crate) struct DecayState {
    window: Window,
    /// The time of the last tick, by [`os::monotonic_ns`]; 0 before the first.
    at_ns: u64,
    /// Bytes served from the start of the process until the last tick.
    served_bytes: u64,
    /// The heap's sizes when a purge last freed nothing.
    last_failed_purge: Marks,
    /// The target of an unfinished purge, in resident bytes; `None` if the purge is done. Requests purge towards the target until the next
    /// tick.
    unfinished: Option<usize>,
}

/// The state of the heap at a tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeapSnapshot {
    pub(crate) resident_bytes: usize,
    /// Bytes in use, including those in thread caches.
    pub(crate) used_bytes: usize,
    pub(crate) cached_bytes: usize,
    /// The peak live size since the last tick, as far as it was recorded.
    pub(crate) peak_bytes: usize,
    /// Bytes served since the process started.
    pub(crate) served_bytes: u64,
    /// Whether a phase is open. Nothing is purged while one is.
    pub(crate) is_in_phase: bool,
}

/// Two sizes of the heap. After a purge that freed nothing, no thread purges again before one of them changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) resident_bytes: usize,
    /// Used bytes without those in thread caches, which are free although they count as used.
    pub(crate) live_bytes: usize,
}

impl Marks {
    /// Returns the marks of a heap with these sizes. `cached_bytes` of the used bytes are in thread caches.
    pub(crate) fn of(resident_bytes: usize, used_bytes: usize, cached_bytes: usize) -> Self {
        Self { resident_bytes, live_bytes: used_bytes.saturating_sub(cached_bytes) }
    }

    const NONE: Self = Self { resident_bytes: 0, live_bytes: 0 };
}

impl HeapSnapshot {
    pub(crate) fn marks(&self) -> Marks {
        Marks::of(self.resident_bytes, self.used_bytes, self.cached_bytes)
    }
}

/// The result of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Purge nothing now.
    Wait,
    /// Purge nothing now, and nothing later until the program is active again.
    Rest,
    /// Purge down to this many resident bytes.
    Keep(usize),
}

impl DecayState {
    const fn new() -> Self {
        Self { window: Window::new(0), at_ns: 0, served_bytes: 0, last_failed_purge: Marks::NONE, unfinished: None }
    }

    /// Records a tick, and decides what to purge.
    pub(crate) fn take_in(&mut self, snapshot: HeapSnapshot, now_ns: u64, by: Caller) -> Verdict {
        let is_first = self.at_ns == 0;
        let passed = if is_first { 1 } else { now_ns.saturating_sub(self.at_ns) / tick_ns() };
        let served_bytes = snapshot.served_bytes.saturating_sub(self.served_bytes);
        // While threads allocate from their caches, cached memory counts as live: they use it between ticks, although it is in the caches
        // at each tick.
        let is_cache_used = served_bytes >= (snapshot.cached_bytes / 8).max(1) as u64;
        let live_now_bytes = snapshot.used_bytes.saturating_sub(if is_cache_used { 0 } else { snapshot.cached_bytes });
        let seen = Seen { live_bytes: live_now_bytes.max(snapshot.peak_bytes), live_now_bytes, served_bytes };
        (self.at_ns, self.served_bytes) = (now_ns.max(1), snapshot.served_bytes);
        self.set_unfinished(None);
        if is_first {
            self.window = Window::new(live_now_bytes);
        }
        let ticks = usize::try_from(passed).unwrap_or(usize::MAX);
        let keep_bytes = self.window.take_in(seen, ticks, by);
        keep_bytes.map_or(Verdict::Wait, |keep_bytes| self.verdict(snapshot, keep_bytes, ticks, by))
    }

    /// Returns the target of the unfinished purge that the last tick began, or `None` if there is none or the next tick is due.
    pub(crate) fn unfinished(&self, now_ns: u64) -> Option<usize> {
        self.unfinished.filter(|_| now_ns.saturating_sub(self.at_ns) < tick_ns())
    }

    /// Makes the next requests continue the purge until `keep_bytes` are resident. `None` ends the purge that the last tick began.
    pub(crate) fn set_unfinished(&mut self, keep_bytes: Option<usize>) {
        self.unfinished = keep_bytes;
        IS_UNFINISHED.store(keep_bytes.is_some(), Ordering::Relaxed);
    }

    /// Records that a request did its part of a purge down to `keep_bytes`, and freed `gone_bytes`.
    pub(crate) fn purged_part(&mut self, keep_bytes: usize, marks: Marks, gone_bytes: usize) {
        self.purged(marks, gone_bytes);
        self.set_unfinished((gone_bytes > 0 && marks.resident_bytes > keep_bytes).then_some(keep_bytes));
        if self.unfinished.is_some() {
            NEXT_TICK_NS.store(os::monotonic_ns().saturating_add(min_tick_ns()), Ordering::Relaxed);
        }
    }

    fn verdict(&self, snapshot: HeapSnapshot, keep_bytes: usize, ticks: usize, by: Caller) -> Verdict {
        let is_over = self.window.is_over();
        let keep_bytes = if is_over && EMPTIES.load(Ordering::Relaxed) { 0 } else { keep_bytes };
        let surplus = snapshot.resident_bytes.saturating_sub(keep_bytes);
        if surplus > 0 && !snapshot.is_in_phase && self.last_failed_purge != snapshot.marks() {
            // The program may need the surplus soon, so a program thread purges only a part of it for this tick, and another part for each
            // missed tick, up to a limit.
            let part = (surplus / tuning::tick_part()).max(tuning::tick_bytes());
            let gone = match by {
                Caller::Background => surplus,
                Caller::Program => surplus.min(part * ticks.clamp(1, tuning::ticks_at_once())),
            };
            return Verdict::Keep(snapshot.resident_bytes - gone);
        }
        if is_over { Verdict::Rest } else { Verdict::Wait }
    }

    /// Records that a purge freed `gone_bytes`, and that the heap now has the sizes `left`.
    pub(crate) fn purged(&mut self, left: Marks, gone_bytes: usize) {
        if gone_bytes == 0 {
            self.last_failed_purge = left;
        }
    }
}

/// See [`with_state`].
struct Shared(UnsafeCell<DecayState>);

// SAFETY: only `with_state` accesses the cell, on one thread at a time.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared(UnsafeCell::new(DecayState::new()));
/// The generation of the process in which a thread is running a tick; 0 if none is.
static TICKING: AtomicU64 = AtomicU64::new(0);

/// Calls `run` with the decay state. Returns `None`, and does nothing, if another thread is running a tick, or if a signal handler calls
/// this function in the middle of one.
pub(crate) fn with_state<R>(run: impl FnOnce(&mut DecayState) -> R) -> Option<R> {
    let own = os::process_generation();
    let other = TICKING.load(Ordering::Relaxed);
    // If the word holds another generation, a thread that exists only in the parent stored it.
    if other == own || TICKING.compare_exchange(other, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return None;
    }
    // SAFETY: only this thread moved `TICKING` to this process's generation, and other threads stay out until it is 0 again. A thread of
    // the parent may have updated only some of the fields, but each value is valid by itself, and safety does not depend on how the values
    // combine.
    let result = run(unsafe { &mut *SHARED.0.get() });
    TICKING.store(0, Ordering::Release);
    Some(result)
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The peak live size since the last tick, as far as it was recorded.
    pub(crate) live_bytes: usize,
    /// The live size now.
    pub(crate) live_now_bytes: usize,
    /// Bytes served since the last tick.
    pub(crate) served_bytes: u64,
}

/// The kind of thread that runs a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The background thread, which runs ticks on time.
    Background,
    /// A thread of the program, which runs a tick only when it asks for memory. After a pause, it may be about to use memory that was
    /// superfluous during the pause.
    Program,
}

/// Decides how much may stay resident: the peak live size during the *window*, as seen at the ticks.
///
/// A process that repeatedly allocates the same memory, as a prover does, keeps its peak of that window, and neither faults nor purges.
/// When it needs less, or idles, the surplus may be purged.
#[derive(Debug)]
pub(crate) struct Window {
    ticks: [Seen; TICKS],
    /// The peaks of the windows before this one.
    before: [usize; WINDOWS],
    /// The number of the next tick: `next % TICKS` is its index in `ticks`, and `next / TICKS` is the index of its window in `before`.
    next: usize,
    /// The number of ticks that were missed in the pause before the last tick, and are not in `ticks` yet.
    missed: usize,
    /// Whether the process has allocated little since a pause.
    has_paused: bool,
}

impl Window {
    /// Creates the window of a busy process that had this live size at each tick.
    pub(crate) const fn new(live_bytes: usize) -> Self {
        let tick = Seen { live_bytes, live_now_bytes: live_bytes, served_bytes: u64::MAX / TICKS as u64 };
        Self { ticks: [tick; TICKS], before: [0; WINDOWS], next: 0, missed: 0, has_paused: false }
    }

    /// Records a tick that comes `ticks` tick intervals after the last one. Returns how many bytes may stay resident, or `None` if this
    /// tick must purge nothing.
    ///
    /// A late tick of a program thread ends a pause. If the program was busy before, this request may be the first of its next proof, so
    /// the tick purges nothing. If the program has allocated much by the next tick, the pause does not count.
    pub(crate) fn take_in(&mut self, seen: Seen, ticks: usize, by: Caller) -> Option<usize> {
        let missed = ticks.saturating_sub(1);
        if by == Caller::Background {
            // All activity counts as if it came at the end of the thread's sleep.
            self.push_idle(self.missed.max(missed), seen.live_now_bytes);
            self.push(seen);
            self.missed = 0;
            return Some(self.keep_bytes());
        }
        let was_pausing = self.missed > 0;
        if missed > 0 && !was_pausing && !self.has_paused && self.is_busy() {
            self.push(seen);
            self.missed = missed;
            return None;
        }
        if self.is_busy_with(seen.served_bytes, seen.live_bytes) {
            // The pause does not count: the process keeps its peak.
            self.push(seen);
            (self.missed, self.has_paused) = (missed, false);
        } else {
            self.push_idle(self.missed, seen.live_now_bytes);
            self.push(seen);
            self.push_idle(missed, seen.live_now_bytes);
            (self.missed, self.has_paused) = (0, self.has_paused || was_pausing);
        }
        Some(self.keep_bytes())
    }

    /// Records `ticks` ticks of an idle process.
    fn push_idle(&mut self, ticks: usize, live_bytes: usize) {
        let idle = Seen { live_bytes, live_now_bytes: live_bytes, served_bytes: 0 };
        (0..ticks.min(TICKS * WINDOWS)).for_each(|_| self.push(idle));
    }

    fn push(&mut self, seen: Seen) {
        self.ticks[self.next % TICKS] = seen;
        if self.next % TICKS == TICKS - 1 {
            self.before[self.next / TICKS] = self.high();
        }
        self.next = (self.next + 1) % (TICKS * WINDOWS);
    }

    fn high(&self) -> usize {
        self.ticks.iter().map(|tick| tick.live_bytes).max().unwrap_or(0)
    }

    fn last(&self) -> Seen {
        self.ticks[(self.next + TICKS - 1) % TICKS]
    }

    /// Returns the highest peak of all windows, which applies while the process is busy.
    fn highest(&self) -> usize {
        self.before.iter().fold(self.high(), |high, &before| high.max(before))
    }

    /// Whether the process allocated 1/64 of its memory or more in the window, and at least [`tuning::min_busy_bytes`]. A service that only
    /// answers small requests is not busy.
    pub(crate) fn is_busy(&self) -> bool {
        let served = self.ticks.iter().fold(0_u64, |sum, tick| sum.saturating_add(tick.served_bytes));
        self.is_busy_with(served, self.last().live_bytes)
    }

    /// Like [`is_busy`](Self::is_busy), for a process that allocated `served_bytes` and has `live_bytes` in use.
    fn is_busy_with(&self, served_bytes: u64, live_bytes: usize) -> bool {
        let spare = self.highest().saturating_sub(live_bytes);
        served_bytes >= (spare.max(live_bytes) / 64).max(tuning::min_busy_bytes()) as u64
    }

    /// Returns how many bytes may stay resident.
    fn keep_bytes(&self) -> usize {
        if self.is_busy() {
            let highest = self.highest();
            highest + (highest / 8).max(highest.min(tuning::busy_headroom_bytes()))
        } else {
            self.high() + self.high() / 32
        }
    }

    /// Whether the process is idle, and may keep little more than its live size. If so, the next ticks change nothing.
    pub(crate) fn is_over(&self) -> bool {
        let live = self.last().live_bytes;
        self.missed == 0 && !self.is_busy() && self.high() <= live + live / 64
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use super::Caller::{Background, Program};
    use super::*;

    const MIB: usize = 1 << 20;

    fn idle(resident_mib: usize, used_mib: usize) -> HeapSnapshot {
        let (resident_bytes, used_bytes) = (resident_mib * MIB, used_mib * MIB);
        HeapSnapshot { resident_bytes, used_bytes, cached_bytes: 0, peak_bytes: 0, served_bytes: 0, is_in_phase: false }
    }

    /// Runs a tick, `intervals` tick intervals after the last one.
    fn tick(state: &mut DecayState, snapshot: HeapSnapshot, intervals: u64, by: Caller) -> Verdict {
        state.take_in(snapshot, state.at_ns + intervals * min_tick_ns(), by)
    }

    /// Returns the state of a process that idled for two windows.
    fn idled(snapshot: HeapSnapshot, by: Caller) -> DecayState {
        let mut state = DecayState::new();
        (0..2 * TICKS).for_each(|_| _ = tick(&mut state, snapshot, 1, by));
        state
    }

    /// A request purges a part. The next requests continue until the target is reached, a purge frees nothing, or the next tick is due.
    #[test]
    fn requests_continue_an_unfinished_purge_until_the_next_tick() {
        let mut state = idled(idle(1_000, 100), Program);
        let now_ns = state.at_ns;
        assert_eq!(state.unfinished(now_ns), None);
        let left = |resident_mib: usize| Marks { resident_bytes: resident_mib * MIB, live_bytes: 100 * MIB };
        for (resident_mib, gone, is_unfinished) in [(900, 8 * MIB, true), (800, MIB, true), (700, MIB, false)] {
            state.purged_part(700 * MIB, left(resident_mib), gone);
            assert_eq!(state.unfinished(now_ns).is_some(), is_unfinished, "{resident_mib}");
        }
        state.purged_part(700 * MIB, left(900), MIB);
        assert_eq!(state.unfinished(now_ns + min_tick_ns()), None, "the next tick decides anew");
        state.purged_part(700 * MIB, left(900), 0);
        assert_eq!(state.unfinished(now_ns), None, "the last purge freed nothing");
    }

    /// The program's threads purge a part of the surplus after each tick: the program may need the rest soon.
    #[test]
    fn a_program_thread_purges_a_part_of_the_surplus_and_the_background_thread_all_of_it() {
        for (resident_mib, stays_mib, stays_when_late_mib) in [(1_000, 775, 327), (200, 136, 103), (150, 103, 103)] {
            let snapshot = idle(resident_mib, 100);
            let keep_mib = |late_ticks: u64| {
                let mut state = idled(snapshot, Program);
                match tick(&mut state, snapshot, late_ticks, Program) {
                    Verdict::Keep(keep) => keep / MIB,
                    other => panic!("{other:?}, {state:?}"),
                }
            };
            assert_eq!((keep_mib(1), keep_mib(3)), (stays_mib, stays_when_late_mib), "of {resident_mib}");
            let verdict = tick(&mut idled(snapshot, Background), snapshot, 1, Background);
            assert_eq!(verdict, Verdict::Keep(100 * MIB + 100 * MIB / 32));
        }
    }

    #[test]
    fn nothing_is_purged_in_a_phase() {
        let snapshot = HeapSnapshot { is_in_phase: true, ..idle(1_000, 100) };
        let mut state = idled(snapshot, Background);
        assert_eq!(tick(&mut state, snapshot, 1, Background), Verdict::Rest);
        assert!(matches!(tick(&mut state, idle(1_000, 100), 1, Background), Verdict::Keep(_)));
    }

    /// Ticks must not repeatedly try to purge memory that can't be purged, such as locked pages.
    #[test]
    fn a_purge_that_freed_nothing_is_not_repeated_before_something_changes() {
        let snapshot = idle(1_000, 100);
        let mut state = idled(snapshot, Background);
        let tick = |state: &mut DecayState, snapshot| tick(state, snapshot, 1, Background);
        state.purged(snapshot.marks(), 0);
        assert_eq!(tick(&mut state, snapshot), Verdict::Rest);
        assert!(matches!(tick(&mut state, idle(1_001, 100)), Verdict::Keep(_)));
        state.purged(idle(1_001, 100).marks(), MIB);
        assert!(matches!(tick(&mut state, idle(1_001, 100)), Verdict::Keep(_)));
        state.purged(idle(1_001, 100).marks(), 0);
        let freed_to_its_cache = HeapSnapshot { cached_bytes: 20 * MIB, ..idle(1_001, 100) };
        assert!(matches!(tick(&mut state, freed_to_its_cache), Verdict::Keep(_)));
    }

    /// Threads may allocate only from their caches. That memory is in use, although it is in the caches at each tick.
    #[test]
    fn cached_memory_counts_as_live_while_threads_allocate_from_their_caches() {
        let of = |served_mib: u64| {
            let mut state = DecayState::new();
            let mut snapshot = HeapSnapshot { cached_bytes: 60 * MIB, ..idle(100, 100) };
            let verdicts = (0..3 * TICKS).map(|_| {
                snapshot.served_bytes += served_mib << 20;
                tick(&mut state, snapshot, 1, Background)
            });
            (verdicts.last(), state.window.is_over())
        };
        assert_eq!(of(0), (Some(Verdict::Keep(40 * MIB + 40 * MIB / 32)), true));
        assert!(!of(10).1);
    }

    /// If a fork or a signal could leave the lock held, purging would stop for good.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_tick_excludes_other_ticks_but_not_those_of_a_forked_child() {
        let code = with_state(|_| {
            assert!(with_state(|_| ()).is_none(), "as a signal handler would");
            os::forks::in_a_fork(|| u8::from(with_state(|_| ()).is_none() || with_state(|_| ()).is_none()))
        });
        assert_eq!(code, Some(0));
        assert!(with_state(|_| ()).is_some());
    }

    fn seen(live_mib: usize, served_kib: u64) -> Seen {
        let live_bytes = live_mib * MIB;
        Seen { live_bytes, live_now_bytes: live_bytes, served_bytes: served_kib << 10 }
    }

    /// How many MiB may stay if a tick must purge nothing.
    const ALL: usize = usize::MAX;

    /// Runs steps of equal ticks. Each step gives the number of ticks and, for each tick, the live MiB, the KiB served, the tick intervals
    /// since the previous tick, and how many MiB may stay.
    fn run(mut window: Window, by: Caller, steps: &[(usize, usize, u64, usize, RangeInclusive<usize>)]) -> Window {
        for (count, live_mib, served_kib, intervals, mib) in steps {
            let bytes = mib.start().saturating_mul(MIB)..=mib.end().saturating_mul(MIB);
            for _ in 0..*count {
                let keep = window.take_in(seen(*live_mib, *served_kib), *intervals, by).unwrap_or(ALL);
                assert!(bytes.contains(&keep), "{keep} bytes may stay, not {mib:?} MiB: {steps:?}, {window:?}");
            }
        }
        window
    }

    #[test]
    fn a_busy_process_keeps_its_peak_for_some_windows_and_then_shrinks() {
        for by in [Background, Program] {
            let window = run(Window::new(0), by, &[(1, 800, 800_000, 1, 800..=900)]);
            let window = run(window, by, &[(TICKS * WINDOWS - 1, 100, 50_000, 1, 800..=900)]);
            // The highest peak is now too long ago to count.
            run(window, by, &[(2 * TICKS - 1, 100, 50_000, 1, 0..=900), (1, 100, 50_000, 1, 100..=113)]);
        }
    }

    /// Tests services that allocate nothing, and services that allocate a little now and then. For the smallest service, a little is a
    /// large part of its memory.
    #[test]
    fn an_idle_process_keeps_little_more_than_its_live_size() {
        for (before_mib, live_mib, served_kib) in [(700, 200, 0), (700, 200, 100), (13, 4, 100), (200, 0, 0)] {
            let mut window = Window::new(before_mib * MIB);
            for _ in 0..TICKS {
                assert!(!window.is_over() && window.keep_bytes() >= before_mib * MIB, "{window:?}");
                window.push(seen(live_mib, served_kib));
            }
            assert!(window.is_over(), "{window:?}");
            window.push(seen(live_mib, served_kib));
            let live_bytes = live_mib * MIB;
            assert!((live_bytes..=live_bytes + live_bytes / 20).contains(&window.keep_bytes()), "{window:?}");
            assert!(window.is_over(), "{window:?}");
        }
    }

    /// Returns the window of a prover that has just worked, with a peak of 1,000 MiB. A tenth of the peak is live now.
    fn after_work() -> Window {
        let steps = [(3 * TICKS, 1_000, 100_000, 1, 1_000..=2_000), (1, 100, 100_000, 1, 1_000..=2_000)];
        run(Window::new(0), Program, &steps)
    }

    /// A program thread notices a pause only when it is over. A purge at that moment would take the memory that the next proof needs.
    #[test]
    fn a_prover_keeps_its_peak_over_a_pause() {
        for pause in [2, TICKS, 1_000 * TICKS] {
            let window =
                run(after_work(), Program, &[(1, 101, 10, pause, ALL..=ALL), (1, 150, 50_000, 1, 1_000..=2_000)]);
            // The next proofs are so short that a pause ends before the next tick.
            run(window, Program, &[(1, 150, 50_000, pause, ALL..=ALL), (3, 1_000, 50_000, pause, 1_000..=2_000)]);
        }
    }

    /// A service that allocates a little every few ticks pauses between any two requests. It must still shrink.
    #[test]
    fn a_process_that_allocates_little_and_rarely_shrinks() {
        for pause in [1, 2, 3, 5, TICKS, 100 * TICKS] {
            run(after_work(), Program, &[(3 * TICKS - 1, 100, 10, pause, 0..=ALL), (1, 100, 10, pause, 0..=105)]);
        }
    }

    /// If ticks are due more often than requests come, each tick ends a pause. The surplus must be purged even then.
    #[test]
    fn a_busy_process_whose_ticks_are_always_late_shrinks() {
        run(after_work(), Program, &[(2 * TICKS * WINDOWS - 1, 10, 500, 4, 0..=ALL), (1, 10, 500, 4, 0..=20)]);
    }

    /// With nothing to purge, the background thread sleeps longer. The activity that it finds afterwards must count as recent, not as
    /// spread over its sleep.
    #[test]
    fn a_proof_that_began_while_the_background_thread_rested_keeps_its_memory() {
        let window = run(after_work(), Background, &[(2 * TICKS, 100, 0, 1, 100..=2_000)]);
        assert!(window.is_over());
        run(window, Background, &[(1, 700, 300_000, 20 * TICKS, 780..=2_000)]);
    }
}
