//! Compares the memory use of zk-alloc with that of its peers. Most of the programs keep a few small blocks, the survivors, between larger
//! blocks that they free. Survivors should cost only their own size, and should not keep requests of another size from reusing the memory
//! between them. Each program runs under zk-alloc and under its peers, and zk-alloc may use at most a quarter more memory than the best
//! peer. One test uses other allocators as the backing allocator.
//!
//! The free memory between survivors is resident, but the next requests may not fit there, or may come from a new thread that does not
//! search there. It must be purged before fresh memory becomes resident. Each purge is a system call, so some tests bound the number of
//! calls.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "calls GlobalAlloc")]

#[allow(dead_code, reason = "the suite uses the rest")]
#[path = "../benches/stress/arms.rs"]
mod arms;
#[allow(dead_code, reason = "the random programs use the rest")]
#[path = "../../tests/model/heap.rs"]
mod heap;
#[allow(dead_code, reason = "the suite uses the rest")]
#[path = "../benches/stress/patterns.rs"]
mod patterns;
#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../../tests/model/volume.rs"]
mod volume;

use std::alloc::GlobalAlloc;

use arms::{ARMS, Heap, OURS};
use mimalloc::MiMalloc;
use patterns::{PATTERNS, Plan};
use support::blocks::{Allocator, Block, KIB, MIB, RESIDENT, cost, keep_every};
use support::{Ended, Numbers, alone, beside_idle_threads, child, is_alone, peak_rss_bytes, restart_peak, rss_bytes};
use tikv_jemallocator::Jemalloc;
use volume::Volume;
use zk_alloc::{Mode, ZkAllocator, phase, stats};

/// The bytes allowed in addition to 1.25 times the cost of the best peer, for zk-alloc's tables and the lag of the kernel's counters.
const SLACK_BYTES: usize = 2 * MIB;

static SCOPED: ZkAllocator = ZkAllocator;

/// Runs `program`, which returns its cost in bytes of RSS, under each allocator in a process of its own. Asserts that zk-alloc, with and
/// without phases, costs at most 1.25 times as much as the best peer, plus [`SLACK_BYTES`].
#[track_caller]
fn against_peers(program: impl Fn(Allocator) -> usize) {
    let scoped = child(&[], || println!("cost {}", phase(|| program(&SCOPED))));
    let others = ARMS.iter().map(|arm| (arm.name, child(&[], || println!("cost {}", program(arm.allocator)))));
    let all: Vec<_> = [("zk-alloc in phases", scoped)].into_iter().chain(others).collect();
    if is_alone() {
        return;
    }
    let cost = |(name, ended): (&'static str, Option<Ended>)| {
        let ended = ended?;
        ended.assert_passed();
        Some((name, ended.printed("cost ").parse::<usize>().expect("a number")))
    };
    let costs: Vec<_> = all.into_iter().filter_map(cost).collect();
    let is_ours = |name: &str| name.starts_with(OURS);
    let best = costs.iter().filter(|(name, _)| !is_ours(name)).map(|&(_, cost)| cost).min().expect("peers");
    let bound = best + best / 4 + SLACK_BYTES;
    let within = costs.iter().all(|&(name, cost)| cost <= bound || !is_ours(name));
    assert!(within, "zk-alloc costs more than {bound} bytes, a quarter above the best peer: {costs:?}");
}

/// Runs `program`. Returns by how many bytes the peak resident size exceeds the size before.
fn peak<R>(program: impl FnOnce() -> R) -> usize {
    let before = restart_peak();
    let alive = program();
    let peak = peak_rss_bytes().saturating_sub(before);
    drop(alive);
    peak
}

fn run(pattern: &str, allocator: Allocator) {
    let pattern = PATTERNS.iter().find(|found| found.name == pattern).expect("a pattern");
    (pattern.run)(Heap(allocator), &Plan { threads: 2, seed: 1, tiny: false });
}

/// Allocates blocks of 1 to 32 KiB, `bytes` in total, with each power of two equally likely.
fn temporaries(allocator: Allocator, numbers: &mut Numbers, bytes: usize) -> Vec<Block> {
    let mut made = Vec::with_capacity(bytes / KIB);
    let mut left = bytes;
    while left > 0 {
        let top = KIB << numbers.below(5);
        let size = top + numbers.below(top);
        made.push(Block::written(allocator, size));
        left = left.saturating_sub(size);
    }
    made
}

/// Like a commitment that processes its rows one after another: the program keeps a small result for each row, allocated between the row's
/// larger temporaries.
#[test]
fn a_survivor_in_each_half_mib_costs_its_own_size() {
    against_peers(|allocator| {
        let before = rss_bytes();
        let numbers = &mut Numbers::new(1);
        let mut survivors = Vec::with_capacity(2_048);
        for _ in 0..2_048 {
            let first = temporaries(allocator, numbers, 256 * KIB);
            survivors.push(Block::written(allocator, KIB));
            let second = temporaries(allocator, numbers, 256 * KIB);
            drop((first, second));
        }
        cost(before)
    });
}

/// Runs patterns of the stress suite: bursts that leave one block each, random lifetimes, survivors of one size before requests of another,
/// large alignments, and zeroed buffers of which little is touched.
#[test]
fn patterns_peak_at_most_a_quarter_above_the_best_peer() {
    for name in ["burst-1k", "burst-24k", "lifetimes", "survivors-2k-3000", "phases-64", "aligned", "zeroed"] {
        against_peers(|allocator| peak(|| run(name, allocator)));
    }
}

/// Number of bytes that each half of a program allocates. The problem that these tests guard against was found with four times this size.
const HALF: usize = 128 * MIB;

/// Allocates `total` bytes in blocks of `size` bytes. The vector itself always comes from the system allocator.
fn filled(allocator: Allocator, size: usize, total: usize) -> Vec<Block> {
    (0..total / size).map(|_| Block::written(allocator, size)).collect()
}

/// Allocates blocks of `size` bytes and frees all but every `nth`.
fn survivors(allocator: Allocator, size: usize, nth: usize) -> Vec<Block> {
    let mut blocks = filled(allocator, size, HALF);
    keep_every(nth, &mut blocks);
    blocks
}

/// No peer lets a new thread reuse the blocks that the first thread freed: the best one has 1.8 times the live size resident. The bound
/// here is 1.25 times the live size.
#[test]
fn a_new_thread_reuses_the_memory_between_survivors_of_another() {
    alone!();
    // Allocates 128 MiB in blocks of 16 KiB, of which an eighth survive, then another 128 MiB in blocks of 4 KiB on a new thread.
    let peak = peak(|| run("survivors-16k-4k", &RESIDENT));
    let bound = (HALF + HALF / 8) / 4 * 5;
    assert!(peak <= bound, "{peak} bytes, more than {bound}: a quarter above what is alive\n{}", stats());
}

/// Between two survivors, seven free blocks of 16 KiB leave room for 28 blocks of 4 KiB, but their slabs serve only blocks of 16 KiB, so
/// this memory must be purged. The purge must also empty the caches of idle threads, each of which contains a few blocks.
#[test]
fn memory_between_survivors_is_reused_also_beside_hundreds_of_idle_threads() {
    let halves = |allocator| (survivors(allocator, 16 * KIB, 8), filled(allocator, 4 * KIB, HALF));
    against_peers(|allocator| peak(|| halves(allocator)));
    against_peers(|allocator| {
        let sizes = [1_500, 3_000, 4 * KIB, 16 * KIB].repeat(2);
        let work = || drop(sizes.iter().map(|&size| Block::written(allocator, size)).collect::<Vec<_>>());
        let before = restart_peak();
        let meanwhile = || {
            let _alive = halves(allocator);
            peak_rss_bytes().saturating_sub(before)
        };
        beside_idle_threads(375, work, meanwhile, || ())
    });
}

/// Returns the maximum number of system calls of a program: one for each free run between the survivors of its first half, a quarter more
/// for free runs that span two slabs, and 256 for fresh memory.
const fn max_calls(size: usize, nth: usize) -> usize {
    HALF / size / nth / 4 * 5 + 256
}

/// Runs sixteen phases. Each allocates blocks of one size, from 512 bytes to 32 KiB, and keeps one block in 64.
fn phases() -> Vec<Vec<Block>> {
    let phase = |phase: i32| {
        let mut blocks = filled(&RESIDENT, (512.0 * 64f64.powf(f64::from(phase) / 15.0)) as usize, HALF / 4);
        keep_every(64, &mut blocks);
        blocks
    };
    (0..16).map(phase).collect()
}

/// One call purges all pages between two survivors, even if the request needs fewer. In the second case, the free runs are 30 KiB long. In
/// the third, slabs without survivors are reused without a purge, and only pages between survivors are purged. The lower bound, a quarter
/// of the upper one, shows that purges are counted as system calls.
#[test]
fn each_free_run_between_survivors_is_purged_once_and_completely() {
    type Program = fn() -> Vec<Vec<Block>>;
    let cases: [(usize, Program); 3] = [
        (max_calls(16 * KIB, 8), || vec![survivors(&RESIDENT, 16 * KIB, 8), filled(&RESIDENT, 4 * KIB, HALF)]),
        (max_calls(2 * KIB, 16), || vec![survivors(&RESIDENT, 2 * KIB, 16), filled(&RESIDENT, 3_000, HALF)]),
        (4 * HALF / (48 * KIB), phases),
    ];
    for (bound, program) in cases {
        support::in_its_own_process(&[], || {
            let before = stats().system_calls;
            let alive = program();
            let calls = (stats().system_calls - before) as usize;
            assert!((bound / 4..=bound).contains(&calls), "{calls} system calls, at most {bound}\n{}", stats());
            drop(alive);
        });
    }
}

fn check_behind<A: GlobalAlloc + Sync + 'static>(backing: fn() -> ZkAllocator<A>) {
    for mode in [Mode::Scoped, Mode::Resident] {
        let before = stats().arena_allocations;
        let volume = Volume { seed: 3, ops: 200_000, ops_per_life: 5_000, ops_per_settling: 1_000, at_rest: None };
        volume::run(Box::leak(Box::new(heap::Heap::new(backing().mode(mode), true))), volume);
        assert!(stats().arena_allocations > before, "the arena took part");
    }
}

/// The backing allocator serves the requests that the arena does not serve. It must free that memory and no other, even after growth has
/// moved a block from one allocator to the other. jemalloc and mimalloc abort or corrupt their heap if they are asked to free memory of the
/// arena.
#[test]
fn jemalloc_and_mimalloc_stand_behind_the_arena() {
    alone!();
    check_behind(|| ZkAllocator::with_backing(Jemalloc));
    check_behind(|| ZkAllocator::with_backing(MiMalloc));
}
