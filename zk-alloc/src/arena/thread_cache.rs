//! Thread caches: each thread caches the blocks of each size class and the page runs that it freed last, for its next requests. Then
//! no bitmap and no counter that threads share is touched.
//!
//! A cached block or run stays *used* in its slab or zone. The cache that holds its address owns it. All threads know all caches.
//!
//! An asymmetric fence guards the blocks. The owner of a cache sets its owner flag, then looks for a remote claim. A thread that wants
//! the blocks of idle threads first claims their caches, then has the kernel put a fence into every thread of the process
//! ([`os::fence_other_threads`]). It empties each cache whose owner flag is clear: that owner sees the claim before it touches
//! the cache again. So the fence costs allocating threads nothing, and nobody waits.
#![allow(unsafe_code, reason = "an exiting thread finds its cache by its address")]

mod cache;
mod claiming;
mod exit;
mod local;
mod room;
mod run;

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

use crate::os;
use crate::sync::Ordering;
use crate::tuning;

pub(crate) use cache::{Cache, Entered, Totals};
pub(crate) use claiming::Claiming;
pub(crate) use exit::exit_key;
pub(crate) use room::Room;
pub(crate) use run::Run;

use local::{Standing, local};

/// Threads beyond that many at once cache nothing.
#[cfg(not(loom))]
const THREADS: usize = 2048;
#[cfg(loom)]
const THREADS: usize = 0;

#[cfg(not(loom))]
static CACHES: [Cache; THREADS] = [const { Cache::new() }; THREADS];
#[cfg(loom)]
static CACHES: [Cache; THREADS] = [];
/// No cache at or above this index ever had a thread.
static FRONTIER: AtomicUsize = AtomicUsize::new(0);

fn caches() -> &'static [Cache] {
    &CACHES[..FRONTIER.load(Ordering::Acquire)]
}

/// Whether this thread has a cache.
#[inline(always)]
pub(crate) fn is_joined() -> bool {
    local().is_some_and(|local| local.cache.get().is_some())
}

/// Enters this thread's cache; `None` where it has none, or may not use it now.
#[inline(always)]
pub(crate) fn enter() -> Option<Entered<'static>> {
    local()?.cache.get()?.enter()
}

/// As [`enter`], after finding a cache for a thread that has none yet.
#[cold]
pub(crate) fn join_and_enter(room: &Room) -> Option<Entered<'static>> {
    let local = local()?;
    if local.standing.get() == Standing::Without {
        let waited = local.waited.get();
        local.waited.set((waited + 1) % tuning::patience_requests() as u16);
        if waited == 0 {
            local.standing.set(Standing::Joining);
            let found = find(room);
            local.cache.set(found);
            local.standing.set(if found.is_some() { Standing::Joined } else { Standing::Without });
        }
    }
    let cache = local.cache.get()?;
    cache.drop_claim_of_parent(os::process_generation);
    cache.enter()
}

/// A cache without a thread, for this one.
fn find(room: &Room) -> Option<&'static Cache> {
    // Without its destructor a cache would never be handed on.
    let key = exit_key(room.at_exit())?;
    let index = CACHES.iter().position(Cache::own)?;
    let cache = &CACHES[index];
    cache.begin_thread();
    if Room::furnish(cache) && os::arm_thread_exit(key, NonNull::from(cache).cast()) {
        FRONTIER.fetch_max(index + 1, Ordering::AcqRel);
        return Some(cache);
    }
    cache.disown();
    None
}

/// An exiting thread [hands its cache on](Cache::hand_on).
///
/// # Safety
/// `cache` is what the key's destructor was called with.
pub(crate) unsafe fn leave(cache: *mut c_void, empty: impl FnOnce(&Cache)) {
    // SAFETY: the caller's: it is the address of a cache, which is static.
    let cache = unsafe { &*cache.cast::<Cache>() };
    if let Some(local) = local() {
        cache.hand_on(empty, || {
            local.cache.set(None);
            local.standing.set(Standing::Left);
        });
    }
}

#[cfg(not(loom))]
static CLAIMING: Claiming = Claiming::new();
#[cfg(loom)]
loom::lazy_static! {
    static ref CLAIMING: Claiming = Claiming::new();
}

/// Takes the blocks out of every cache whose thread is not at it now, and hands each cache to `empty`.
pub(crate) fn claim_all(empty: impl FnMut(&'static Cache)) {
    let own = local().and_then(|local| local.cache.get());
    CLAIMING.claim_all(caches(), os::process_generation(), own, os::fence_other_threads, empty);
}

/// Takes out a run of `run_bytes` that this thread caches, if it is `fits`, to serve a request of `bytes`.
#[inline(always)]
pub(crate) fn take_run_if(run_bytes: usize, bytes: usize, fits: impl FnOnce(Run) -> bool) -> Option<Run> {
    let cache = enter()?;
    let run = cache.take_run_if(run_bytes, fits)?;
    cache.run_handed_out(bytes);
    Some(run)
}

/// Counts a run that this thread was handed for a request of `bytes`. Returns `false` if it can't use a cache now: then
/// [`run_totals`] lacks the request.
pub(crate) fn count_run(bytes: usize) -> bool {
    let is_cached = enter().map(|cache| cache.run_handed_out(bytes)).is_some();
    if !is_cached {
        count_past_cache(bytes);
    }
    is_cached
}

/// Counts a request of this thread that no cache counts.
#[cold]
pub(crate) fn count_past_cache(bytes: usize) {
    if let Some(local) = local() {
        let Totals { allocations, bytes: before } = local.past_cache.get();
        local.past_cache.set(Totals { allocations: allocations + 1, bytes: before + bytes as u64 });
    }
}

/// The requests of this thread.
pub(crate) fn thread_totals() -> Totals {
    let Some(local) = local() else { return Totals::default() };
    let cached = local.cache.get().map(Cache::thread_totals);
    cached.into_iter().chain([local.past_cache.get()]).sum()
}

/// Caches a run for this thread. Returns the one that is not cached instead, if there is one.
#[inline(always)]
pub(crate) fn put_run(run: Run) -> Option<Run> {
    match enter() {
        Some(cache) => cache.put_run(run),
        None => Some(run),
    }
}

/// Takes out the runs that any thread caches.
pub(crate) fn take_all_runs() -> impl Iterator<Item = Run> {
    caches().iter().filter_map(Cache::take_run)
}

/// Bytes of all runs that threads cache.
pub(crate) fn cached_run_bytes() -> usize {
    caches().iter().map(Cache::cached_run_bytes).sum()
}

/// Runs that threads with a cache were handed since the process started.
pub(crate) fn run_totals() -> Totals {
    caches().iter().map(Cache::run_totals).sum()
}

/// Blocks that threads took for themselves since the process started.
pub(crate) fn block_totals() -> Totals {
    caches().iter().map(Cache::block_totals).sum()
}

/// Bytes of the blocks that threads took back into their caches.
pub(crate) fn returned_bytes() -> u64 {
    caches().iter().map(Cache::returned_bytes).sum()
}
