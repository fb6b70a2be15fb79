//! Slabs and runs of nearly all lengths share a zone. Freed memory of one kind serves the others, and survivors are not
//! in the way. A thread caches the short run that it freed last for its next request; reuse.rs has what other threads get of it. Two threads
//! that write to their own small blocks do not write to the same cache line.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

use crate::support::alone;
use crate::support::blocks::{KIB, MIB};
use zk_alloc::{phase, release, stats};

/// Runs `body` in a phase, in a process of its own.
#[track_caller]
fn in_a_phase(body: impl FnOnce()) {
    alone!();
    phase(body);
}

/// Fails if `work` takes more than this number of bytes that were not resident.
#[track_caller]
fn assert_fresh<R>(most_bytes: usize, work: impl FnOnce() -> R) -> R {
    let before = stats().fresh_bytes;
    let result = work();
    let fresh_bytes = stats().fresh_bytes - before;
    assert!(fresh_bytes <= most_bytes as u64, "{fresh_bytes} bytes were fresh");
    result
}

fn run(bytes: usize) -> Vec<u8> {
    black_box(vec![1; bytes])
}

/// Blocks of 16 KiB, which are served from slabs.
fn blocks(bytes: usize) -> Vec<Vec<u8>> {
    black_box((0..bytes / (16 * KIB)).map(|_| vec![1; 16 * KIB]).collect())
}

/// If the slab of a live block or a short run took the lowest place, survivors of a proof would lie where its longest run was.
#[test]
fn slabs_and_short_runs_that_stay_do_not_take_the_place_of_a_long_run() {
    in_a_phase(|| {
        drop(run(16 * MIB));
        let pins = blocks(16 * KIB);
        assert_fresh(0, || run(16 * MIB));
        drop(pins);
    });
    in_a_phase(|| {
        let shorts = || black_box((0..12).map(|_| run(192 * KIB)).collect::<Vec<_>>());
        let long = run(16 * MIB);
        drop((shorts(), long));
        // The thread caches the last long run that it freed.
        drop(run(MIB));
        let pins = shorts();
        assert_fresh(0, || run(16 * MIB));
        drop(pins);
    });
}

/// Each kind comes and goes at another time. Without sharing, each proof would pay for all.
#[test]
fn slabs_short_runs_and_long_runs_reuse_each_others_memory() {
    // The small-object region: 3 MiB for each of the machine's threads.
    let region_bytes = 3 * thread::available_parallelism().map_or(8, usize::from) * MIB;
    in_a_phase(|| {
        drop(run(48 * MIB));
        assert_fresh(region_bytes, || blocks(region_bytes + 24 * MIB));
    });
    in_a_phase(|| {
        // A thread that lives on would cache some blocks, and their slabs would stay.
        thread::spawn(move || drop(blocks(region_bytes + 24 * MIB))).join().expect("it only allocates");
        assert_fresh(0, || run(16 * MIB));
    });
    in_a_phase(|| {
        drop(run(16 * MIB));
        // The list of them is a block of a slab. It is written here, because its pages may be fresh.
        let mut many = vec![Vec::new(); 8 * MIB / (40 * KIB)];
        assert_fresh(0, || many.iter_mut().for_each(|short| *short = run(40 * KIB)));
        drop(many);
        assert_fresh(0, || run(12 * MIB));
    });
}

/// A short run: threads cache none of 256 KiB or more.
const CACHED_BYTES: usize = 128 * KIB;

/// Writes to a buffer and frees it. Returns its address.
fn use_a_buffer() -> usize {
    let buffer = run(CACHED_BYTES);
    buffer.as_ptr().addr()
}

/// The test harness allocates on another thread now and then, so the last parts try several times.
#[test]
fn a_cached_run_serves_the_next_request_is_purged_and_is_grown_into() {
    in_a_phase(|| {
        let before = stats();
        let first = use_a_buffer();
        assert_eq!(use_a_buffer(), first);
        let after = stats();
        assert_eq!(after.run_allocations - before.run_allocations, 2, "both count");
        assert_eq!(after.run_bytes - before.run_bytes, 2 * CACHED_BYTES as u64);
        assert!(release() >= CACHED_BYTES);
        let leaves_nothing_alive = |_| {
            let live_bytes = stats().live_bytes;
            use_a_buffer();
            release();
            stats().live_bytes == live_bytes
        };
        assert!((0..10).any(leaves_nothing_alive), "a run stays alive each time: {}", stats());
        // They stay alive, so that each try has another place.
        let mut grown = Vec::new();
        let mut is_behind = |_| {
            let mut grows: Vec<u8> = vec![3; CACHED_BYTES];
            let (at, behind) = (grows.as_ptr().addr(), use_a_buffer());
            let is_behind = behind == at + CACHED_BYTES;
            grows.reserve_exact(CACHED_BYTES - 32 * KIB);
            assert!(!is_behind || grows.as_ptr().addr() == at, "it moved");
            assert!(grows.iter().all(|&byte| byte == 3));
            grown.push(grows);
            is_behind
        };
        assert!((0..50).any(&mut is_behind), "first fit in what was purged");
    });
}

/// The sizes are no multiples of a line, and none that the standard library asks for when it starts a thread.
#[test]
fn first_blocks_of_two_threads_share_no_cache_line() {
    phase(|| {
        for bytes in [80, 96, 112] {
            let both_have = Barrier::new(2);
            let first = || {
                let block = black_box(vec![1u8; bytes]);
                both_have.wait();
                block
            };
            let both = thread::scope(|scope| {
                [(); 2].map(|()| scope.spawn(first)).map(|thread| thread.join().expect("it allocates"))
            });
            // The first line and the last.
            let [a, b] = both.map(|block| [0, bytes - 1].map(|byte| (block.as_ptr().addr() + byte) / 64));
            assert!(a[1] < b[0] || b[1] < a[0], "blocks of {bytes} bytes on the lines {a:?} and {b:?}");
        }
    });
}
