//! Requests stay in the order of microseconds however many holes lie below them and however full the cap is. Medians of
//! many, bounded so that only a search or a system call over everything reaches the bound, not a busy machine.
//!
//! What the arena holds is the process's, so each test runs in one of its own.
#![cfg(target_os = "linux")]

#[path = "support/arms.rs"]
mod arms;
mod support;

use std::time::{Duration, Instant};

use arms::{Block, KIB, MIB, RESIDENT, keep_every};
use support::in_its_own_process;
use zk_alloc::{overflow_stats, stats};

/// Requests whose median is taken.
const SAMPLES: usize = 301;

/// The median time of requests of `size` bytes that all stay alive.
fn median_request(size: usize, align: usize) -> Duration {
    let mut alive = Vec::with_capacity(SAMPLES);
    let mut times: Vec<_> = (0..SAMPLES)
        .map(|_| {
            let begun = Instant::now();
            alive.push(Block::untouched(&RESIDENT, size, align));
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("measured median {:?}, 9 of 10 below {:?}", times[SAMPLES / 2], times[SAMPLES / 10 * 9]);
    times[SAMPLES / 2]
}

/// First fit over a bitmap looks at each hole that is too small, again for each request.
fn assert_holes_are_passed_over(name: &str, count: usize, hole: usize, size: usize) {
    // What nobody touches takes no memory only in small pages.
    in_its_own_process(name, &[("ZK_ALLOC_THP", "never")], || {
        let mut blocks: Vec<_> = (0..count).map(|_| Block::untouched(&RESIDENT, hole, 8)).collect();
        keep_every(2, &mut blocks);
        let median = median_request(size, 8);
        assert!(median <= Duration::from_micros(50), "{median:?} for {size} bytes above {} holes", blocks.len());
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
        let blocks: Vec<_> = (0..20_000).map(|_| Block::untouched(&RESIDENT, 2 * KIB, 32 * KIB)).collect();
        let median = median_request(2 * KIB, 32 * KIB);
        assert!(median <= Duration::from_micros(50), "{median:?} for 2 KiB at 32 KiB above {}", blocks.len());
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
        assert!(median <= Duration::from_micros(100), "{median:?} with {} runs alive", blocks.len());
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
        let median = median_request(48 * KIB, 8);
        assert!(median <= Duration::from_micros(500), "{median:?} with {} blocks alive", blocks.len());
    });
}

/// To find a place for a slab would take longer the more of them there are.
#[test]
fn small_blocks_cost_no_search_over_all_slabs() {
    in_its_own_process("small_blocks_cost_no_search_over_all_slabs", &[], || {
        const PART: usize = 100_000;
        let allocate = |count| (0..count).map(|_| Block::untouched(&RESIDENT, 512, 8)).collect::<Vec<_>>();
        let mut below = allocate(90 * PART);
        // Nor over those that had room once: some blocks of each are freed, which the first of the parts takes again.
        let mut nth = 0;
        below.retain(|_| {
            nth += 1;
            nth % 64 != 0
        });
        let times = [(); 10].map(|()| {
            let begun = Instant::now();
            let blocks = allocate(PART);
            (begun.elapsed(), blocks)
        });
        let least = times.iter().map(|(time, _)| *time).min().unwrap();
        assert!(least <= Duration::from_millis(40), "{least:?} for {PART} blocks above {}", below.len());
    });
}
