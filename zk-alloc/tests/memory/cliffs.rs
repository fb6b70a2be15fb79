//! The time of a request hardly depends on the number of free runs below it, or on a cap that is reached. The bounds are
//! ratios of median times: to the same requests before there were free runs, or to the backing allocator. A search over
//! all free runs takes hundreds of times as long.

use std::alloc::System;
use std::time::{Duration, Instant};

use crate::support::blocks::{Allocator, Block, KIB, MIB, RESIDENT, free_every, keep_every};
use crate::support::{alone, in_its_own_process};
use zk_alloc::{overflow_stats, stats};

/// The number of requests of which the median is taken.
const SAMPLES: usize = 301;

/// The most that a request may take, as a multiple of its time in an empty arena.
const MAX_TIMES: u32 = 50;
/// The least time that a request in an empty arena is assumed to take: shorter times are too close to the clock's
/// resolution.
const MIN_TIME: Duration = Duration::from_micros(1);

/// The median time of requests of `size` bytes, and their blocks: while they are alive, the next requests cannot reuse their memory.
fn median_request(allocator: Allocator, size: usize) -> (Duration, Vec<Block>) {
    let mut alive = Vec::with_capacity(SAMPLES);
    let mut times: Vec<_> = (0..SAMPLES)
        .map(|_| {
            let begun = Instant::now();
            alive.push(Block::untouched(allocator, size, 8));
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    (times[SAMPLES / 2], alive)
}

/// Asserts that requests over the cap take at most eight times as long as in the backing allocator, which serves them.
#[track_caller]
fn assert_passed_on() {
    let (median, _blocks) = median_request(&RESIDENT, 48 * KIB);
    let backing = median_request(&System, 48 * KIB).0;
    assert!(median <= 8 * backing, "{median:?}, of the backing allocator {backing:?}\n{}", stats());
}

/// A plain first-fit search of a bitmap would read each free run that is too short, at each request. In the second case, the free runs
/// are nearly long enough. In the last, the small-object region below them is free too.
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

/// A search for free memory to purge, when there is no free memory, takes longer the more memory is alive. In the second
/// process, all free memory shares its pages with live blocks.
#[test]
fn requests_over_a_full_cap_search_for_no_memory() {
    for small in [0, 1_000 * MIB / KIB] {
        in_its_own_process(&[("ZK_ALLOC_MAX_BYTES", "1G")], || {
            let mut blocks: Vec<_> = (0..small).map(|_| Block::written(&RESIDENT, KIB)).collect();
            keep_every(2, &mut blocks);
            while overflow_stats().0 < 100 {
                assert!(blocks.len() < 2 * MIB, "the cap holds nothing back\n{}", stats());
                blocks.push(Block::written(&RESIDENT, 48 * KIB));
            }
            let over = overflow_stats().0;
            assert_passed_on();
            assert!(overflow_stats().0 >= over + SAMPLES / 2, "most were over the cap");
        });
    }
}

/// A search over all slabs for a place would take longer the more slabs there are.
#[test]
fn small_requests_do_not_search_all_slabs() {
    alone!();
    const PART: usize = 100_000;
    let allocate = || (0..PART).map(|_| Block::untouched(&RESIDENT, 512, 8)).collect::<Vec<_>>();
    let timed = |parts: usize| {
        let parts: Vec<_> = (0..parts)
            .map(|_| {
                let begun = Instant::now();
                let blocks = allocate();
                (begun.elapsed(), blocks)
            })
            .collect();
        let least = parts.iter().map(|(time, _)| *time).min().expect("parts");
        (least, parts.into_iter().flat_map(|(_, blocks)| blocks).collect::<Vec<_>>())
    };
    let (first, mut below) = timed(10);
    (0..80).for_each(|_| below.extend(allocate()));
    // The arena must not search slabs that had room once, either. So some blocks of each slab are freed, and the
    // first part takes them again.
    free_every(64, &mut below);
    let (last, _blocks) = timed(10);
    assert!(last <= 4 * first, "{last:?} for {PART} blocks above {}, {first:?} above none", below.len());
}
