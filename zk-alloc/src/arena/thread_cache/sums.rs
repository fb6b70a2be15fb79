//! Sums over the threads that live, and those that lived.

use std::sync::atomic::{AtomicU64, Ordering};

use super::cache::{Cache, Totals};
use super::registry;

/// What threads requested and gave back since the process started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) runs: Totals,
    pub(super) blocks: Totals,
    pub(super) returned_bytes: u64,
}

/// The counts of threads that ended, in the order of [`Sums::of`].
static FORMER: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
/// How many threads began, and how many ended, to add to these.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Adds that are under way when a sum is made are waited for that often: another look takes about as long as they do. A thread that was cut
/// off by a fork never ends.
const ATTEMPTS: usize = 3;

/// Adds the counts of an exiting thread to those of former threads.
pub(super) fn add_to_former(cache: &Cache) {
    let (runs, blocks) = (cache.run_totals(), cache.block_totals());
    let counts = [runs.allocations, runs.bytes, blocks.allocations, blocks.bytes, cache.returned_bytes()];
    BEGUN.fetch_add(1, Ordering::SeqCst);
    for (former, count) in FORMER.iter().zip(counts) {
        former.fetch_add(count, Ordering::SeqCst);
    }
    cache.forget_counts();
    ENDED.fetch_add(1, Ordering::SeqCst);
}

/// The sums now. Approximate while threads allocate.
pub(super) fn of_all() -> Sums {
    let mut attempts = 0;
    loop {
        let ended = ENDED.load(Ordering::SeqCst);
        let sums = walk();
        attempts += 1;
        if BEGUN.load(Ordering::SeqCst) == ended || attempts == ATTEMPTS {
            return sums;
        }
    }
}

fn walk() -> Sums {
    let [run_allocations, run_bytes, block_allocations, block_bytes, returned_bytes] =
        FORMER.each_ref().map(|former| former.load(Ordering::SeqCst));
    // First what came back. A block that is handed out and comes back between the walks must not count as back only.
    let returned_bytes = returned_bytes + registry::all().map(Cache::returned_bytes).sum::<u64>();
    let former = Sums {
        runs: Totals { allocations: run_allocations, bytes: run_bytes },
        blocks: Totals { allocations: block_allocations, bytes: block_bytes },
        returned_bytes,
    };
    registry::all().fold(former, |sums, cache| Sums {
        runs: [sums.runs, cache.run_totals()].into_iter().sum(),
        blocks: [sums.blocks, cache.block_totals()].into_iter().sum(),
        returned_bytes,
    })
}
