//! The registry of all thread caches: which caches have no owner, and which caches a walk visits.
//!
//! A walk visits the caches of living threads, and those that an exiting thread could not empty. So its cost is proportional to the number
//! of living threads. (A forked child also visits the caches of threads that exist only in its parent, because it can't tell which ones
//! those are.)
#![allow(unsafe_code, reason = "lays caches over zeroed memory")]

use std::sync::atomic::AtomicUsize;

use crate::arena::front::cache::Cache;
use crate::arena::pages::bitmap::{self, HintSet};
use crate::os::{AllZero, MappedOnce};
use crate::sync::{AtomicU64, Ordering};

/// The maximum number of threads that have caches at once. Any additional thread caches nothing. A thread has two mappings, and Linux
/// allows a process 65,530 by default.
pub(crate) const THREADS: usize = 32 << 10;
/// The number of caches that are mapped at once. A small process needs only the caches in the static `FIRST`.
const CHUNK: usize = 512;

const WORDS: usize = bitmap::words_for(THREADS);

static FIRST: [Cache; CHUNK] = [const { Cache::new() }; CHUNK];
static MORE: [MappedOnce<[Cache; CHUNK]>; THREADS / CHUNK - 1] = [const { MappedOnce::new() }; THREADS / CHUNK - 1];
// SAFETY: all fields are atomics, for which zero is a valid value.
unsafe impl AllZero for [Cache; CHUNK] {}

/// No cache at or above this index has ever had an owner.
static FRONTIER: AtomicUsize = AtomicUsize::new(0);
static WORDS_OF_SETS: [[AtomicU64; WORDS]; 2] = [const { [const { AtomicU64::new(0) }; WORDS] }; 2];
/// The caches below the frontier that may have no owner.
static VACANT: HintSet = HintSet::new(&WORDS_OF_SETS[0], THREADS);
/// The caches that walks visit, and their number.
static VISITED: HintSet = HintSet::new(&WORDS_OF_SETS[1], THREADS);
static VISITED_COUNT: AtomicUsize = AtomicUsize::new(0);
/// The index at which the next walk over a part of the caches begins.
static ROVER: AtomicUsize = AtomicUsize::new(0);

/// Returns the cache with this index, which must be below the frontier.
fn at(index: usize) -> &'static Cache {
    let Some(chunk) = (index / CHUNK).checked_sub(1) else { return &FIRST[index] };
    // SAFETY: a chunk is mapped before the frontier reaches it.
    let caches = unsafe { MORE[chunk].get().unwrap_unchecked() };
    &caches[index % CHUNK]
}

/// Maps the chunk that contains the cache with this index, unless it is mapped already. Returns `false` if the system has no memory.
fn has_memory(index: usize) -> bool {
    (index / CHUNK).checked_sub(1).is_none_or(|chunk| MORE[chunk].map().is_ok())
}

/// Makes the calling thread the owner of the lowest cache without an owner. Walks visit the cache from then on.
pub(crate) fn acquire() -> Option<&'static Cache> {
    let index = acquire_former().or_else(acquire_new)?;
    let cache = at(index);
    cache.index.store(index, Ordering::Relaxed);
    // Only the owner adds or removes the index of its cache. The last owner did not remove it if the cache was not empty.
    if VISITED.first(index) != Some(index) {
        VISITED.set(index);
        VISITED_COUNT.fetch_add(1, Ordering::Relaxed);
    }
    Some(cache)
}

/// Acquires a cache that had an owner before.
fn acquire_former() -> Option<usize> {
    let mut from = 0;
    loop {
        let index = VACANT.first(from)?;
        let is_acquired = at(index).try_acquire();
        VACANT.clear(index);
        if is_acquired {
            return Some(index);
        }
        // The owner may have released the cache before the hint was cleared.
        if !at(index).is_owned() {
            VACANT.set(index);
        }
        from = index + 1;
    }
}

fn acquire_new() -> Option<usize> {
    loop {
        let index = FRONTIER.load(Ordering::Acquire);
        if index == THREADS || !has_memory(index) {
            return None;
        }
        let is_mine = FRONTIER.compare_exchange(index, index + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_mine && at(index).try_acquire() {
            return Some(index);
        }
    }
}

/// Excludes the caller's cache from walks, if it is empty. The caller must not put anything into the cache afterwards.
pub(crate) fn leave_out(cache: &Cache) {
    if !cache.has_blocks() && cache.cached_run_bytes() == 0 {
        VISITED.clear(cache.index.load(Ordering::Relaxed));
        VISITED_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Marks a released cache as vacant, so that a new thread can acquire it.
pub(crate) fn mark_vacant(index: usize) {
    VACANT.set(index);
}

/// Returns how many caches a walk visits.
pub(crate) fn count() -> usize {
    VISITED_COUNT.load(Ordering::Relaxed)
}

/// Walks over all caches that may not be empty.
pub(crate) fn all() -> impl Iterator<Item = &'static Cache> + Clone {
    let mut from = 0;
    std::iter::from_fn(move || {
        let index = VISITED.first(from)?;
        from = index + 1;
        Some(visit(index))
    })
}

/// Walks over up to `most` caches, from where the last such walk ended.
pub(crate) fn some(most: usize) -> impl Iterator<Item = &'static Cache> {
    let mut left = most.min(count());
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let from = ROVER.load(Ordering::Relaxed);
        let index = VISITED.first(from).or_else(|| VISITED.first(0))?;
        ROVER.store((index + 1) % THREADS, Ordering::Relaxed);
        Some(visit(index))
    })
}

fn visit(index: usize) -> &'static Cache {
    #[cfg(test)]
    VISITS.fetch_add(1, Ordering::Relaxed);
    at(index)
}

/// The number of caches that walks have visited so far.
#[cfg(test)]
pub(crate) static VISITS: AtomicUsize = AtomicUsize::new(0);
