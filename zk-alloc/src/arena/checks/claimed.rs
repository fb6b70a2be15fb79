//! A thread cache that another thread has claimed when its owner comes to use it.
#![allow(unsafe_code, reason = "frees memory")]

use std::ptr::NonNull;

use super::alone;
use crate::arena::{self, Arena, Contents, front};
use crate::os;

const SIZE: usize = 1000;

fn alloc(arena: &Arena) -> NonNull<u8> {
    arena.alloc(SIZE, 8, Contents::Any).expect("memory")
}

fn free(arena: &Arena, block: NonNull<u8>) {
    // SAFETY: a block of the arena, of this length, which is freed once.
    unsafe { arena.dealloc(block, SIZE) };
}

/// Puts blocks into this thread's cache, then claims the cache, as a thread of a process with this generation would.
fn fill_and_claim(arena: &Arena, generation: u64) {
    let blocks: Vec<_> = (0..64).map(|_| alloc(arena)).collect();
    blocks.into_iter().for_each(|block| free(arena, block));
    let entered = front::enter().expect("this thread has a cache");
    assert!(entered.claim(generation));
}

/// The claimant does not exist in a forked child, so that nobody there would ever withdraw the claim.
#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_uses_its_cache_though_it_was_claimed_at_the_fork() {
    let Some(arena) = alone() else { return };
    fill_and_claim(arena, os::process_generation());
    let cached = arena::cached_bytes();
    let code = os::forks::in_a_fork(|| {
        let block = alloc(arena);
        let took_a_cached_one = arena::cached_bytes() < cached;
        free(arena, block);
        u8::from(!(took_a_cached_one && arena::cached_bytes() == cached))
    });
    assert_eq!(code, 0);
}

/// The claimant is emptying the cache. A thread that cancelled the claim would take the same blocks.
#[test]
fn a_claim_of_this_process_stands_until_its_claimant_withdraws_it() {
    let Some(arena) = alone() else { return };
    fill_and_claim(arena, os::process_generation());
    let cached = arena::cached_bytes();
    let blocks: Vec<_> = (0..100).map(|_| alloc(arena)).collect();
    assert_eq!(arena::cached_bytes(), cached, "blocks were taken out of a claimed cache");
    blocks.into_iter().for_each(|block| free(arena, block));
    assert_eq!(arena::cached_bytes(), cached, "blocks were put into a claimed cache");
    assert!(front::enter().is_none());
}

/// A thread that fetched more blocks while its cache has some would hold both.
#[test]
fn blocks_that_could_not_be_reached_for_a_moment_are_used_before_others_are_fetched() {
    let Some(arena) = alone() else { return };
    fill_and_claim(arena, u64::MAX);
    let cached = arena::cached_bytes();
    let block = alloc(arena);
    assert!(arena::cached_bytes() < cached, "{cached} bytes were cached, now {}", arena::cached_bytes());
    free(arena, block);
    assert_eq!(arena::cached_bytes(), cached);
}
