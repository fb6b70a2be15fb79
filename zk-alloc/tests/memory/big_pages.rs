//! A kernel with pages of more than 4 KiB purges, protects and zeroes whole ones. If the arena's pages were smaller, that
//! would be more than the arena asked for. In a debug build, `ZK_ALLOC_TEST_PAGE_BYTES` makes the layer below the arena simulate pages of that
//! size. In other builds, these are ordinary random programs.
//!
//! The page size belongs to the process, so each test runs in a process of its own for each size.

use std::env;

use crate::heap::Heap;
use crate::support::blocks::{KIB, MIB};
use crate::support::{Settings, alone};
use crate::volume::{self, Volume};
use zk_alloc::{Scratch, SecretBuf, ZkAllocator};

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

/// A page is not free if a block in use shares it with a freed one. The allocator is installed here, so that the model, the threads and their
/// locals live in it, too.
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
fn scratches_and_secrets_lie_within_their_guards() {
    alone!(each PAGE_SIZES);
    assert_eq!(SecretBuf::zeroed(0).len(), 0);
    for bytes in [1, 31, 4 * KIB - 1, 4 * KIB, 4 * KIB + 1, 64 * KIB, 70_000, 3 * MIB + 1] {
        let mut secret = SecretBuf::zeroed(bytes);
        assert!(secret.len() == bytes && secret.iter().all(|&byte| byte == 0));
        secret.fill(0xA5);
        let copy = SecretBuf::from_slice(&secret);
        assert!(copy.len() == bytes && copy.iter().all(|&byte| byte == 0xA5));
        assert!(copy.as_ptr().addr().is_multiple_of(4 * KIB));
        let mut scratch = Scratch::with_capacity(bytes);
        let page_bytes: usize = env::var(PAGES).expect("set by the parent").parse().expect("a number");
        // Capacity is whole pages: this shows that the layer below obeyed the variable.
        let is_whole = scratch.capacity_bytes().is_multiple_of(page_bytes);
        assert!(is_whole || !cfg!(debug_assertions), "{} bytes in pages of {page_bytes}", scratch.capacity_bytes());
        for round in 0..3 {
            let words = scratch.alloc_array(bytes.div_ceil(16), |i| (i as u64) ^ round);
            assert!(words.iter().zip(0..).all(|(&word, i)| word == i ^ round));
            if round == 0 { scratch.reset() } else { scratch.release() }
        }
    }
}
