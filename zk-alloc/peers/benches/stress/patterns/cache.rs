//! False sharing, after Berger et al., "Hoard" (2000). If an allocator gives two threads parts of one cache line, each
//! write by one makes the other wait.

use std::thread;

use super::Plan;
use crate::heap::{Block, Heap, Touch};

/// Not a multiple of a cache line, so the end of one block and the beginning of the next may share one.
const LARGE: usize = 1040;
const SMALL: usize = 16;

/// Writes to both ends of a block while its owner has it.
const WRITES: usize = 200;

/// Passive: the threads begin with adjacent blocks that the main thread allocated, and free them. An allocator that
/// gives each thread its part of the shared line again prolongs the sharing.
pub(super) fn scratch(heap: Heap, plan: &Plan) {
    run(heap, plan, LARGE, true);
}

pub(super) fn scratch_small(heap: Heap, plan: &Plan) {
    run(heap, plan, SMALL, true);
}

/// Active: the threads begin without blocks.
pub(super) fn thrash(heap: Heap, plan: &Plan) {
    run(heap, plan, LARGE, false);
}

pub(super) fn thrash_small(heap: Heap, plan: &Plan) {
    run(heap, plan, SMALL, false);
}

fn run(heap: Heap, plan: &Plan, bytes: usize, passive: bool) {
    let first: Vec<Option<Block>> =
        (0..plan.threads).map(|_| passive.then(|| heap.block(bytes, Touch::Ends))).collect();
    thread::scope(|scope| {
        for given in first {
            scope.spawn(move || {
                drop(given);
                for _ in 0..plan.work(600_000) {
                    heap.block(bytes, Touch::Ends).rewrite(WRITES);
                }
            });
        }
    });
}
