//! A thread caches the short run that it freed last for its next request, and other threads can still get that memory.
//!
//! There is one test, because resident memory belongs to the process.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

use zk_alloc::{ZkAllocator, phase, release, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const KIB: usize = 1 << 10;
/// A short run: threads cache none of 256 KiB or more.
const BYTES: usize = 128 * KIB;

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

fn serves_the_next_request() {
    let before = stats();
    let first = use_a_buffer(BYTES);
    assert_eq!(use_a_buffer(BYTES), first);
    let after = stats();
    assert_eq!(after.run_allocations - before.run_allocations, 2, "both count");
    assert_eq!(after.run_bytes - before.run_bytes, 2 * BYTES as u64);
    leaves_nothing_alive(|| _ = use_a_buffer(BYTES));
}

/// Fails if a run came from memory that was not resident. The test harness allocates a few blocks on another thread meanwhile.
fn assert_no_fresh_run(fresh_bytes: u64) {
    let fresh_bytes = stats().fresh_bytes - fresh_bytes;
    assert!(fresh_bytes < (BYTES - 32 * KIB) as u64, "{fresh_bytes} bytes were not resident");
}

fn goes_to_others_before_memory_that_is_not_resident() {
    // The threads' own blocks are resident from here on.
    on_another_thread(|| _ = use_a_buffer(BYTES));
    use_a_buffer(BYTES);
    let fresh_bytes = stats().fresh_bytes;
    on_another_thread(|| _ = use_a_buffer(BYTES));
    on_another_thread(|| _ = use_a_buffer(BYTES - 32 * KIB));
    assert_no_fresh_run(fresh_bytes);
}

fn is_purged_when_asked() {
    use_a_buffer(BYTES);
    assert!(release() >= BYTES);
}

/// A buffer grows into the cached run behind it. The test harness's slab may lie between them, so this tries several times.
fn makes_way_for_growth() {
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
}

/// A thread that exits leaves its cached run to the next thread. Many threads at once leave nothing alive.
fn is_not_lost_with_its_thread() {
    const THREADS: usize = 300;
    let used = || (0..THREADS).for_each(|_| on_another_thread(|| _ = use_a_buffer(BYTES)));
    used();
    let fresh_bytes = stats().fresh_bytes;
    used();
    assert_no_fresh_run(fresh_bytes);

    let barrier = Barrier::new(THREADS);
    let live_bytes = stats().live_bytes;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                use_a_buffer(64 * KIB);
                barrier.wait();
                use_a_buffer(64 * KIB);
            });
        }
    });
    // Except for the standard library's data about threads.
    assert!(stats().live_bytes.abs_diff(live_bytes) < 64 * KIB, "all of it was freed");
}

#[test]
fn a_cached_run() {
    phase(|| {
        serves_the_next_request();
        goes_to_others_before_memory_that_is_not_resident();
        is_purged_when_asked();
        makes_way_for_growth();
        is_not_lost_with_its_thread();
    });
    leaves_nothing_alive(|| _ = release());
}
