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
#[cfg(not(loom))]
mod registry;
#[cfg(loom)]
#[path = "thread_cache/registry_of_models.rs"]
mod registry;
mod room;
mod run;
mod sums;

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::os;
use crate::tuning;

pub(crate) use cache::{Cache, Entered, Totals};
pub(crate) use claiming::Claiming;
pub(crate) use exit::exit_key;
#[cfg(all(test, not(loom)))]
pub(crate) use registry::VISITS;
pub(crate) use room::CacheStorage;
pub(crate) use run::Run;

use local::{CacheState, local};

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
pub(crate) fn join_and_enter(storage: &CacheStorage) -> Option<Entered<'static>> {
    let local = local()?;
    if local.state.get() == CacheState::Without {
        let waited = local.waited.get();
        local.waited.set((waited + 1) % tuning::cache_retry_interval() as u16);
        if waited == 0 {
            local.state.set(CacheState::Joining);
            let found = find(storage);
            local.cache.set(found);
            local.state.set(if found.is_some() { CacheState::Joined } else { CacheState::Without });
        }
    }
    let cache = local.cache.get()?;
    cache.drop_claim_of_parent(os::process_generation);
    cache.enter()
}

/// A cache without a thread, for this one.
fn find(storage: &CacheStorage) -> Option<&'static Cache> {
    // Without its destructor a cache would never be released.
    let key = exit_key(storage.at_exit())?;
    let cache = registry::acquire()?;
    if CacheStorage::init_storage(cache) && os::arm_thread_exit(key, NonNull::from(cache).cast()) {
        return Some(cache);
    }
    give_up(cache);
    None
}

/// Leaves a cache of the calling thread to the next one. The thread uses it no more.
fn give_up(cache: &Cache) {
    sums::add_to_former(cache);
    registry::leave_out(cache);
    let index = cache.index();
    cache.disown();
    registry::offer(index);
}

/// An exiting thread leaves its cache to the next one, after `empty` took out all that it can. If another thread claims the cache at
/// this moment, or a signal interrupted its owner, the contents stay for the next thread.
///
/// # Safety
/// `cache` is what the key's destructor was called with.
pub(crate) unsafe fn leave(cache: *mut c_void, empty: impl FnOnce(&Cache)) {
    // SAFETY: the caller's: it is the address of a cache, which is static.
    let cache = unsafe { &*cache.cast::<Cache>() };
    if let Some(local) = local() {
        let forget = || {
            local.cache.set(None);
            local.state.set(CacheState::Left);
        };
        cache.release(empty, forget, give_up);
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
    claim(registry::all(), empty);
}

/// As [`claim_all`], for up to `most` caches, which are the next ones in turn.
pub(crate) fn claim_some(most: usize, empty: impl FnMut(&'static Cache)) {
    claim(registry::some(most), empty);
}

/// How many caches [`claim_all`] visits.
pub(crate) fn visited() -> usize {
    registry::count()
}

fn claim(caches: impl Iterator<Item = &'static Cache>, empty: impl FnMut(&'static Cache)) {
    let own = local().and_then(|local| local.cache.get());
    CLAIMING.claim_all(caches, os::process_generation(), own, os::fence_other_threads, empty);
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
    registry::all().filter_map(Cache::take_run)
}

/// Takes out runs that threads cache, for a thread that is about to take memory of `pages` pages that is not resident. DecayState at all
/// caches, or at the next ones in turn if there are many.
pub(crate) fn take_some_runs(pages: usize) -> impl Iterator<Item = Run> {
    registry::some(visits_for(pages)).filter_map(Cache::take_run)
}

/// The caches that a request may look at. A page costs it some hundred nanoseconds when it is first touched, and a cache one or two.
fn visits_for(pages: usize) -> usize {
    tuning::visits_a_page().saturating_mul(pages.saturating_add(1))
}

/// Bytes of all runs that threads cache.
pub(crate) fn cached_run_bytes() -> usize {
    registry::all().map(Cache::cached_run_bytes).sum()
}

/// As [`cached_run_bytes`], for a request of `pages` pages; `None` if there are so many caches that this request and those since the last
/// walk pay for no walk.
pub(crate) fn cached_run_bytes_for(pages: usize) -> Option<usize> {
    static PAID: AtomicUsize = AtomicUsize::new(0);
    let (visits, caches) = (visits_for(pages), registry::count());
    if visits < caches {
        let paid = PAID.fetch_add(visits, Ordering::Relaxed);
        if paid.saturating_add(visits) < caches {
            return None;
        }
        PAID.store(0, Ordering::Relaxed);
    }
    Some(cached_run_bytes())
}

/// Runs that threads with a cache were handed since the process started.
pub(crate) fn run_totals() -> Totals {
    sums::of_all().runs
}

/// Blocks that threads took for themselves since the process started, and the bytes of the blocks that they took back into their caches.
pub(crate) fn block_totals() -> (Totals, u64) {
    let sums = sums::of_all();
    (sums.blocks, sums.returned_bytes)
}
