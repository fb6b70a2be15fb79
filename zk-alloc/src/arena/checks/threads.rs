//! What a request costs while many threads live, and after they ended. The cost is counted in caches that a walk visits.
use std::alloc::{GlobalAlloc, Layout};
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;

use super::alone;
use crate::ZkAllocator;
use crate::arena::front::VISITS;
use crate::tuning;

static RESIDENT: ZkAllocator = ZkAllocator::resident();
const THREADS: usize = 2_000;
const REQUESTS: usize = 1_000;

fn use_memory(bytes: usize) {
    let layout = Layout::from_size_align(bytes, 8).expect("a small layout");
    // SAFETY: the layout is not empty, and the memory is freed once.
    unsafe { RESIDENT.dealloc(RESIDENT.alloc(layout), layout) };
}

/// The caches that walks visit during [`REQUESTS`] requests that all take memory which is not resident.
fn visits_of_growth(bytes: usize) -> usize {
    let layout = Layout::from_size_align(bytes, 8).expect("a small layout");
    let before = VISITS.load(Ordering::Relaxed);
    for _ in 0..REQUESTS {
        // SAFETY: the layout is not empty. The memory leaks.
        assert!(!unsafe { RESIDENT.alloc(layout) }.is_null());
    }
    VISITS.load(Ordering::Relaxed) - before
}

/// Calls `while_they_live` while all of these threads live, each with a cached block and a cached run.
fn with_threads(while_they_live: impl FnOnce()) {
    let barrier = Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        let run = || {
            use_memory(100);
            use_memory(64 << 10);
            barrier.wait();
            barrier.wait();
        };
        let spawn = |_| thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, run).expect("a thread");
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        barrier.wait();
        while_they_live();
        barrier.wait();
        // The end of a scope does not wait for destructors.
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    });
}

#[test]
fn no_request_visits_the_caches_of_threads_that_ended() {
    if alone().is_none() {
        return;
    }
    use_memory(100);
    with_threads(|| ());
    for bytes in [8 << 10, 300 << 10] {
        let visits = visits_of_growth(bytes);
        // The threads of the test harness have caches, too.
        assert!(visits <= 16 * REQUESTS, "{visits} visits in {REQUESTS} requests of {bytes} bytes");
    }
}

#[test]
fn a_request_visits_as_many_caches_of_living_threads_as_it_asks_for_pages() {
    if alone().is_none() {
        return;
    }
    use_memory(100);
    with_threads(|| {
        for pages in [2, 10] {
            let visits = visits_of_growth(pages * 4096);
            // A request looks for cached runs, and pays for a walk that notes the peak. Blocks are fetched in batches, from slabs that are
            // claimed as a whole.
            let most = REQUESTS * 4 * tuning::visits_a_page() * (pages + 1);
            assert!(visits <= most, "{visits} visits in {REQUESTS} requests of {pages} pages");
        }
    });
}
