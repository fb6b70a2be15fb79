//! Freed memory must be reused: memory that a purge has zeroed, tails of buffers that shrank, blocks in the caches of other threads, and
//! memory that counts towards a cap. Otherwise, memory would be lost, or a zeroed request would get stale bytes.
//!
//! The time of a request must hardly depend on the number of free runs at lower addresses, or on whether the cap is reached. The tests
//! compare median times: with those in an empty arena, or with those of the backing allocator. A search over all free runs would take
//! hundreds of times as long.

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

/// Sizes in bytes that cover every path through the arena.
const SIZES: [usize; 9] = [KIB, 5 * KIB, 20 * KIB, 40 * KIB, 200 * KIB, MIB, 5 * MIB + 4 * KIB, 32 * MIB, 70 * MIB];

fn count_of(bytes: usize) -> usize {
    (32 * MIB / bytes).max(1)
}

/// The arena may zero memory by purging it. The memory must then be zero, and must not be resident until it is written. With small pages,
/// the arena may clear the memory instead.
#[test]
fn memory_zeroed_by_a_purge_is_zero_and_not_resident() {
    for huge_pages in ["always", "never"] {
        in_its_own_process(&[("ZK_ALLOC_LAZY_ZERO_BYTES", "16K"), ("ZK_ALLOC_THP", huge_pages)], || {
            for bytes in SIZES {
                let before = rss_bytes();
                drop(written(count_of(bytes), bytes));
                let zeroed: Vec<_> = (0..count_of(bytes)).map(|_| Block::zeroed(&RESIDENT, bytes)).collect();
                // After the purge, nothing has been written. The parts of huge pages at both ends may stay resident.
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

/// When a buffer shrinks in place, its tail is freed. The tail must serve other requests, and must not be freed again with the buffer.
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
        // Allocates three quarters of the buffers that would fit by size, because part of a tail stays unused if its length is not a
        // multiple of theirs.
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

/// Blocks that a thread has freed stay in its cache until the thread exits or another thread needs them. The tests in tests/hazards cover
/// threads that exit.
#[test]
fn the_caches_of_idle_threads_serve_others() {
    const THREADS: usize = 64;
    alone!();
    set_retain(Retain::Always);
    // Opens the arena. While one thread does this, the backing allocator serves the others, and their blocks would not be in the arena.
    drop(written(1, KIB));
    let sizes = [KIB, 3 * KIB, 20 * KIB, 100 * KIB, MIB];
    // Threads that allocate concurrently leave slabs partly filled. Later allocations touch those fresh pages, so the limit is looser when
    // the threads do not take turns.
    for (in_turn, part) in [(true, 4), (false, 2)] {
        for bytes in sizes {
            // Every thread allocates the same amount, waits for the others, and frees its blocks, some of which stay in its cache.
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

/// A cap counts resident memory, so free memory of one kind may leave no room for requests of another kind. The arena must then purge the
/// free memory. The test tries every pair of kinds.
#[test]
fn free_memory_of_every_kind_makes_room_under_a_cap() {
    // The counts and sizes in bytes of requests. Each kind takes 112 MiB of the cap's 160 MiB, which leaves no room for another kind.
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
    // Opens the arena. While one thread does this, the arena serves no other thread.
    drop(written(1, KIB));
    // With the last list of sizes, a thread caches 128 KiB of each size class, so all caches together hold more than the huge run leaves
    // under the cap.
    for sizes in [vec![KIB], vec![20 * KIB], vec![100 * KIB], vec![7 * MIB], (1..=32).map(|kib| kib * KIB).collect()] {
        // Purges what the previous sizes left, so only the huge run reaches the cap.
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

/// If several threads reach the cap at the same time, one may use the room that another has made by a purge. The other thread must then
/// make room again.
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
            // SAFETY: `ZkAllocator` accepts empty layouts.
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

/// The maximum ratio of a request's time to its time in an empty arena.
const MAX_TIMES: u32 = 50;
/// Shorter times in an empty arena count as this time, because they are too close to the clock's resolution.
const MIN_TIME: Duration = Duration::from_micros(1);

/// Returns the median time of requests of `size` bytes, and their blocks. As long as the blocks are alive, later requests cannot reuse
/// their memory.
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
/// only slightly too short. In the last, the small-object region below them is free too, because long runs stay out of it.
#[test]
fn requests_do_not_search_free_runs_that_are_too_short() {
    for (free_run_bytes, size) in [(33 * KIB, 200 * KIB), (33 * KIB, 48 * KIB), (300 * KIB, MIB)] {
        // With huge pages, blocks that are not written would use memory.
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

/// At a full cap, each request that searches all memory for free pages to purge would take longer the more memory is live. In the second
/// process, there is free memory, but it shares its pages with live blocks.
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
            // The backing allocator serves these requests. They may take up to eight times as long as direct requests to it.
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
    // Allocates ten parts, whose blocks stay alive, and returns the shortest time of a part.
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
    // Frees a few blocks in each slab; the first timed part reuses them, so the later parts run with slabs that recently had room. The
    // arena must not search these slabs either.
    free_every(64, &mut below);
    let (count, last) = (below.len(), timed(&mut below));
    assert!(last <= 4 * first, "{last:?} for {PART} blocks above {count}, {first:?} above none");
}
