//! Placement of memory. Slabs and runs of nearly all lengths share a zone. Memory freed by one kind serves requests of the others, even if
//! some allocations stay alive. A thread caches the short runs that it freed last; reuse.rs tests how other threads get them. Small blocks
//! of two threads share no cache line. If a large vector moves as it grows, its pages are remapped where the new place is fresh, and copied
//! without a page fault where it is resident. These moves leave few mappings.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

use crate::support::blocks::{KIB, MIB};
use crate::support::{alone, assert_patterned, maps, patterned};
use zk_alloc::{Phase, phase, release, stats};

/// Runs `body` in a phase, in a process of its own.
#[track_caller]
fn in_a_phase(body: impl FnOnce()) {
    alone!();
    phase(body);
}

/// Fails if `work` uses more than `most_bytes` of fresh memory, which was not resident before.
#[track_caller]
fn assert_fresh<R>(most_bytes: usize, work: impl FnOnce() -> R) {
    let before = stats().fresh_bytes;
    let _made = work();
    let fresh_bytes = stats().fresh_bytes - before;
    assert!(fresh_bytes <= most_bytes as u64, "{fresh_bytes} bytes were fresh");
}

fn run(bytes: usize) -> Vec<u8> {
    black_box(vec![1; bytes])
}

/// Allocates blocks of 16 KiB, which are served from slabs.
fn blocks(bytes: usize) -> Vec<Vec<u8>> {
    black_box((0..bytes / (16 * KIB)).map(|_| vec![1; 16 * KIB]).collect())
}

/// Slabs and short runs must stay out of the memory of long runs. Otherwise, those that outlive a proof would split the memory of its
/// longest run, and the longest run of the next proof would need fresh memory.
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
        // Before that, a run of 1 MiB uses a part of the freed 16 MiB. Threads do not cache runs of this size, so its memory is free again at
        // once.
        drop(run(MIB));
        let pins = shorts();
        assert_fresh(0, || run(16 * MIB));
        drop(pins);
    });
}

/// Each kind of allocation peaks at a different time. If they did not share memory, a proof would need the sum of their peaks.
#[test]
fn slabs_short_runs_and_long_runs_reuse_each_others_memory() {
    // The size of the small-object region: 3 MiB for each of the machine's threads.
    let region_bytes = 3 * thread::available_parallelism().map_or(8, usize::from) * MIB;
    in_a_phase(|| {
        drop(run(48 * MIB));
        assert_fresh(region_bytes, || blocks(region_bytes + 24 * MIB));
    });
    in_a_phase(|| {
        // Uses a thread that exits, because a running thread would cache some blocks, which would keep their slabs in use.
        thread::spawn(move || drop(blocks(region_bytes + 24 * MIB))).join().expect("it only allocates");
        assert_fresh(0, || run(16 * MIB));
    });
    in_a_phase(|| {
        drop(run(16 * MIB));
        // The vector that holds the short runs is in a slab, whose pages may be fresh. So it is written before the measurement.
        let mut many = vec![Vec::new(); 8 * MIB / (40 * KIB)];
        assert_fresh(0, || many.iter_mut().for_each(|short| *short = run(40 * KIB)));
        drop(many);
        assert_fresh(0, || run(12 * MIB));
    });
}

/// The length of a run that threads cache. They cache no run of 256 KiB or more.
const CACHED_BYTES: usize = 128 * KIB;

/// Writes to a buffer and frees it. Returns its address.
fn use_a_buffer() -> usize {
    let buffer = run(CACHED_BYTES);
    buffer.as_ptr().addr()
}

/// A thread gets the run that it freed last, and a run grows into a cached run that follows it. The test harness may allocate on another
/// thread, so the second part tries several times.
#[test]
fn a_cached_run_is_reused_and_its_neighbour_grows_into_it() {
    in_a_phase(|| {
        let before = stats();
        let first = use_a_buffer();
        assert_eq!(use_a_buffer(), first);
        let after = stats();
        assert_eq!(after.run_allocations - before.run_allocations, 2, "both requests count");
        assert_eq!(after.run_bytes - before.run_bytes, 2 * CACHED_BYTES as u64);
        // The buffers stay alive, so each try gets a different place.
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
        assert!((0..50).any(&mut is_behind), "the cached run never followed the buffer");
    });
}

/// The sizes are not multiples of a cache line, and the standard library does not allocate blocks of these sizes when it starts a thread.
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
            // The first and the last cache line of each block.
            let [a, b] = both.map(|block| [0, bytes - 1].map(|byte| (block.as_ptr().addr() + byte) / 64));
            assert!(a[1] < b[0] || b[1] < a[0], "blocks of {bytes} bytes on the lines {a:?} and {b:?}");
        }
    });
}

const FROM_BYTES: usize = 8 << 20;
const STEPS: usize = 3;

/// Doubles a vector several times, each time with another buffer after it, and checks its contents. Returns the vector's addresses.
fn grow() -> Vec<usize> {
    let mut values = patterned(FROM_BYTES / size_of::<u64>(), 5);
    let len = values.len();
    let mut behind: Vec<Vec<u8>> = Vec::new();
    let mut places = vec![values.as_ptr().addr()];
    for _ in 0..STEPS {
        behind.push(vec![1; FROM_BYTES]);
        values.reserve_exact(values.capacity());
        places.push(values.as_ptr().addr());
        assert_patterned(&values[..len], 5);
        let capacity = values.capacity();
        values.resize(capacity, 0);
    }
    places.dedup();
    places
}

#[test]
fn a_vector_that_grows_into_resident_memory_faults_no_page() {
    alone!();
    // The first round leaves free runs where the vector was, and the second round reuses them.
    for round in 0..4 {
        let (before, purged) = (stats().system_calls, stats().purged_bytes);
        let phase = Phase::new();
        let places = grow();
        let report = phase.report();
        let (faults, calls) = (report.minor_faults, stats().system_calls - before);
        assert!(places.len() > 1, "the vector must move, or the test shows nothing");
        if round == 0 {
            assert!(calls > 0, "pages move where memory is fresh: {report:?}");
            let touched = (FROM_BYTES << STEPS) + STEPS * FROM_BYTES;
            assert!(report.fresh_bytes as usize <= touched + touched / 8, "moved pages are not fresh: {report:?}");
            assert_eq!(stats().purged_bytes, purged, "and were not purged");
        } else if round > 1 {
            assert!(faults < 100 && calls == 0, "round {round}: {faults} faults and {calls} system calls");
        }
    }
}

/// Returns vectors that grew from 4 to 16 MiB at the same time, so each of them moved twice. Few of their pages are touched.
fn grown_vectors(count: usize) -> Vec<Vec<u8>> {
    let mut vectors: Vec<Vec<u8>> = (0..count).map(|_| Vec::with_capacity(4 << 20)).collect();
    vectors.iter_mut().zip(1u8..).for_each(|(vector, value)| vector.extend([value; 100]));
    for _ in 0..2 {
        for vector in &mut vectors {
            // Doubles the capacity, because `reserve_exact` counts from the length.
            vector.reserve_exact(2 * vector.capacity() - vector.len());
            black_box(vector.as_ptr());
        }
    }
    assert!(vectors.iter().zip(1u8..).all(|(vector, value)| vector.iter().all(|&byte| byte == value)));
    vectors
}

/// The kernel merges the mapping of moved pages neither with its neighbours nor with the pages by which the vector then grows. By default,
/// a process may have 65,530 mappings.
#[test]
fn vectors_that_moved_leave_few_mappings() {
    const VECTORS: usize = 100;
    const RETAINED: (&str, &str) = ("ZK_ALLOC_RETAIN_BYTES", "64G");
    alone!(each & [&[("ZK_ALLOC_THP", "never"), RETAINED], &[("ZK_ALLOC_THP", "always"), RETAINED]]);
    drop(phase(|| grown_vectors(1)));
    release();
    let before = maps::count();
    for round in 0..3 {
        let vectors = phase(|| grown_vectors(VECTORS));
        let alive = maps::count();
        assert!(alive < before + 3 * VECTORS + 20, "round {round}: {before} mappings, {alive} with {VECTORS} vectors");
        drop(vectors);
        let freed = maps::count();
        assert!(freed < before + 3 * VECTORS + 20, "round {round}: {before} mappings, {freed} after the vectors");
        release();
        let purged = maps::count();
        assert!(purged < before + 12, "round {round}: {before} mappings, {purged} after the purge");
    }
}
