//! Models of work on thread caches, run in every interleaving with a bounded number of interruptions.

use std::sync::atomic::AtomicUsize;

use loom::sync::Arc;
use loom::sync::atomic::fence;

use super::models::{Uses, beside, beside_two, bounded};
use crate::arena::front::{Cache, Claiming, Run};
use crate::classes::Class;
use crate::sync::{AtomicU64, Ordering};

/// The process generation in the models.
const PROCESS: u64 = 7;

const CLASS: Class = Class::of(1, 1);

/// Two caches, and the memory of the blocks that they cache.
struct Threads {
    caches: [Cache; 2],
    claiming: Claiming,
    memory: Uses,
    /// The number of blocks and runs that were cached and not taken out again.
    cached: AtomicUsize,
}

/// Runs a model with two caches. This thread owns the first one, with block 1 in it.
fn with_threads(interruptions: usize, model: impl Fn(&Arc<Threads>, &Cache) + Sync + Send + 'static) {
    bounded(interruptions, move || {
        let threads = Arc::new(Threads {
            caches: [Cache::new(), Cache::new()],
            claiming: Claiming(AtomicU64::new(0)),
            memory: Uses::default(),
            cached: AtomicUsize::new(0),
        });
        let cache = &threads.caches[0];
        assert!(cache.try_acquire());
        threads.put(cache, 1);
        model(&threads, cache);
        threads.claim_all();
        threads.take_run();
        assert_eq!(threads.cached.load(Ordering::Relaxed), 0, "a block or run was lost");
    });
}

impl Threads {
    /// Uses the memory of a block that was taken out of a cache.
    fn took(&self, block: usize) {
        self.cached.fetch_sub(1, Ordering::Relaxed);
        self.memory.write(block..block + 1);
    }

    /// Frees a block as the cache's owner. If the owner can't use the cache, the block is dropped.
    fn put(&self, cache: &Cache, block: usize) {
        self.memory.write(block..block + 1);
        let is_cached = cache.enter().is_some_and(|cache| cache.push(CLASS, block as u64));
        self.cached.fetch_add(is_cached.into(), Ordering::Relaxed);
    }

    /// Takes a block as the cache's owner.
    fn take(&self, cache: &Cache) -> Option<usize> {
        let block = cache.enter()?.pop(CLASS)? as usize;
        self.took(block);
        Some(block)
    }

    fn empty(&self, cache: &Cache) {
        cache.take_first(CLASS, 0).for_each(|block| self.took(block));
    }

    /// Takes the cached blocks of idle threads, in the role of a thread that owns neither cache.
    fn claim_all(&self) {
        let fence_other_threads = || {
            fence(Ordering::SeqCst);
            true
        };
        self.claiming.claim_all(self.caches.iter(), PROCESS, None, fence_other_threads, |cache| self.empty(cache));
    }

    /// Releases the cache of an exiting thread.
    fn exit(&self, cache: &Cache) {
        cache.release(|cache| self.empty(cache), || (), Cache::disown);
    }

    /// Acquires a cache for a new thread.
    fn begin(&self) -> Option<&Cache> {
        self.caches.iter().find(|cache| cache.try_acquire())
    }
}

#[test]
fn a_cached_block_goes_to_its_thread_or_to_a_claimant() {
    with_threads(4, |threads, cache| {
        beside(threads, Threads::claim_all, || {
            threads.take(cache).into_iter().for_each(|block| threads.put(cache, block));
            threads.put(cache, 2);
        });
    });
}

#[test]
fn a_cached_block_goes_to_one_of_two_claimants_or_to_its_thread() {
    with_threads(2, |threads, cache| {
        beside_two(threads, Threads::claim_all, Threads::claim_all, || {
            threads.put(cache, 2);
            threads.take(cache);
        });
    });
}

/// Without a fence, a claimant empties only its own cache, and no other thread's.
#[test]
fn without_a_fence_a_claimant_empties_only_its_own_cache() {
    with_threads(4, |threads, cache| {
        let claimant = |other: &Threads| {
            let own = &other.caches[1];
            assert!(own.try_acquire());
            other.put(own, 3);
            let empty = |cache: &Cache| {
                assert!(std::ptr::eq(cache, own));
                other.empty(cache);
            };
            other.claiming.claim_all(other.caches.iter(), PROCESS, Some(own), || false, empty);
            assert_eq!(other.take(own), None);
            other.exit(own);
        };
        beside(threads, claimant, || threads.take(cache));
    });
}

/// A thread exits while another starts and may acquire the exiting thread's cache. A third thread claims the cache.
#[test]
fn exiting_thread_cache_is_adopted() {
    with_threads(2, |threads, cache| {
        let begins = |next: &Threads| {
            let cache = next.begin().expect("as many caches as threads");
            next.put(cache, 2);
            next.take(cache).into_iter().for_each(|block| next.put(cache, block));
            next.exit(cache);
        };
        beside_two(threads, Threads::claim_all, begins, || threads.exit(cache));
    });
}

/// The exiting thread takes nothing out, as if a signal had interrupted it while it used its cache.
#[test]
fn blocks_left_in_a_cache_belong_to_its_next_owner() {
    with_threads(4, |threads, cache| {
        let begins = |next: &Threads| {
            if next.caches[0].try_acquire() {
                assert_eq!(next.take(&next.caches[0]), Some(1), "the block that was left is gone");
            }
        };
        beside(threads, begins, || {
            threads.put(cache, threads.take(cache).expect("nobody claims"));
            cache.release(|_| (), || (), Cache::disown);
        });
    });
}

/// A signal handler may interrupt an exiting thread before it has forgotten its cache.
#[test]
fn no_thread_acquires_a_cache_before_its_exiting_owner_forgot_it() {
    with_threads(4, |threads, cache| {
        let begins = |next: &Threads| {
            if next.caches[0].try_acquire() {
                next.put(&next.caches[0], 2);
                next.take(&next.caches[0]);
            }
        };
        let handler = || {
            assert!(!cache.try_acquire(), "another thread could have it");
            threads.put(cache, threads.take(cache).expect("nobody emptied it"));
        };
        beside(threads, begins, || cache.release(|_| (), handler, Cache::disown));
    });
}

const UNIT_BYTES: usize = 16 << 10;

/// Returns the run with number `index`.
fn run(index: usize) -> Run {
    Run::new((index + 1) * UNIT_BYTES, UNIT_BYTES).expect("a whole unit")
}

/// Returns the index in `Threads::memory` that stands for the memory of a run. Blocks have lower indices.
fn place(run: Run) -> usize {
    100 + run.address() / UNIT_BYTES
}

impl Threads {
    fn put_run(&self, cache: &Cache, run: Run) {
        self.memory.write(place(run)..place(run) + 1);
        self.cached.fetch_add(1, Ordering::Relaxed);
        // This does not enter the cache, because in the models `enter` uses a full fence, which orders more than a compiler fence.
        cache.put_run(run).into_iter().for_each(|out| self.took(place(out)));
    }

    fn take_run_again(&self, cache: &Cache) {
        cache.take_run_if(UNIT_BYTES, |_| true).into_iter().for_each(|run| self.took(place(run)));
    }

    /// Takes the cached run, in the role of a thread that does not own the cache. The run then belongs to that thread.
    fn take_run(&self) {
        self.caches[0].take_runs().for_each(|run| self.took(place(run)));
    }
}

/// The owner frees a run and requests it again, while other threads try to take the cached run.
#[test]
fn a_cached_run_goes_to_one_thread() {
    with_threads(4, |threads, cache| {
        beside_two(threads, Threads::take_run, Threads::take_run, || {
            threads.put_run(cache, run(0));
            threads.take_run_again(cache);
        });
    });
}

/// The owner frees two runs, one after the other. Exactly one thing happens to each: it is cached, displaced, or taken by another thread.
#[test]
fn a_displaced_run_goes_to_one_thread() {
    with_threads(4, |threads, cache| {
        beside(threads, Threads::take_run, || {
            threads.put_run(cache, run(0));
            threads.put_run(cache, run(1));
            threads.take_run_again(cache);
        });
    });
}

#[test]
fn a_run_in_the_cache_of_an_exiting_thread_goes_to_one_thread() {
    with_threads(3, |threads, cache| {
        let begins = |next: &Threads| {
            let cache = &next.caches[0];
            if cache.try_acquire() {
                next.put_run(cache, run(1));
                next.take_run_again(cache);
            }
        };
        beside_two(threads, Threads::take_run, begins, || {
            threads.put_run(cache, run(0));
            threads.exit(cache);
        });
    });
}
