//! Purging the free memory of all zones, also to make room for a request.

pub(crate) mod budget;
pub(crate) mod decay;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::arena::pages::residency::Allowance;
use crate::arena::pages::zone::Shortage;
use crate::arena::purge::budget::{Limit, resident_bytes};
use crate::arena::purge::decay::{Caller, DecayState, HeapSnapshot, Marks, Policy, Verdict};
use crate::arena::{Arena, Contents, Purge, cached_bytes, get};
use crate::{counters, open_phases, os, tuning};

impl Arena {
    /// As [`alloc`](Self::alloc), and purges free memory elsewhere to make room.
    #[cold]
    pub(crate) fn alloc_within_budget(&self, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        if self.empty_large_caches(size) {
            if let Ok(at) = self.try_alloc(size, align, contents, Limit::Peak) {
                return Some(at);
            }
        }
        match self.try_alloc(size, align, contents, Limit::Cap) {
            Ok(at) => {
                // After the allocation, so that its resident pages are not purged. Its other pages are only accounted so far.
                let gone = self.purge_for(size, budget::peak_limit(0).saturating_sub(tuning::purge_ahead_bytes()));
                budget::purged_at_peak(gone, self.served_bytes());
                Some(at)
            }
            Err(Shortage::Full | Shortage::Refused) => None,
            Err(Shortage::OverBudget) => {
                if self.ask_for_untouched(size) {
                    if let Ok(at) = self.try_alloc(size, align, contents, Limit::Cap) {
                        return Some(at);
                    }
                }
                if !budget::may_make_room(size, cached_bytes()) {
                    return None;
                }
                let limit = budget::max_bytes().saturating_sub(size.checked_add(tuning::purge_ahead_bytes())?);
                // A block in a thread cache keeps its slab alive, which may lie where a run would fit.
                let cached_before = cached_bytes();
                self.size_classes.empty_some_caches(self.slab_zone(), size);
                let gone = self.purge_for(size, limit);
                let at = self.try_alloc(size, align, contents, Limit::Cap).ok();
                if at.is_none() && gone == 0 && cached_bytes() >= cached_before {
                    budget::cap_holds(cached_bytes());
                }
                at
            }
        }
    }

    /// Asks the kernel how much of the accounted memory nobody has touched yet, so that the cap does not count it. Asks rarely, and about
    /// [a part](tuning::ask_bytes) of the memory at a time. Returns whether that may make room for `size` bytes.
    fn ask_for_untouched(&self, size: usize) -> bool {
        if size > budget::max_bytes() || !budget::may_ask_for_untouched() {
            return false;
        }
        let mut left = tuning::ask_bytes();
        let untouched: usize = self.region.zones().iter().rev().map(|zone| zone.untouched_bytes(&mut left)).sum();
        budget::set_untouched(untouched);
        untouched > 0
    }

    /// Purges free memory for a request of `brought_bytes`, until at most `limit_bytes` are resident or the request has done its part.
    /// Returns the bytes purged. Notes it if there was nothing to purge.
    pub(crate) fn purge_for(&self, brought_bytes: usize, limit_bytes: usize) -> usize {
        let surplus = resident_bytes().saturating_sub(limit_bytes);
        let gone = self.trim_within(&mut Allowance::of_request(brought_bytes, surplus), Purge::Now);
        if gone == 0 && surplus > 0 {
            budget::nothing_left_to_purge();
        }
        gone
    }

    /// Empties thread caches, some at a time, if they hold much of the memory in use, so that their slabs return to the zone. Each cache costs
    /// its thread a refill, so the program must request as much memory again before a cache's next time. Returns whether some were emptied.
    fn empty_large_caches(&self, brought_bytes: usize) -> bool {
        /// Bytes served when the caches were last emptied.
        static LAST_BYTES: AtomicU64 = AtomicU64::new(0);
        let much = counters::used_bytes() / tuning::cached_part();
        let (last, now) = (LAST_BYTES.load(Ordering::Relaxed), self.served_bytes());
        let is_due = now >= last.saturating_add((much / self.size_classes.calls_to_empty(brought_bytes)) as u64)
            && self.size_classes.cached_bytes() >= much
            && LAST_BYTES.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            self.size_classes.empty_some_caches(self.slab_zone(), brought_bytes);
        }
        is_due
    }

    /// A request's part of a purge by time, down to `keep_bytes`. Returns the bytes purged. Thread caches are emptied only if nothing else is
    /// left.
    pub(crate) fn purge_by_tick(&self, keep_bytes: usize) -> usize {
        let gone = self.purge_for(0, keep_bytes);
        if gone > 0 || resident_bytes() <= keep_bytes {
            return gone;
        }
        self.release_cached();
        self.size_classes.empty_some_caches(self.slab_zone(), 0);
        self.purge_for(0, keep_bytes)
    }

    /// Purges free memory until at most `keep_bytes` are resident, or no free memory is. Returns the bytes purged.
    pub(crate) fn trim(&self, keep_bytes: usize, how: Purge) -> usize {
        if how == Purge::Lazily {
            // Lazily purged memory stays accounted, so the resident size does not tell when to stop.
            self.size_classes.empty_caches(self.slab_zone());
            self.release_cached();
            return self.trim_zones(&mut Allowance::unlimited(resident_bytes().saturating_sub(keep_bytes)), how);
        }
        let surplus = || Allowance::unlimited(resident_bytes().saturating_sub(keep_bytes));
        self.release_cached();
        let mut gone = self.trim_zones(&mut surplus(), Purge::Now);
        if surplus().bytes > 0 {
            if keep_bytes == 0 {
                self.size_classes.vacate_caches(self.slab_zone());
            } else {
                self.size_classes.empty_caches(self.slab_zone());
            }
            gone += self.trim_within(&mut surplus(), Purge::Now);
        }
        gone
    }

    /// Purges free pages of slabs, which may free slabs, and free runs.
    fn trim_within(&self, allowance: &mut Allowance, how: Purge) -> usize {
        let runs = self.trim_zones(allowance, how);
        let pages = self.size_classes.purge(self.slab_zone(), allowance);
        runs + pages + if pages > 0 { self.trim_zones(allowance, how) } else { 0 }
    }

    fn trim_zones(&self, allowance: &mut Allowance, how: Purge) -> usize {
        self.region.zones().iter().rev().map(|zone| zone.trim(allowance, how)).sum()
    }

    /// Frees the runs in thread caches.
    pub(crate) fn release_cached(&self) {
        for zone in self.region.zones() {
            zone.release_cached();
        }
    }

    // The decay ticks of the program's threads and of the background thread, which purge free memory by time.

    /// The facts of a tick.
    fn snapshot(&self) -> HeapSnapshot {
        HeapSnapshot {
            resident_bytes: resident_bytes(),
            used_bytes: counters::used_bytes(),
            cached_bytes: cached_bytes(),
            peak_bytes: counters::take_seen_peak_bytes(),
            served_bytes: self.served_bytes(),
            is_in_phase: open_phases::is_any(),
        }
    }

    /// DecayState how much memory may be purged. The background thread purges it, and a thread of the program purges a part.
    fn tick(&self, state: &mut DecayState, by: Caller) -> Verdict {
        let now_ns = os::monotonic_ns();
        if let Some(keep_bytes) = state.unfinished(now_ns).filter(|_| by == Caller::Program) {
            if open_phases::is_any() {
                state.stop_purge();
            } else {
                self.purge_part(state, keep_bytes);
            }
            return Verdict::Wait;
        }
        let snapshot = self.snapshot();
        let verdict = state.take_in(snapshot, now_ns, by);
        if let Verdict::Keep(keep_bytes) = verdict {
            match by {
                Caller::Background => state.purged(snapshot.marks(), self.trim(keep_bytes, Purge::Now)),
                Caller::Program => self.purge_part(state, keep_bytes),
            }
        }
        verdict
    }

    /// Does a request's part of a purge down to `keep_bytes`.
    fn purge_part(&self, state: &mut DecayState, keep_bytes: usize) {
        let gone_bytes = self.purge_by_tick(keep_bytes);
        let marks = Marks {
            resident_bytes: resident_bytes(),
            live_bytes: counters::used_bytes().saturating_sub(cached_bytes()),
        };
        state.purged_part(keep_bytes, marks, gone_bytes);
    }
}

/// From now on, free memory is purged by this policy; see `decay`. The call neither waits nor allocates.
pub(crate) fn follow(policy: Policy) {
    decay::follow(policy, || {
        run_tick(Caller::Program);
    });
}

/// DecayState; `None` without an arena, or while another thread state.
fn run_tick(by: Caller) -> Option<Verdict> {
    let arena = get()?;
    decay::with_state(|state| arena.tick(state, by))
}

/// DecayState, if a tick is due, and at the memory of the control group. Returns how long the background thread may sleep before the next tick;
/// `None` if there is nothing to look at until the program wakes it.
pub(crate) fn tick_in_background() -> Option<Duration> {
    if decay::time_to_tick().is_some_and(|time| time.is_zero()) {
        let verdict = run_tick(Caller::Background);
        decay::ticked(verdict == Some(Verdict::Rest));
    }
    if !open_phases::is_any() {
        relieve();
    }
    [decay::time_to_tick(), time_to_watch()].into_iter().flatten().min()
}

// Memory pressure: free memory is purged while a control group of the process comes near to its memory limit.

/// When the control group's files may be read again, by [`os::monotonic_ns`].
static NEXT_NS: AtomicU64 = AtomicU64::new(0);
static PURGES: AtomicU64 = AtomicU64::new(0);
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// Whether to read the control group's files: only if the group had a limit when the process started, and not in a sandbox, which may end
/// the process for it.
fn is_watching() -> bool {
    !os::is_in_sandbox() && os::host().limits.is_memory_grouped
}

/// Purges free memory if a control group is short of memory. Call it while no phase is open. Waits for nobody.
pub(crate) fn relieve() {
    if !is_watching() {
        return;
    }
    let Some(arena) = get() else { return };
    let free_bytes = resident_bytes().saturating_sub(counters::used_bytes());
    let (now, next) = (os::monotonic_ns(), NEXT_NS.load(Ordering::Relaxed));
    if free_bytes == 0 || now < next {
        return;
    }
    let after = now + tuning::watch_ms() as u64 * 1_000_000;
    if NEXT_NS.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let missing_bytes = os::missing_memory(tuning::spare_part(), tuning::stall_percent());
    if missing_bytes == 0 {
        return;
    }
    let gone_bytes = arena.trim(resident_bytes().saturating_sub(missing_bytes), Purge::Now);
    if gone_bytes == 0 {
        return;
    }
    PURGES.fetch_add(1, Ordering::Relaxed);
    if !IS_TOLD.swap(true, Ordering::Relaxed) {
        os::warn(format_args!(
            "the control group is short of memory: purged {gone_bytes} bytes of free memory; from now on this is only counted in stats()"
        ));
    }
}

/// How often free memory was purged because a control group was short of memory.
pub(crate) fn pressure_purges() -> u64 {
    PURGES.load(Ordering::Relaxed)
}

/// How long the background thread may sleep before it looks again; `None` if it need not look.
pub(crate) fn time_to_watch() -> Option<Duration> {
    is_watching().then(|| Duration::from_millis(tuning::rest_ms() as u64))
}
