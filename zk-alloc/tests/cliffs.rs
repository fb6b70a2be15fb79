//! A request takes about as long however many holes lie below it and however full the cap is. The bounds are ratios of medians to
//! the same requests in the same process, before there were holes: a search over all of them takes hundreds of times as long.
//!
//! What the arena holds is the process's, so each test runs in one of its own.
#![cfg(target_os = "linux")]

#[path = "support/arms.rs"]
mod arms;
mod support;

use std::alloc::System;
use std::time::{Duration, Instant};

use arms::{Allocator, Block, KIB, MIB, RESIDENT, keep_every};
use support::in_its_own_process;
use zk_alloc::{overflow_stats, stats};

/// Requests whose median is taken.
const SAMPLES: usize = 301;

/// How many times as long a request may take as in an empty arena.
const MOST_TIMES: u32 = 50;
/// The least time that a request in an empty arena is taken to need: shorter ones are too near to the steps of the clock.
const LEAST_TIME: Duration = Duration::from_micros(1);

/// The median time of requests of `size` bytes that all stay alive.
fn median_request(size: usize, align: usize) -> Duration {
    median_request_of(&RESIDENT, size, align)
}

fn median_request_of(allocator: Allocator, size: usize, align: usize) -> Duration {
    let mut alive = Vec::with_capacity(SAMPLES);
    let mut times: Vec<_> = (0..SAMPLES)
        .map(|_| {
            let begun = Instant::now();
            alive.push(Block::untouched(allocator, size, align));
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("measured median {:?}, 9 of 10 below {:?}", times[SAMPLES / 2], times[SAMPLES / 10 * 9]);
    times[SAMPLES / 2]
}

/// Holds a request to [`MOST_TIMES`] of its time in an empty arena.
#[track_caller]
fn assert_no_search(in_empty: Duration, median: Duration, blocks: &[Block]) {
    let most = MOST_TIMES * in_empty.max(LEAST_TIME);
    assert!(median <= most, "{median:?} with {} blocks alive, {in_empty:?} with none", blocks.len());
}

/// Holds a request over the cap to eight times the time of the backing allocator, which serves it.
#[track_caller]
fn assert_passed_on(median: Duration) {
    let backing = median_request_of(&System, 48 * KIB, 8);
    assert!(median <= 8 * backing, "{median:?}, of the backing allocator {backing:?}\n{}", stats());
}

/// First fit over a bitmap looks at each hole that is too small, again for each request.
fn assert_holes_are_passed_over(name: &str, count: usize, hole: usize, size: usize) {
    // What nobody touches takes no memory only in small pages.
    in_its_own_process(name, &[("ZK_ALLOC_THP", "never")], || {
        let in_empty = median_request(size, 8);
        let mut blocks: Vec<_> = (0..count).map(|_| Block::untouched(&RESIDENT, hole, 8)).collect();
        keep_every(2, &mut blocks);
        assert_no_search(in_empty, median_request(size, 8), &blocks);
        drop(blocks);
        assert_eq!(overflow_stats(), (0, 0), "the arena served all of it\n{}", stats());
    });
}

#[test]
fn holes_that_are_too_small_are_not_searched() {
    assert_holes_are_passed_over("holes_that_are_too_small_are_not_searched", 160_000, 33 * KIB, 200 * KIB);
}

/// These are nearly long enough.
#[test]
fn holes_that_are_a_little_too_small_are_not_searched() {
    assert_holes_are_passed_over("holes_that_are_a_little_too_small_are_not_searched", 160_000, 33 * KIB, 48 * KIB);
}

/// Below them is room that is for slabs alone, and free.
#[test]
fn holes_between_middle_runs_are_not_searched() {
    assert_holes_are_passed_over("holes_between_middle_runs_are_not_searched", 160_000, 300 * KIB, MIB);
}

/// Between requests that are aligned to more than they ask for lie holes that none of them fits.
#[test]
fn holes_that_are_not_aligned_are_not_searched() {
    in_its_own_process("holes_that_are_not_aligned_are_not_searched", &[], || {
        let in_empty = median_request(2 * KIB, 32 * KIB);
        let blocks: Vec<_> = (0..20_000).map(|_| Block::untouched(&RESIDENT, 2 * KIB, 32 * KIB)).collect();
        assert_no_search(in_empty, median_request(2 * KIB, 32 * KIB), &blocks);
        drop(blocks);
        assert_eq!(overflow_stats(), (0, 0), "the arena served all of it\n{}", stats());
    });
}

/// To look for free memory to give back, where nothing is free, takes longer the more is alive.
#[test]
fn a_cap_that_is_reached_costs_no_search_at_each_request() {
    let cap = [("ZK_ALLOC_MAX_BYTES", "1G")];
    in_its_own_process("a_cap_that_is_reached_costs_no_search_at_each_request", &cap, || {
        let mut blocks = Vec::with_capacity(2_048 * MIB / (48 * KIB));
        while overflow_stats().0 < 100 {
            assert!(blocks.len() < blocks.capacity(), "the cap holds nothing back\n{}", stats());
            blocks.push(Block::written(&RESIDENT, 48 * KIB));
        }
        let over = overflow_stats().0;
        let median = median_request(48 * KIB, 8);
        assert!(overflow_stats().0 >= over + SAMPLES / 2, "most were over the cap");
        assert_passed_on(median);
    });
}

/// As above, where all that is free shares its pages with what is not.
#[test]
fn a_cap_that_is_reached_costs_no_look_at_every_slab_at_each_request() {
    let cap = [("ZK_ALLOC_MAX_BYTES", "1G")];
    in_its_own_process("a_cap_that_is_reached_costs_no_look_at_every_slab_at_each_request", &cap, || {
        let mut blocks: Vec<_> = (0..1_000 * MIB / KIB).map(|_| Block::written(&RESIDENT, KIB)).collect();
        keep_every(2, &mut blocks);
        while overflow_stats().0 < 100 {
            blocks.push(Block::written(&RESIDENT, 48 * KIB));
        }
        assert_passed_on(median_request(48 * KIB, 8));
    });
}

/// To find a place for a slab would take longer the more of them there are.
#[test]
fn small_blocks_cost_no_search_over_all_slabs() {
    in_its_own_process("small_blocks_cost_no_search_over_all_slabs", &[], || {
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
        // Nor over those that had room once: some blocks of each are freed, which the first of the parts takes again.
        let mut nth = 0;
        below.retain(|_| {
            nth += 1;
            nth % 64 != 0
        });
        let (last, _blocks) = timed(10);
        println!("measured {PART} blocks in {first:?}, and in {last:?} above {}", below.len());
        assert!(last <= 4 * first, "{last:?} for {PART} blocks above {}, {first:?} above none", below.len());
    });
}
