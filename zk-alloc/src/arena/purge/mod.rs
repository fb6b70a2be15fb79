//! Purges the free memory of all zones, by policy or to make room for a request.

pub(crate) mod decay;
pub(crate) mod rhythm;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::accounts::{Limit, resident_bytes};
use crate::arena::pages::memory::Allowance;
use crate::arena::pages::zone::Shortage;
use crate::arena::purge::decay::{Caller, DecayState, HeapSnapshot, Marks, Verdict};
use crate::arena::{Arena, Contents, Purge, cached_bytes, get};
use crate::{accounts, gate, os, tuning};

/// Like [`Arena::alloc`], for a request that a limit stopped: purges other free memory to make room.
#[cold]
pub(crate) fn alloc_within_budget(arena: &Arena, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
    if empty_large_caches(arena, size) {
        if let Ok(at) = arena.try_alloc(size, align, contents, Limit::Peak) {
            return Some(at);
        }
    }
    // If there can't be enough free memory, skip the search: a failed search takes as long as a successful one.
    let served = if accounts::is_full(size) {
        Err(Shortage::OverBudget)
    } else {
        arena.try_alloc(size, align, contents, Limit::Cap)
    };
    match served {
        Ok(at) => {
            // The purge comes after the allocation, so that it spares the resident pages that the allocation took. The allocation's other
            // pages are counted as resident, but are not in memory yet.
            let gone = purge_for(arena, size, accounts::peak_limit(0).saturating_sub(tuning::purge_ahead_bytes()));
            accounts::purged_at_peak(gone, arena.served_bytes());
            Some(at)
        }
        Err(Shortage::Full | Shortage::Refused) => None,
        // No purge can make room for this request.
        Err(Shortage::OverBudget) if size > accounts::max_bytes() => None,
        Err(Shortage::OverBudget) => {
            if ask_for_untouched(arena) {
                if let Ok(at) = arena.try_alloc(size, align, contents, Limit::Cap) {
                    return Some(at);
                }
            }
            if !accounts::may_make_room(size, cached_bytes()) {
                return None;
            }
            let bytes = size.checked_add(tuning::purge_ahead_bytes())?;
            let limit = accounts::max_bytes().saturating_sub(bytes);
            // A cached block keeps its slab in use, and the slab may occupy the only place where the run would fit. So empty some caches
            // first.
            let cached_before = cached_bytes();
            arena.size_classes.empty_some_caches(arena.slab_zone(), size);
            let gone = purge_for(arena, size, limit);
            let at = arena.try_alloc(size, align, contents, Limit::Cap).ok();
            if at.is_none() && gone == 0 && cached_bytes() >= cached_before {
                accounts::cap_holds(cached_bytes());
            }
            at
        }
    }
}

/// Asks the kernel how much of the memory that is counted as resident is untouched, so that untouched memory does not count towards the
/// cap. Asks rarely, and about [a part](tuning::ask_bytes) of the memory at a time. Returns whether any is untouched, in which case the
/// request may fit now.
fn ask_for_untouched(arena: &Arena) -> bool {
    if !accounts::may_ask_for_untouched() {
        return false;
    }
    let mut left = tuning::ask_bytes();
    let untouched: usize = arena.region.zones().iter().rev().map(|zone| zone.untouched_bytes(&mut left)).sum();
    accounts::set_untouched(untouched);
    untouched > 0
}

/// Purges free memory for a request of `request_bytes`, until at most `limit_bytes` are resident or the request has done its share. Returns
/// the number of bytes purged. If it is 0, records that there is nothing left to purge.
fn purge_for(arena: &Arena, request_bytes: usize, limit_bytes: usize) -> usize {
    let surplus = resident_bytes().saturating_sub(limit_bytes);
    let gone = trim_within(arena, &mut Allowance::of_request(request_bytes, surplus));
    if gone == 0 && surplus > 0 {
        accounts::nothing_left_to_purge();
    }
    gone
}

/// Empties thread caches, some at a time, if they hold [a large part](tuning::cached_part) of the memory in use. The slabs of the cached
/// blocks may then return to the zone. Threads have to refill emptied caches, so a cache is not emptied again until the program has
/// requested as much memory as that part. Returns whether some caches were emptied.
fn empty_large_caches(arena: &Arena, request_bytes: usize) -> bool {
    /// The number of bytes served when caches were last emptied.
    static LAST_BYTES: AtomicU64 = AtomicU64::new(0);
    let much = accounts::used_bytes() / tuning::cached_part();
    let (last, now) = (LAST_BYTES.load(Ordering::Relaxed), arena.served_bytes());
    let is_due = now >= last.saturating_add((much / arena.size_classes.calls_to_empty(request_bytes)) as u64)
        && arena.size_classes.cached_bytes() >= much
        && LAST_BYTES.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if is_due {
        arena.size_classes.empty_some_caches(arena.slab_zone(), request_bytes);
    }
    is_due
}

/// Purges free memory until at most `keep_bytes` are resident, or no free memory is left to purge. Returns the number of bytes purged.
pub(crate) fn trim(arena: &Arena, keep_bytes: usize, how: Purge) -> usize {
    let surplus = || Allowance::unlimited(resident_bytes().saturating_sub(keep_bytes));
    if how == Purge::Lazily {
        // Lazily purged memory still counts as resident, so the resident size does not show when to stop.
        arena.size_classes.empty_caches(arena.slab_zone(), false);
        arena.release_cached();
        return trim_zones(arena, &mut surplus(), how);
    }
    arena.release_cached();
    let mut gone = trim_zones(arena, &mut surplus(), Purge::Now);
    if surplus().bytes > 0 {
        arena.size_classes.empty_caches(arena.slab_zone(), keep_bytes == 0);
        gone += trim_within(arena, &mut surplus());
    }
    gone
}

/// Purges free runs, then free pages of slabs. Purging pages may free whole slabs, so free runs are then purged again.
fn trim_within(arena: &Arena, allowance: &mut Allowance) -> usize {
    let runs = trim_zones(arena, allowance, Purge::Now);
    let pages = arena.size_classes.slabs.purge(arena.slab_zone(), allowance);
    runs + pages + if pages > 0 { trim_zones(arena, allowance, Purge::Now) } else { 0 }
}

fn trim_zones(arena: &Arena, allowance: &mut Allowance, how: Purge) -> usize {
    arena.region.zones().iter().rev().map(|zone| zone.trim(allowance, how)).sum()
}

// The decay ticks of the program's threads and of the background thread, which purge free memory by time.

/// Runs a decay tick: decides how much memory to purge, and purges it. The background thread purges all of it at once; a program thread
/// purges only as much as one request may.
fn tick(arena: &Arena, state: &mut DecayState, by: Caller) -> Verdict {
    let now_ns = os::monotonic_ns();
    if let Some(keep_bytes) = state.unfinished(now_ns).filter(|_| by == Caller::Program) {
        if gate::is_any_phase_open() {
            state.set_unfinished(None);
        } else {
            purge_part(arena, state, keep_bytes);
        }
        return Verdict::Wait;
    }
    let snapshot = HeapSnapshot {
        resident_bytes: resident_bytes(),
        used_bytes: accounts::used_bytes(),
        cached_bytes: cached_bytes(),
        peak_bytes: accounts::take_seen_peak_bytes(),
        served_bytes: arena.served_bytes(),
        is_in_phase: gate::is_any_phase_open(),
    };
    let verdict = state.take_in(snapshot, now_ns, by);
    if let Verdict::Keep(keep_bytes) = verdict {
        match by {
            Caller::Background => state.purged(snapshot.marks(), trim(arena, keep_bytes, Purge::Now)),
            Caller::Program => purge_part(arena, state, keep_bytes),
        }
    }
    verdict
}

/// Purges down to `keep_bytes` resident bytes, but at most as much as one request may purge. Empties thread caches only if nothing else can
/// be purged.
fn purge_part(arena: &Arena, state: &mut DecayState, keep_bytes: usize) {
    let mut gone_bytes = purge_for(arena, 0, keep_bytes);
    if gone_bytes == 0 && resident_bytes() > keep_bytes {
        arena.release_cached();
        arena.size_classes.empty_some_caches(arena.slab_zone(), 0);
        gone_bytes = purge_for(arena, 0, keep_bytes);
    }
    state.purged_part(keep_bytes, Marks::of(resident_bytes(), accounts::used_bytes(), cached_bytes()), gone_bytes);
}

/// Runs a decay tick. Returns `None` if there is no arena, or while another thread is running a tick.
fn run_tick(by: Caller) -> Option<Verdict> {
    let arena = get()?;
    decay::with_state(|state| tick(arena, state, by))
}

/// Runs a decay tick if one is due, and checks the memory of the control group. Returns how long the background thread may sleep, or `None`
/// if it has nothing to do until the program wakes it.
pub(crate) fn tick_in_background() -> Option<Duration> {
    if decay::time_to_tick().is_some_and(|time| time.is_zero()) {
        let verdict = run_tick(Caller::Background);
        decay::ticked(verdict == Some(Verdict::Rest));
    }
    if !gate::is_any_phase_open() {
        relieve();
    }
    let time_to_watch = is_watching().then(|| Duration::from_millis(tuning::rest_ms() as u64));
    [decay::time_to_tick(), time_to_watch].into_iter().flatten().min()
}

// Memory pressure: free memory is purged while a control group of the process is near its memory limit.

/// The time from which the control group's files may be read again, by [`os::monotonic_ns`].
static NEXT_NS: AtomicU64 = AtomicU64::new(0);
static PURGES: AtomicU64 = AtomicU64::new(0);

/// Whether to read the control group's files: only if the group had a memory limit when the process started, and not in a sandbox, which
/// may kill the process for reading files.
fn is_watching() -> bool {
    !os::is_in_sandbox() && os::host().limits.is_memory_grouped
}

/// Purges free memory if a control group is short of memory. Call this while no phase is open. The call does not wait for other threads.
pub(crate) fn relieve() {
    let Some(arena) = get().filter(|_| is_watching()) else { return };
    let (now, next) = (os::monotonic_ns(), NEXT_NS.load(Ordering::Relaxed));
    let after = now + tuning::watch_ms() as u64 * 1_000_000;
    if accounts::free_bytes() == 0
        || now < next
        || NEXT_NS.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    let missing_bytes = os::missing_memory(tuning::spare_part(), tuning::stall_percent());
    if missing_bytes == 0 {
        return;
    }
    let gone_bytes = trim(arena, resident_bytes().saturating_sub(missing_bytes), Purge::Now);
    if gone_bytes > 0 && PURGES.fetch_add(1, Ordering::Relaxed) == 0 {
        os::warn(format_args!(
            "the control group is short of memory: purged {gone_bytes} bytes of free memory; from now on this is only counted in stats()"
        ));
    }
}

/// Returns how often free memory was purged because a control group was short of memory.
pub(crate) fn pressure_purges() -> u64 {
    PURGES.load(Ordering::Relaxed)
}
