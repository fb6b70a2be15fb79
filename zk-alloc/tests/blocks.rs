//! Without huge pages, memory is paged in by the block, so that the next phase's runs may lie a little elsewhere; and nothing
//! else is paged in that nobody touches.
#![cfg(target_os = "linux")]

mod support;

use std::ffi::OsStr;
use std::hint::black_box;

use support::{alone, is_alone, rss_bytes};
use zk_alloc::{Phase, ZkAllocator, phase, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

/// Two of them share a block of 2 MiB.
const RUN_BYTES: usize = 768 << 10;
const LARGE_BYTES: usize = 48 << 20;

/// Page faults while a run is filled, and the arena's system calls.
fn cost_of_a_run() -> (Vec<u8>, u64, u64) {
    let phase = Phase::new();
    let before = stats().system_calls;
    let run = black_box(vec![1; RUN_BYTES]);
    let report = phase.report();
    (run, report.minor_faults, stats().system_calls - before)
}

#[test]
fn a_block_is_paged_in_with_the_first_run_that_begins_it() {
    let name = "a_block_is_paged_in_with_the_first_run_that_begins_it";
    if !is_alone() {
        return alone(name, &[("ZK_ALLOC_THP", OsStr::new("never"))]).assert_passed("never");
    }
    // The arena opens, and everything that a first phase needs is there.
    drop(cost_of_a_run());
    let (_first, faults, calls) = cost_of_a_run();
    assert_eq!((faults / 32, calls), (0, 0), "what was used before is resident");
    let (_second, faults, calls) = cost_of_a_run();
    assert_eq!((faults / 32, calls), (0, 0), "192 pages of a block that was begun before");
    let (_third, _, calls) = cost_of_a_run();
    assert_eq!(calls, 1, "it ends in another block");
}

#[test]
fn what_fills_blocks_is_paged_in_where_it_is_touched() {
    let name = "what_fills_blocks_is_paged_in_where_it_is_touched";
    if !is_alone() {
        return alone(name, &[("ZK_ALLOC_THP", OsStr::new("never"))]).assert_passed("never");
    }
    phase(|| {
        let before = rss_bytes();
        let untouched = black_box(Vec::<u8>::with_capacity(LARGE_BYTES));
        assert!(stats().live_bytes >= LARGE_BYTES, "the arena serves it");
        // A slab takes a block of its own.
        assert!(rss_bytes() < before + LARGE_BYTES / 8, "{} bytes", rss_bytes() - before);
        drop(untouched);
    });
}
