//! Small blocks that survive between larger temporaries cost their own size, and not the size of their neighbours. Each
//! program runs under zk-alloc and under its peers. zk-alloc may take a quarter more memory than the best of them.
#![cfg(target_os = "linux")]

mod against_peers;
#[path = "../../tests/support/mod.rs"]
mod support;

use against_peers::against_peers;
use support::blocks::{Allocator, Block, KIB, cost};
use support::{Numbers, rss_bytes};

/// Blocks of 1 to 32 KiB, `bytes` in all, with each power of two equally likely.
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

/// A commitment that streams over its rows keeps a small result per row, and makes it between the row's larger
/// temporaries.
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

/// Bursts of blocks of `size` to `size + range` bytes. One block of each burst stays.
fn bursts(allocator: Allocator, seed: u64, count: usize, blocks: usize, size: usize, range: usize) -> usize {
    let before = rss_bytes();
    let numbers = &mut Numbers::new(seed);
    let mut survivors = Vec::with_capacity(count);
    for _ in 0..count {
        let block = |_| Block::written(allocator, size + numbers.below(range));
        let mut burst: Vec<_> = (0..blocks).map(block).collect();
        survivors.push(burst.swap_remove(numbers.below(blocks)));
    }
    cost(before)
}

/// All blocks have about the same size, so in any allocator of size classes the survivor lies among freed blocks.
#[test]
fn one_of_each_burst_of_small_blocks_costs_its_own_size() {
    against_peers(|allocator| bursts(allocator, 2, 1_500, 400, KIB, KIB));
}

/// The largest blocks that share pages with others. One of sixteen survives.
#[test]
fn one_of_sixteen_blocks_of_24_to_32_kib_costs_its_own_size() {
    against_peers(|allocator| bursts(allocator, 3, 2_400, 16, 24 * KIB, 8 * KIB));
}

/// Blocks that are made together are not freed together. The free memory is scattered, and must still serve.
#[test]
fn random_lifetimes_cost_what_is_alive() {
    against_peers(|allocator| {
        const SLOTS: usize = 8_000;
        let before = rss_bytes();
        let numbers = &mut Numbers::new(4);
        let size = |numbers: &mut Numbers| KIB + numbers.below(31 * KIB);
        let mut alive: Vec<_> = (0..SLOTS).map(|_| Block::written(allocator, size(numbers))).collect();
        for _ in 0..20 * SLOTS {
            // The old block goes first, or one more block than there are slots would be alive.
            let slot = numbers.below(SLOTS);
            drop(alive.swap_remove(slot));
            alive.push(Block::written(allocator, size(numbers)));
        }
        cost(before)
    });
}

/// A large alignment must not cost pages.
#[test]
fn small_blocks_on_large_boundaries_cost_their_own_pages() {
    against_peers(|allocator| {
        let before = rss_bytes();
        let blocks: Vec<_> = (0..500).map(|_| Block::untouched(allocator, 2 * KIB, 32 * KIB)).collect();
        blocks.iter().for_each(|block| block.write(0, 2 * KIB));
        cost(before)
    });
}

/// Sparse tables: a zeroed buffer that is hardly touched must not become resident because its memory once was.
#[test]
fn zeroed_buffers_that_are_hardly_touched_cost_what_is_touched() {
    against_peers(|allocator| {
        let before = rss_bytes();
        let mut most = 0;
        for _ in 0..60 {
            let buffers: Vec<_> = (0..24).map(|i| Block::zeroed(allocator, (256 * KIB) << (i % 7))).collect();
            buffers.iter().for_each(|buffer| buffer.write(0, 1));
            most = most.max(cost(before));
            drop(buffers);
        }
        most
    });
}
