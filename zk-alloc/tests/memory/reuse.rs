//! Freed memory must be reused, whether it was purged to be zeroed, cut off by shrinking, cached by other threads, or counted at a cap.
//! Each test covers one promise. If the promise were broken, memory would be lost, or a request would get stale bytes.
//!
//! The time of a request hardly depends on the number of free runs below it, or on whether the cap is reached. The bounds are ratios of
//! median times: to the same requests before there were free runs, or to the backing allocator. A search over all free runs takes hundreds
//! of times as long.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeSet;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::blocks::{Allocator, Block, KIB, MIB, RESIDENT, cost, free_every, keep_every};
use crate::support::{alone, beside_idle_threads, in_its_own_process, rss_bytes};
use zk_alloc::{Retain, overflow_stats, release, set_retain, stats};

fn written(count: usize, bytes: usize) -> Vec<Block> {
    (0..count).map(|_| Block::written(&RESIDENT, bytes)).collect()
}

/// Sizes in bytes for every path through the arena, 32 MiB of each, and a huge run.
const SIZES: [usize; 9] = [KIB, 5 * KIB, 20 * KIB, 40 * KIB, 200 * KIB, MIB, 5 * MIB + 4 * KIB, 32 * MIB, 70 * MIB];

fn count_of(bytes: usize) -> usize {
    (32 * MIB / bytes).max(1)
}

/// Zeroing by a purge has two effects: the kernel's pages are zero, and they are not resident. With only one of these effects, the memory
/// would be stale, or the process would stay large. With small pages, zeroing by a purge may not be worth its cost.
#[test]
fn memory_zeroed_by_a_purge_is_zero_and_not_resident() {
    for huge_pages in ["always", "never"] {
        in_its_own_process(&[("ZK_ALLOC_LAZY_ZERO_BYTES", "16K"), ("ZK_ALLOC_THP", huge_pages)], || {
            for bytes in SIZES {
                let before = rss_bytes();
                drop(written(count_of(bytes), bytes));
                let zeroed: Vec<_> = (0..count_of(bytes)).map(|_| Block::zeroed(&RESIDENT, bytes)).collect();
                // The memory was not written after the purge. The rest of a huge page at each end may stay resident.
                let is_purged = bytes >= 4 * MIB && huge_pages == "always";
                let cost = if is_purged { cost(before) } else { 0 };
                assert!(cost <= 8 * MIB, "{cost} bytes, in buffers of {bytes}, are resident before a write");
                assert!(zeroed.iter().all(Block::is_zero), "{bytes} bytes are not zero");
                drop(zeroed);
                release();
            }
        });
    }
}

/// The tail of a buffer that shrinks in place is free. It must serve other requests, and must not be freed again with the buffer.
#[test]
fn tails_of_buffers_that_shrink_serve_others() {
    // The number of buffers, their old and new sizes in bytes, and a size that fits in the tails.
    const CASES: [(usize, usize, usize, usize); 4] = [
        (3, 200 * MIB, 70 * MIB, 100 * MIB),
        (48, 8 * MIB, 2 * MIB, MIB),
        (48, 4 * MIB, 300 * KIB, 300 * KIB),
        (1_000, 240 * KIB, 40 * KIB, 40 * KIB),
    ];
    alone!();
    set_retain(Retain::Always);
    drop(written(1, MIB));
    release();
    let live_bytes = stats().live_bytes;
    for (count, from, to, fitting) in CASES {
        let what = format!("{count} buffers shrunk from {from} to {to} bytes");
        let buffers = written(count, from);
        let (full_bytes, fresh_bytes, before) = (stats().live_bytes, stats().fresh_bytes, rss_bytes());
        let shrunk: Vec<_> = buffers.into_iter().map(|buffer| buffer.resized(to).expect("memory")).collect();
        let tails_bytes = count * (from - to);
        let freed_bytes = full_bytes - stats().live_bytes;
        assert!(freed_bytes >= tails_bytes / 4 * 3, "{what}: {freed_bytes} of {tails_bytes} bytes were freed");
        // Three quarters of the buffers that would fit by size, because some room is lost if a tail is not a whole number of buffers long.
        let fillers = written(count * ((from - to) / fitting).max(1) * 3 / 4, fitting);
        let fresh_bytes = stats().fresh_bytes - fresh_bytes;
        assert!(fresh_bytes as usize <= tails_bytes / 4, "{what}: {fresh_bytes} of {tails_bytes} bytes are fresh");
        assert!(cost(before) <= tails_bytes / 4 + 4 * MIB, "{what}: RSS grew by {} bytes", cost(before));
        drop((shrunk, fillers));
        release();
        let left = stats().live_bytes.abs_diff(live_bytes);
        assert!(left <= MIB, "{what}: {left} bytes count as live and belong to no buffer\n{}", stats());
    }
}

/// Blocks that a thread freed stay in its cache until the thread exits or another thread needs them. tests/hazards covers threads that
/// exit.
#[test]
fn the_caches_of_idle_threads_serve_others() {
    const THREADS: usize = 64;
    alone!();
    set_retain(Retain::Always);
    // While one thread opens the arena, the backing allocator serves the others, and gets back the blocks that they free.
    drop(written(1, KIB));
    let sizes = [KIB, 3 * KIB, 20 * KIB, 100 * KIB, MIB];
    // Threads that compete begin more slabs than they fill, and the rest of these slabs is untouched, so more memory is fresh.
    for (in_turn, part) in [(true, 4), (false, 2)] {
        for bytes in sizes {
            // All threads have the same amount allocated at once, free it, and keep what fits in their caches.
            let (all, turn) = (Barrier::new(THREADS), Mutex::new(()));
            let work = || {
                let first = in_turn.then(|| turn.lock().expect("no thread panics"));
                let blocks = written((MIB / bytes).max(1), bytes);
                drop(first);
                all.wait();
                drop(blocks);
            };
            let meanwhile = || {
                let (before, fresh_bytes) = (rss_bytes(), stats().fresh_bytes);
                let _others = written(THREADS * (MIB / bytes).max(1), bytes);
                [(stats().fresh_bytes - fresh_bytes) as usize, cost(before)]
            };
            let [fresh_bytes, cost] = beside_idle_threads(THREADS, work, meanwhile, || ());
            let (all_bytes, most) = (THREADS * MIB, THREADS * MIB / part);
            let what = format!("{all_bytes} bytes in {bytes}, in turn: {in_turn}");
            assert!(fresh_bytes <= most, "{fresh_bytes} of {what} were fresh");
            assert!(cost <= most, "RSS grew by {cost} bytes for {what}");
        }
    }
}

const CAP: [(&str, &str); 1] = [("ZK_ALLOC_MAX_BYTES", "160M")];

/// A cap counts resident memory, so free memory of one kind leaves no room for requests of another kind. The arena must purge that memory
/// first. The test tries every pair of kinds, because each kind has its own place in the region.
#[test]
fn free_memory_of_every_kind_makes_room_under_a_cap() {
    // Each kind takes 112 MiB of the cap's 160 MiB, which leaves no room for another kind.
    const KINDS: [(usize, usize); 6] =
        [(112 * KIB, KIB), (5_734, 20 * KIB), (2_867, 40 * KIB), (573, 200 * KIB), (112, MIB), (1, 112 * MIB)];
    alone!(&CAP);
    for (first_count, first_bytes) in KINDS {
        for (count, bytes) in KINDS {
            drop(written(first_count, first_bytes));
            drop(written(count, bytes));
            let what = format!("{count} requests of {bytes} bytes after {first_count} of {first_bytes}");
            assert_eq!(overflow_stats(), (0, 0), "{what}\n{}", stats());
        }
    }
}

#[test]
fn free_memory_in_other_threads_makes_room_under_a_cap() {
    const THREADS: usize = 20;
    alone!(&CAP);
    // While one thread opens the arena, the arena serves no other thread.
    drop(written(1, KIB));
    // With the last list of sizes, a thread caches 128 KiB of each class. All threads together cache more than the huge run leaves under
    // the cap.
    for sizes in [vec![KIB], vec![20 * KIB], vec![100 * KIB], vec![7 * MIB], (1..=32).map(|kib| kib * KIB).collect()] {
        // Only the huge run may find the cap full.
        release();
        let all = Barrier::new(THREADS);
        let work = || {
            let blocks: Vec<_> = sizes.iter().map(|&bytes| written(7 * MIB / sizes.len() / bytes, bytes)).collect();
            all.wait();
            drop(blocks);
        };
        let meanwhile = || {
            drop(written(1, 112 * MIB));
            overflow_stats()
        };
        let over = beside_idle_threads(THREADS, work, meanwhile, || ());
        assert_eq!(over, (0, 0), "a huge run after {THREADS} threads freed 7 MiB in {sizes:?} each\n{}", stats());
    }
}

/// If several threads find the cap full at the same time, one may take the room that another made. The other thread must then make more
/// room.
#[test]
fn threads_that_meet_at_a_cap_make_room_for_each_other() {
    const THREADS: usize = 16;
    alone!(&CAP);
    for bytes in [20 * KIB, 100 * KIB, MIB] {
        drop(written(1, 112 * MIB));
        let start = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    drop(written(6 * MIB / bytes, bytes));
                });
            }
        });
        assert_eq!(overflow_stats(), (0, 0), "{THREADS} threads with 6 MiB in {bytes} each\n{}", stats());
    }
}

/// `GlobalAlloc` forbids empty layouts, but some unsafe code passes them anyway, and other allocators tolerate them.
#[test]
fn empty_layouts_of_any_alignment_get_distinct_addresses() {
    alone!();
    let mut alive = Vec::new();
    let assert_distinct = |alive: &[(*mut u8, Layout)]| {
        let is_aligned = |&(at, layout): &(*mut u8, Layout)| !at.is_null() && at.addr().is_multiple_of(layout.align());
        assert!(alive.iter().all(is_aligned));
        let addresses: BTreeSet<_> = alive.iter().map(|(at, _)| at.addr()).collect();
        assert_eq!(addresses.len(), alive.len(), "two allocations share an address");
    };
    for align in (0..=16).map(|log2| 1 << log2) {
        for (size, zeroed) in [(0, false), (0, true), (1, false), (1, true)] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: this allocator tolerates an empty layout.
            let new =
                || (unsafe { if zeroed { RESIDENT.alloc_zeroed(layout) } else { RESIDENT.alloc(layout) } }, layout);
            alive.extend([(); 3].map(|()| new()));
        }
    }
    assert_distinct(&alive);
    for new_size in [100, 0, 70_000, 0, 1, 0] {
        for (at, layout) in &mut alive {
            // SAFETY: the block was allocated with this layout, or resized to it.
            *at = unsafe { RESIDENT.realloc(*at, *layout, new_size) };
            *layout = Layout::from_size_align(new_size, layout.align()).unwrap();
        }
        assert_distinct(&alive);
    }
    let live_bytes = stats().live_bytes;
    for (at, layout) in alive {
        // SAFETY: the block was allocated with this layout, or resized to it.
        unsafe { RESIDENT.dealloc(at, layout) };
    }
    assert!(stats().live_bytes < live_bytes);
}

/// The number of requests over which the median is taken.
const SAMPLES: usize = 301;

/// The maximum time of a request, as a multiple of its time in an empty arena.
const MAX_TIMES: u32 = 50;
/// The minimum time that a request in an empty arena is assumed to take. Shorter times are too close to the clock's resolution.
const MIN_TIME: Duration = Duration::from_micros(1);

/// Returns the median time of requests of `size` bytes, and their blocks. While the blocks are alive, the next requests cannot reuse their
/// memory.
fn median_request(allocator: Allocator, size: usize) -> (Duration, Vec<Block>) {
    let mut alive = Vec::with_capacity(SAMPLES);
    let mut times = [(); SAMPLES].map(|()| {
        let begun = Instant::now();
        alive.push(Block::untouched(allocator, size, 8));
        begun.elapsed()
    });
    times.sort_unstable();
    (times[SAMPLES / 2], alive)
}

/// A plain first-fit search of a bitmap would read every free run that is too short, at each request. In the second case, the free runs are
/// nearly long enough. In the last, the small-object region below them is free too.
#[test]
fn requests_do_not_search_free_runs_that_are_too_short() {
    for (free_run_bytes, size) in [(33 * KIB, 200 * KIB), (33 * KIB, 48 * KIB), (300 * KIB, MIB)] {
        // With huge pages, untouched blocks would take memory.
        in_its_own_process(&[("ZK_ALLOC_THP", "never")], || {
            let in_empty = median_request(&RESIDENT, size).0;
            let mut blocks: Vec<_> = (0..160_000).map(|_| Block::untouched(&RESIDENT, free_run_bytes, 8)).collect();
            keep_every(2, &mut blocks);
            let median = median_request(&RESIDENT, size).0;
            let most = MAX_TIMES * in_empty.max(MIN_TIME);
            assert!(median <= most, "{median:?} with {} blocks alive, {in_empty:?} with none", blocks.len());
            drop(blocks);
            assert_eq!(overflow_stats(), (0, 0), "the arena served all of it\n{}", stats());
        });
    }
}

/// When no memory is free, a search for memory to purge takes longer the more memory is live. In the second process, all free memory shares
/// its pages with live blocks.
#[test]
fn requests_over_a_full_cap_do_not_search_for_free_memory() {
    for small in [0, 1_000 * MIB / KIB] {
        in_its_own_process(&[("ZK_ALLOC_MAX_BYTES", "1G")], || {
            let mut blocks: Vec<_> = (0..small).map(|_| Block::written(&RESIDENT, KIB)).collect();
            keep_every(2, &mut blocks);
            while overflow_stats().0 < 100 {
                assert!(blocks.len() < 2 * MIB, "the cap refuses no request\n{}", stats());
                blocks.push(Block::written(&RESIDENT, 48 * KIB));
            }
            let over = overflow_stats().0;
            // The backing allocator serves these requests. They may take eight times as long as without the arena.
            let (median, _blocks) = median_request(&RESIDENT, 48 * KIB);
            let backing = median_request(&System, 48 * KIB).0;
            assert!(median <= 8 * backing, "{median:?}, of the backing allocator {backing:?}\n{}", stats());
            assert!(overflow_stats().0 >= over + SAMPLES / 2, "most were over the cap");
        });
    }
}

/// A search of all slabs for a free block would take longer the more slabs there are.
#[test]
fn small_requests_do_not_search_all_slabs() {
    alone!();
    const PART: usize = 100_000;
    let allocate = || (0..PART).map(|_| Block::untouched(&RESIDENT, 512, 8)).collect::<Vec<_>>();
    // Returns the shortest time of ten parts, whose blocks stay alive.
    let timed = |alive: &mut Vec<Block>| {
        let part = |_| {
            let begun = Instant::now();
            let blocks = allocate();
            let time = begun.elapsed();
            alive.extend(blocks);
            time
        };
        (0..10).map(part).min().expect("parts")
    };
    let mut below = Vec::new();
    let first = timed(&mut below);
    (0..80).for_each(|_| below.extend(allocate()));
    // The arena must not search slabs that used to have room, either. So some blocks of each slab are freed, and the first part takes them
    // again.
    free_every(64, &mut below);
    let (count, last) = (below.len(), timed(&mut below));
    assert!(last <= 4 * first, "{last:?} for {PART} blocks above {count}, {first:?} above none");
}
