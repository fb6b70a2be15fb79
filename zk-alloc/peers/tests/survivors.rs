//! Survivors of one size keep no memory from requests of another size. Each program runs under zk-alloc and under its
//! peers. The peak of zk-alloc may be 1.25 of the best peer's.
//!
//! The free memory between the survivors is resident and fits no request, or lies where a new thread does not look. It
//! must be purged before fresh memory becomes resident. Each purge is a system call, and the last tests bound the
//! number of calls.
#![cfg(target_os = "linux")]

mod against_peers;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::thread;

use against_peers::against_peers;
use support::blocks::{Allocator, Block, KIB, MIB, RESIDENT, keep_every};
use support::{alone, beside_idle_threads, peak_rss_bytes, restart_peak};
use zk_alloc::{release, stats};

/// Bytes that each half of a program allocates. The hazard was found with four times this size.
const HALF: usize = 128 * MIB;

/// The largest resident size of `program`, in bytes.
fn peak<R>(program: impl FnOnce() -> R) -> usize {
    let before = restart_peak();
    let alive = program();
    let peak = peak_rss_bytes().saturating_sub(before);
    drop(alive);
    peak
}

/// Enough blocks of `size` bytes to make `total` bytes. Their list lies in the system's memory under every allocator.
fn filled(allocator: Allocator, size: usize, total: usize) -> Vec<Block> {
    (0..total / size).map(|_| Block::written(allocator, size)).collect()
}

/// Blocks of `size` bytes, of which every `nth` stays.
fn survivors(allocator: Allocator, size: usize, nth: usize) -> Vec<Block> {
    let mut blocks = filled(allocator, size, HALF);
    keep_every(nth, &mut blocks);
    blocks
}

/// Free blocks of the first thread lie in its slabs, and a new thread has no slab yet. The bound is 1.25 of the live
/// size: no peer reuses these blocks on the new thread, and the best peer has 1.8 of the live size resident.
#[test]
fn a_new_thread_reuses_the_memory_between_survivors_of_another() {
    alone!();
    let peak = peak(|| {
        let old = survivors(&RESIDENT, 16 * KIB, 8);
        let new = thread::spawn(|| filled(&RESIDENT, 4 * KIB, HALF));
        (old, new.join().expect("a thread of the test"))
    });
    let bound = (HALF + HALF / 8) / 4 * 5;
    assert!(peak <= bound, "{peak} bytes, more than {bound}: a quarter above what is alive\n{}", stats());
}

/// Seven free blocks of 16 KiB between two survivors are 28 of 4 KiB, in slabs of another class.
#[test]
fn blocks_of_4_kib_reuse_the_memory_between_survivors_of_16_kib() {
    against_peers(|allocator| peak(|| (survivors(allocator, 16 * KIB, 8), filled(allocator, 4 * KIB, HALF))));
}

/// A purge must empty the caches of idle threads, each of which holds a few blocks.
#[test]
fn memory_between_survivors_is_reused_beside_hundreds_of_idle_threads() {
    against_peers(|allocator| {
        let sizes = [1_500, 3_000, 4 * KIB, 16 * KIB].repeat(2);
        let work = || drop(sizes.iter().map(|&size| Block::written(allocator, size)).collect::<Vec<_>>());
        let before = restart_peak();
        beside_idle_threads(375, work, || {
            let _alive = (survivors(allocator, 16 * KIB, 8), filled(allocator, 4 * KIB, HALF));
            peak_rss_bytes().saturating_sub(before)
        })
    });
}

/// Sixteen phases that each allocate blocks of one size, from 512 bytes to 32 KiB, and keep one of 64.
fn phases(allocator: Allocator) -> Vec<Vec<Block>> {
    let size = |phase: i32| (512.0 * 64f64.powf(f64::from(phase) / 15.0)) as usize;
    let phase = |phase| {
        let mut blocks = filled(allocator, size(phase), HALF / 4);
        keep_every(64, &mut blocks);
        blocks
    };
    (0..16).map(phase).collect()
}

/// Runs `program` under zk-alloc alone, and fails if it makes more than `bound` system calls.
#[track_caller]
fn assert_system_calls(bound: usize, program: fn() -> Vec<Vec<Block>>) {
    alone!();
    let before = stats().system_calls;
    let alive = program();
    let calls = (stats().system_calls - before) as usize;
    assert!(calls <= bound, "{calls} system calls, more than {bound}\n{}", stats());
    drop(alive);
}

/// The most system calls of a program: one for each free run between the survivors of its first half, and a quarter more
/// for free runs that span two slabs. The fresh memory takes the other 256.
const fn calls_for_holes(size: usize, nth: usize) -> usize {
    HALF / size / nth / 4 * 5 + 256
}

/// One call purges all pages between two survivors, even if the request needs fewer. In the second case, the free runs are of 30 KiB.
#[test]
fn each_free_run_between_survivors_is_purged_once_and_completely() {
    assert_system_calls(calls_for_holes(16 * KIB, 8), || {
        vec![survivors(&RESIDENT, 16 * KIB, 8), filled(&RESIDENT, 4 * KIB, HALF)]
    });
    assert_system_calls(calls_for_holes(2 * KIB, 16), || {
        vec![survivors(&RESIDENT, 2 * KIB, 16), filled(&RESIDENT, 3_000, HALF)]
    });
}

/// This program allocates four times as much as the others. Free slabs serve the next phase as they are, and only pages
/// between survivors are purged.
#[test]
fn phases_of_many_sizes_purge_in_large_steps() {
    assert_system_calls(4 * HALF / (48 * KIB), || phases(&RESIDENT));
}

/// The bounds above check nothing if `stats()` does not count purges.
#[test]
fn each_purge_between_survivors_counts_as_a_system_call() {
    alone!();
    let old = survivors(&RESIDENT, 16 * KIB, 8);
    let before = stats().system_calls;
    release();
    let (calls, free_runs) = (stats().system_calls - before, HALF / (16 * KIB) / 8);
    assert!(calls as usize >= free_runs, "{calls} system calls for {free_runs} free runs\n{}", stats());
    drop(old);
}
