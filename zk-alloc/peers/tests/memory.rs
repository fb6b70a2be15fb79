//! Small blocks that survive between larger temporaries cost their own size, and not the size of their neighbours. Each
//! program runs under zk-alloc and under its peers. zk-alloc may take a quarter more memory than the best of them.
#![cfg(target_os = "linux")]

mod against_peers;
#[allow(dead_code, reason = "the suite uses the rest")]
#[path = "../benches/stress/heap.rs"]
mod heap;
#[allow(dead_code, reason = "the suite uses the rest")]
#[path = "../benches/stress/patterns.rs"]
mod patterns;
#[path = "../../tests/support/mod.rs"]
mod support;

use against_peers::against_peers;
use heap::Heap;
use patterns::{PATTERNS, Plan};
use support::blocks::{Allocator, Block, KIB, cost};
use support::{Numbers, peak_rss_bytes, restart_peak, rss_bytes};

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

/// Patterns of the stress suite: bursts of which one block stays, random lifetimes, survivors of one size before requests
/// of another, large alignments, and zeroed buffers that are hardly touched.
#[test]
fn patterns_peak_at_most_a_quarter_above_the_best_peer() {
    for name in ["burst-1k", "burst-24k", "lifetimes", "survivors-2k-3000", "phases-64", "aligned", "zeroed"] {
        let pattern = PATTERNS.iter().find(|pattern| pattern.name == name).expect("a pattern");
        against_peers(|allocator| {
            let before = restart_peak();
            (pattern.run)(Heap::new(allocator), &Plan { threads: 2, seed: 1, tiny: false });
            peak_rss_bytes().saturating_sub(before)
        });
    }
}
