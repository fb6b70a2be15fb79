//! A kernel with pages of more than 4 KiB purges, protects and zeroes whole ones. If the arena's pages were smaller, that
//! would be more than the arena asked for. In a debug build, `ZK_ALLOC_TEST_PAGE_BYTES` makes the layer below the arena simulate pages of that
//! size. In other builds, these are ordinary random programs.
//!
//! The page size belongs to the process, so each test runs in a process of its own for each size.
#![cfg(target_os = "linux")]

#[path = "model/heap.rs"]
mod heap;
#[path = "model/lock.rs"]
mod lock;
mod support;
#[path = "model/volume.rs"]
mod volume;

use std::env;

use heap::Heap;
use support::blocks::{Block, KIB, MIB, RESIDENT};
use support::{Numbers, Settings, alone, assert_patterned, patterned};
use volume::Volume;
use zk_alloc::{Arena, Retain, SecretBuf, ZkAllocator, phase, release, reserve, set_retain, soften};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const PAGES: &str = "ZK_ALLOC_TEST_PAGE_BYTES";
const USUAL: &str = "4096";
/// The page sizes of aarch64 servers, and the usual one, with and without huge pages.
const PAGE_SIZES: &[Settings] = &[
    &[(PAGES, USUAL), ("ZK_ALLOC_THP", "auto")],
    &[(PAGES, USUAL), ("ZK_ALLOC_THP", "never")],
    &[(PAGES, "16384"), ("ZK_ALLOC_THP", "auto")],
    &[(PAGES, "16384"), ("ZK_ALLOC_THP", "never")],
    &[(PAGES, "65536"), ("ZK_ALLOC_THP", "auto")],
    &[(PAGES, "65536"), ("ZK_ALLOC_THP", "never")],
];

/// Purges free memory in one of the possible ways.
fn purge(numbers: &mut Numbers) {
    match numbers.below(4) {
        0 => _ = release(),
        1 => _ = soften(),
        2 => _ = reserve(3 * MIB + 20 * KIB),
        _ => {
            // The end of the last phase applies the policy.
            set_retain([Retain::Never, Retain::Bytes(20 * MIB + 4 * KIB)][numbers.below(2)]);
            phase(|| ());
            set_retain(Retain::Always);
        }
    }
}

/// A page is not free if a buffer in use shares it with a freed one.
#[test]
fn buffers_in_use_keep_their_contents_while_neighbours_are_purged() {
    alone!(each PAGE_SIZES);
    let _phase = zk_alloc::PhaseGuard::new();
    let numbers = &mut Numbers::new(9);
    // From 1 KiB to 2 MiB, with each power of two equally likely.
    let size = |numbers: &mut Numbers| {
        let top = KIB << numbers.below(11);
        top + numbers.below(top)
    };
    let mut buffers: Vec<_> = (0..48).map(|seed| (patterned(size(numbers) / 8, seed), seed)).collect();
    for seed in 48..3_000 {
        let index = numbers.below(buffers.len());
        match numbers.below(8) {
            0..5 => buffers[index] = (patterned(size(numbers) / 8, seed), seed),
            5 => {
                let words = &mut buffers[index].0;
                words.truncate(words.len() / 2 + 1);
                words.shrink_to_fit();
            }
            6 => {
                let bytes = size(numbers);
                let zeroed = Block::zeroed(&RESIDENT, bytes);
                assert!(zeroed.is_zero(), "{bytes} bytes are not zero");
                zeroed.write(0, bytes);
            }
            _ => {
                purge(numbers);
                buffers.iter().for_each(|(words, seed)| assert_patterned(words, *seed));
            }
        }
    }
}

/// The allocator is installed here, so that the model, the threads and their locals live in it, too.
#[test]
fn volume_with_pages_of_every_size() {
    alone!(each PAGE_SIZES);
    let is_usual = env::var(PAGES).is_ok_and(|page_bytes| page_bytes == USUAL);
    let ops = if is_usual { 500_000 } else { 60_000 };
    let volume = Volume { seed: 5, ops, threads: 4, ops_per_life: 5_000, ops_per_settling: 500, at_rest: None };
    volume::run(Box::leak(Box::new(Heap::new(ZkAllocator::resident(), true))), volume);
    volume::run(Box::leak(Box::new(Heap::new(ZkAllocator, true))), volume);
}

/// The memory between two guards is as long as was asked for, whether or not that is whole pages.
#[test]
fn arenas_and_secrets_lie_within_their_guards() {
    alone!(each PAGE_SIZES);
    assert_eq!(SecretBuf::zeroed(0).len(), 0);
    for bytes in [1, 31, 4 * KIB - 1, 4 * KIB, 4 * KIB + 1, 64 * KIB, 70_000, 3 * MIB + 1] {
        let mut secret = SecretBuf::zeroed(bytes);
        assert!(secret.len() == bytes && secret.iter().all(|&byte| byte == 0));
        secret.fill(0xA5);
        let copy = SecretBuf::from_slice(&secret);
        assert!(copy.len() == bytes && copy.iter().all(|&byte| byte == 0xA5));
        assert!(copy.as_ptr().addr().is_multiple_of(4 * KIB));
        let mut arena = Arena::with_capacity(bytes);
        let page_bytes: usize = env::var(PAGES).expect("set by the parent").parse().expect("a number");
        // Capacity is whole pages: this shows that the layer below obeyed the variable.
        let is_whole = arena.capacity_bytes().is_multiple_of(page_bytes);
        assert!(is_whole || !cfg!(debug_assertions), "{} bytes in pages of {page_bytes}", arena.capacity_bytes());
        for round in 0..3 {
            let words = arena.alloc_array(bytes.div_ceil(16), |i| (i as u64) ^ round);
            assert!(words.iter().zip(0..).all(|(&word, i)| word == i ^ round));
            if round == 0 { arena.reset() } else { arena.release() }
        }
    }
}
