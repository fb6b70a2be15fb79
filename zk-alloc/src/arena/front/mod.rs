//! Thread caches: each thread keeps the blocks and the page runs that it freed most recently, to serve its next requests. A request that
//! the cache serves touches no bitmap and no shared counter.
//!
//! A cached block or run stays *used* in its slab or zone. The cache that holds its address owns it. All threads can find all caches.
//!
//! An asymmetric fence guards the blocks. The owner of a cache sets its owner flag, then checks for a remote claim. A thread that wants the
//! blocks of idle threads first claims their caches. Then it has the kernel run a fence on every thread of the process
//! ([`os::fence_other_threads`]). It empties each claimed cache whose owner flag is clear: that owner sees the claim before it touches the
//! cache again. So the fence costs allocating threads nothing, and no thread waits.
#![allow(
    unsafe_code,
    reason = "finds an exiting thread's cache by its address, purges memory, follows a list through the claimed caches"
)]

mod cache;
#[cfg(not(loom))]
mod registry;
/// Stands in for the registry in the loom models, where no thread has a cache.
#[cfg(loom)]
mod registry {
    use super::Cache;

    pub(crate) fn acquire() -> Option<&'static Cache> {
        None
    }

    pub(crate) fn leave_out(_: &Cache) {}

    pub(crate) fn mark_vacant(_: usize) {}

    pub(crate) fn count() -> usize {
        0
    }

    pub(crate) fn all() -> impl Iterator<Item = &'static Cache> {
        std::iter::empty()
    }

    pub(crate) fn some(_: usize) -> impl Iterator<Item = &'static Cache> {
        all()
    }
}

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{self, AtomicU32, AtomicUsize};

use crate::sync::{AtomicU64, Ordering};
use crate::{arena, classes, os, tuning};
#[cfg(any(feature = "c-api", all(test, not(loom))))]
pub(crate) use cache::enter;
pub(crate) use cache::{
    Cache, Entered, Run, Totals, alloc, block_at, count_past_cache, count_run, is_joined, local, put, put_run, take,
    take_run_if, thread_totals,
};
#[cfg(all(test, not(loom)))]
pub(crate) use registry::VISITS;
/// The number of caches that [`claim_all`] visits.
pub(crate) use registry::count as visited;

/// Like [`cache::enter`], but first finds a cache for a thread that has none.
#[cold]
pub(crate) fn join_and_enter() -> Option<Entered<'static>> {
    let local = local();
    if !local.acquires_none.get() {
        let waited = local.waited.get();
        local.waited.set((waited + 1) % tuning::cache_retry_interval() as u16);
        if waited == 0 {
            local.acquires_none.set(true);
            let found = find();
            local.cache.set(found);
            local.acquires_none.set(found.is_some());
        }
    }
    let cache = local.cache.get()?;
    cache.drop_claim_of_parent(os::process_generation);
    cache.enter()
}

/// Acquires a cache without an owner for the calling thread.
fn find() -> Option<&'static Cache> {
    // Without the key's destructor, an exiting thread would not release its cache.
    let key = exit_key()?;
    let cache = registry::acquire()?;
    if init_storage(cache) && os::arm_thread_exit(key, NonNull::from(cache).cast()) {
        return Some(cache);
    }
    give_up(cache);
    None
}

/// Releases the calling thread's cache, so that a new thread can acquire it. The caller must not use the cache afterwards.
fn give_up(cache: &Cache) {
    add_to_former(cache);
    registry::leave_out(cache);
    let index = cache.index.load(Ordering::Relaxed);
    cache.disown();
    registry::mark_vacant(index);
}

/// Empties the cache of an exiting thread with `empty`, then releases it, so that a new thread can acquire it. If another thread claims the
/// cache at this moment, or if a signal interrupted the owner while it used the cache, the contents stay for the next owner.
///
/// # Safety
/// `cache` is the argument of the key's destructor.
pub(crate) unsafe fn leave(cache: *mut c_void, empty: impl FnOnce(&Cache)) {
    // SAFETY: upheld by the caller: it is the address of a cache, which is static.
    let cache = unsafe { &*cache.cast::<Cache>() };
    let forget = || {
        let local = local();
        local.cache.set(None);
        local.acquires_none.set(true);
    };
    cache.release(empty, forget, give_up);
}

#[cfg(not(loom))]
static CLAIMING: Claiming = Claiming(AtomicU64::new(0));
#[cfg(loom)]
loom::lazy_static! {
    static ref CLAIMING: Claiming = Claiming(AtomicU64::new(0));
}

/// Claims every cache that holds blocks, and calls `empty` with each one that its owner is not using now.
pub(crate) fn claim_all(empty: impl FnMut(&'static Cache)) {
    claim(registry::all(), empty);
}

/// Like [`claim_all`], but visits at most `most` caches. The next call continues with the caches after them.
pub(crate) fn claim_some(most: usize, empty: impl FnMut(&'static Cache)) {
    claim(registry::some(most), empty);
}

fn claim(caches: impl Iterator<Item = &'static Cache>, empty: impl FnMut(&'static Cache)) {
    let own = local().cache.get();
    CLAIMING.claim_all(caches, os::process_generation(), own, os::fence_other_threads, empty);
}

/// Takes the runs out of all caches.
pub(crate) fn take_all_runs() -> impl Iterator<Item = Run> {
    registry::all().flat_map(Cache::take_runs)
}

/// Takes runs out of caches, for a thread that is about to take `pages` pages that are not resident. Visits all caches, or only some if
/// there are many; the next call continues with the caches after them.
pub(crate) fn take_some_runs(pages: usize) -> impl Iterator<Item = Run> {
    registry::some(visits_for(pages)).flat_map(Cache::take_runs)
}

/// Returns how many caches a request of `pages` pages may visit. The first touch of a page takes a few hundred nanoseconds, and a visit to
/// a cache one or two.
fn visits_for(pages: usize) -> usize {
    tuning::visits_a_page().saturating_mul(pages.saturating_add(1))
}

/// Returns the total size of all cached runs, in bytes.
pub(crate) fn cached_run_bytes() -> usize {
    registry::all().map(Cache::cached_run_bytes).sum()
}

/// Like [`cached_run_bytes`], for a request of `pages` pages. Returns `None` if this request and those since the last walk are too small to
/// pay for another walk over all caches.
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

// The key by which the C library reports exiting threads.

/// The key whose destructor runs when a thread exits, plus one; 0 if there is no key.
static EXIT_KEY: AtomicU32 = AtomicU32::new(0);

/// Returns the key whose destructor, [`thread_exits`](arena::thread_exits), runs when a thread exits. The first call creates the key.
/// Returns `None` if the system has no keys left.
///
/// The first call should come before the program creates its own keys: glibc has 32 keys for which it never allocates.
pub(crate) fn exit_key() -> Option<u32> {
    let known = EXIT_KEY.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known - 1);
    }
    let key = os::thread_exit_key(arena::thread_exits)?;
    match EXIT_KEY.compare_exchange(0, key + 1, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Some(key),
        Err(other) => {
            os::return_key(key);
            Some(other - 1)
        }
    }
}

// The storage of caches: memory for the addresses of their blocks.

/// The size of one cache's storage in bytes, a multiple of any kernel's page size.
const STORAGE_BYTES: usize = (classes::PLACES * size_of::<u64>()).next_multiple_of(64 << 10);

/// Maps the storage of the caller's cache. Returns `false` if the system refuses memory.
fn init_storage(cache: &Cache) -> bool {
    if !cache.blocks.load(Ordering::Relaxed).is_null() {
        return true;
    }
    let Ok(mapping) = os::map_zeroed(STORAGE_BYTES).map(os::Mapping::for_table) else { return false };
    cache.blocks.store(mapping.start().as_ptr().cast(), Ordering::Relaxed);
    // Never unmapped, because the cache itself is never freed.
    std::mem::forget(mapping);
    true
}

/// Purges the storage of an empty cache. Only a thread that entered or claimed the cache may call this.
pub(crate) fn clear_storage(cache: &Cache) {
    let blocks = cache.blocks.load(Ordering::Relaxed);
    if !blocks.is_null() {
        // SAFETY: the storage of this cache, which is empty: all of its counts are zero.
        let _ = unsafe { os::discard(blocks.cast(), STORAGE_BYTES) };
    }
}

// Claims: how a thread takes the blocks out of other threads' caches.

/// The [generation](crate::os::process_generation) of the process in which a thread is claiming caches; 0 if none is.
pub(crate) struct Claiming(pub(super) AtomicU64);

impl Claiming {
    /// Claims those of `caches` that hold blocks, and fences all other threads with `fence`, which returns `false` if it can't. Then calls
    /// `empty` with each claimed cache that its owner is not using. `own` is the calling thread's cache, which needs no fence. Does nothing
    /// while another thread of the generation `by` claims caches.
    pub(crate) fn claim_all<'a>(
        &self,
        caches: impl Iterator<Item = &'a Cache>,
        by: u64,
        own: Option<&Cache>,
        fence: impl FnOnce() -> bool,
        mut empty: impl FnMut(&'a Cache),
    ) {
        let is_own = |cache: &Cache| own.is_some_and(|own| std::ptr::eq(own, cache));
        // One thread at a time: two claimants at once could not tell their claims apart.
        let before = self.0.load(Ordering::Relaxed);
        if before == by || self.0.compare_exchange(before, by, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        // The claimed caches form a list, because the cache of a thread that exits during the claim may no longer be among `caches`.
        let mut last: *const Cache = ptr::null();
        let mut others = 0;
        for cache in caches.filter(|cache| cache.has_blocks()) {
            if cache.claim(by) {
                cache.claimed_before.store(last.cast_mut(), Ordering::Relaxed);
                last = cache;
                others += usize::from(!is_own(cache));
            }
        }
        // Without the fence, only this thread's own cache is known not to be in use.
        let fenced = others == 0 || fence();
        // SAFETY: null, or one of `caches`, which live for `'a`. Only this thread links the caches that it claimed.
        while let Some(cache) = unsafe { last.as_ref::<'a>() } {
            last = cache.claimed_before.load(Ordering::Relaxed);
            if (fenced || is_own(cache)) && !cache.is_in_use() {
                empty(cache);
            }
            cache.unclaim();
        }
        self.0.store(0, Ordering::Release);
    }
}

// Sums over living and former threads.

/// Allocations and bytes of all threads since the process started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Runs handed to threads with a cache.
    pub(crate) runs: Totals,
    /// Blocks handed out, from a cache or directly from slabs.
    pub(crate) blocks: Totals,
    /// The bytes of the blocks that were freed, into a cache or directly to slabs.
    pub(crate) returned_bytes: u64,
}

/// The counts that are in no cache: those of threads that ended, and of blocks that bypassed the caches. In this order: bytes of freed
/// blocks, runs, bytes of runs, blocks, bytes of blocks.
static NOT_IN_CACHES: [atomic::AtomicU64; 5] = [const { atomic::AtomicU64::new(0) }; 5];
/// The number of exiting threads that began to add to these counts, and the number that finished.
static BEGUN: atomic::AtomicU64 = atomic::AtomicU64::new(0);
static ENDED: atomic::AtomicU64 = atomic::AtomicU64::new(0);

/// The maximum number of times that the sums are computed, if an exiting thread adds its counts each time meanwhile. An attempt takes about
/// as long as an addition. The number is limited, because a thread that a fork cut off never finishes its addition.
const ATTEMPTS: usize = 3;

/// Adds the counts of an exiting thread to those of former threads.
pub(crate) fn add_to_former(cache: &Cache) {
    let (runs, blocks) = (cache.run_totals(), cache.block_totals());
    let counts = [cache.returned_bytes(), runs.allocations, runs.bytes, blocks.allocations, blocks.bytes];
    BEGUN.fetch_add(1, Ordering::SeqCst);
    for (former, count) in NOT_IN_CACHES.iter().zip(counts) {
        former.fetch_add(count, Ordering::SeqCst);
    }
    cache.forget_counts();
    ENDED.fetch_add(1, Ordering::SeqCst);
}

/// Counts a block that this thread took directly from a slab.
pub(crate) fn count_block_past_cache(bytes: usize) {
    let [.., blocks, block_bytes] = &NOT_IN_CACHES;
    blocks.fetch_add(1, Ordering::Relaxed);
    block_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    count_past_cache(bytes);
}

/// Counts a block that was freed directly to its slab.
pub(crate) fn count_returned_past_cache(bytes: usize) {
    let [returned_bytes, ..] = &NOT_IN_CACHES;
    returned_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Returns the current sums, which are approximate while threads allocate.
pub(crate) fn sums() -> Sums {
    for _ in 1..ATTEMPTS {
        let ended = ENDED.load(Ordering::SeqCst);
        let sums = walk();
        if BEGUN.load(Ordering::SeqCst) == ended {
            return sums;
        }
    }
    walk()
}

fn walk() -> Sums {
    // Freed blocks come first. Otherwise a block that is handed out and freed between the two walks would be counted only as freed.
    let [returned_bytes, ..] = &NOT_IN_CACHES;
    let returned_bytes = returned_bytes.load(Ordering::SeqCst);
    let returned_bytes = returned_bytes + registry::all().map(Cache::returned_bytes).sum::<u64>();
    let [_, run_allocations, run_bytes, block_allocations, block_bytes] =
        NOT_IN_CACHES.each_ref().map(|former| former.load(Ordering::SeqCst));
    let former = Sums {
        runs: Totals { allocations: run_allocations, bytes: run_bytes },
        blocks: Totals { allocations: block_allocations, bytes: block_bytes },
        returned_bytes,
    };
    registry::all().fold(former, |sums, cache| Sums {
        runs: sums.runs + cache.run_totals(),
        blocks: sums.blocks + cache.block_totals(),
        returned_bytes,
    })
}
