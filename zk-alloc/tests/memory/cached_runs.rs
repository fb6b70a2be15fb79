//! A thread caches the short run that it freed last for its next request, and other threads can still get that memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

use crate::support::alone;
use crate::support::blocks::KIB;
use zk_alloc::{phase, release, stats};

/// A short run: threads cache none of 256 KiB or more.
const BYTES: usize = 128 * KIB;

/// Runs `body` in a phase, in a process of its own. Then nothing stays alive.
#[track_caller]
fn in_a_phase(body: impl FnOnce()) {
    alone!();
    phase(body);
    leaves_nothing_alive(|| _ = release());
}

/// Writes to a buffer and frees it. Returns its address.
fn use_a_buffer(bytes: usize) -> usize {
    let buffer = black_box(vec![1u8; bytes]);
    buffer.as_ptr().addr()
}

/// Fails unless `work` leaves the live size unchanged. The test harness allocates on another thread now and then, so
/// this tries several times.
fn leaves_nothing_alive(work: impl Fn()) {
    let changes = |_| {
        let before = stats().live_bytes;
        work();
        stats().live_bytes.wrapping_sub(before) as isize
    };
    let changes = (0..10).map(changes).take_while(|&bytes| bytes != 0).collect::<Vec<_>>();
    assert!(changes.len() < 10, "each time so many bytes stayed alive, or went: {changes:?}");
}

fn on_another_thread(work: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(work).join().expect("a thread of the test"));
}

#[test]
fn a_cached_run_serves_the_next_request() {
    in_a_phase(|| {
        let before = stats();
        let first = use_a_buffer(BYTES);
        assert_eq!(use_a_buffer(BYTES), first);
        let after = stats();
        assert_eq!(after.run_allocations - before.run_allocations, 2, "both count");
        assert_eq!(after.run_bytes - before.run_bytes, 2 * BYTES as u64);
        leaves_nothing_alive(|| _ = use_a_buffer(BYTES));
    });
}

/// Fails if a run came from memory that was not resident. The test harness allocates a few blocks on another thread at the same time.
fn assert_no_fresh_run(fresh_bytes: u64) {
    let fresh_bytes = stats().fresh_bytes - fresh_bytes;
    assert!(fresh_bytes < (BYTES - 32 * KIB) as u64, "{fresh_bytes} bytes were not resident");
}

#[test]
fn a_cached_run_serves_other_threads_before_memory_that_is_not_resident() {
    in_a_phase(|| {
        // The threads' own blocks are resident from here on.
        on_another_thread(|| _ = use_a_buffer(BYTES));
        use_a_buffer(BYTES);
        let fresh_bytes = stats().fresh_bytes;
        on_another_thread(|| _ = use_a_buffer(BYTES));
        on_another_thread(|| _ = use_a_buffer(BYTES - 32 * KIB));
        assert_no_fresh_run(fresh_bytes);
    });
}

#[test]
fn release_purges_a_cached_run() {
    in_a_phase(|| {
        use_a_buffer(BYTES);
        assert!(release() >= BYTES);
    });
}

/// A buffer grows into the cached run behind it. The test harness's slab may lie between them, so this tries several times.
#[test]
fn a_buffer_grows_into_the_cached_run_behind_it() {
    in_a_phase(|| {
        // They stay alive, so that each try has another place.
        let mut grown = Vec::new();
        let mut is_behind = |_| {
            let mut grows: Vec<u8> = vec![3; BYTES];
            let (at, behind) = (grows.as_ptr().addr(), use_a_buffer(BYTES));
            let is_behind = behind == at + BYTES;
            grows.reserve_exact(BYTES - 32 * KIB);
            assert!(!is_behind || grows.as_ptr().addr() == at, "it moved");
            assert!(grows.iter().all(|&byte| byte == 3));
            grown.push(grows);
            is_behind
        };
        assert!((0..50).any(&mut is_behind), "first fit in what was purged");
    });
}

/// A thread that exits leaves its cached run to the next thread. Many threads at once leave nothing alive.
#[test]
fn the_cached_run_of_a_thread_that_ended_serves_others() {
    in_a_phase(|| {
        const THREADS: usize = 300;
        let used = || (0..THREADS).for_each(|_| on_another_thread(|| _ = use_a_buffer(BYTES)));
        used();
        let fresh_bytes = stats().fresh_bytes;
        used();
        assert_no_fresh_run(fresh_bytes);

        let barrier = Barrier::new(THREADS);
        let live_bytes = stats().live_bytes;
        let work = || {
            use_a_buffer(64 * KIB);
            barrier.wait();
            use_a_buffer(64 * KIB);
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            // The scope itself waits for the end of the work, but not for the destructors of the threads' locals.
            threads.into_iter().for_each(|thread| thread.join().expect("a thread of the test"));
        });
        // Except for the standard library's data about threads.
        assert!(stats().live_bytes.abs_diff(live_bytes) < 64 * KIB, "all of it was freed");
    });
}
