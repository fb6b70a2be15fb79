//! Tests for situations in which earlier prover arenas failed: memory that libraries keep across phases, and requests before `main`, at
//! exit, in signal handlers, in forked and vforked children, and after other code has taken many thread keys.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "forks, makes keys, and runs before main, at exit and in signal handlers")]

mod fork;
mod libraries;
mod life;
mod phases;
#[path = "../support/mod.rs"]
mod support;

use support::{is_patterned, patterned};
use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

/// Lengths in words that cover all paths: the backing allocator, slabs, and page runs of every zone.
const LENGTHS: [usize; 7] = [5, 90, 700, 4_000, 9_000, 60_000, 300_000];

fn buffers(seed: u64) -> Vec<Vec<u64>> {
    LENGTHS.iter().map(|&len| patterned(len, seed)).collect()
}

fn intact(buffers: &[Vec<u64>], seed: u64) -> bool {
    buffers.len() == LENGTHS.len() && buffers.iter().all(|words| is_patterned(words, seed))
}
