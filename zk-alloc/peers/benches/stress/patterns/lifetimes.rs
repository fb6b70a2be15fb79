//! Long-lived blocks among short-lived ones. The patterns look for memory that the few keep from the many.

use std::ops::RangeInclusive;
use std::thread;

use fastrand::Rng;

use super::{KIB, MIB, Plan, replace};
use crate::heap::{Block, Heap, Touch};
use crate::random::stream;

/// Repeatedly replaces a random block; all blocks together make 64 MiB.
pub(super) fn random(heap: Heap, plan: &Plan) {
    let sizes = KIB..=32 * KIB;
    let mut random = stream(plan.seed, 0);
    let blocks = plan.work(64 * MIB) / ((sizes.start() + sizes.end()) / 2);
    let mut alive: Vec<Option<Block>> = (0..blocks).map(|_| None).collect();
    for _ in 0..plan.work(100_000) {
        let slot = random.usize(..blocks);
        let bytes = random.usize(sizes.clone());
        replace(&mut alive[slot], || heap.block(bytes, Touch::Whole));
    }
}

/// Repeatedly fills 64 MiB and frees all but a tenth, at random places, like a cache that keeps some entries of each
/// day.
pub(super) fn survivors(heap: Heap, plan: &Plan) {
    let sizes = KIB..=4 * KIB;
    let mut random = stream(plan.seed, 0);
    // Room for all entries, so that the bookkeeping does not grow during the run.
    let most = plan.work(64 * MIB) / sizes.start();
    let (mut young, mut old) = (Vec::with_capacity(most), Vec::with_capacity(most));
    for _ in 0..6 {
        let mut filled = 0;
        while filled < plan.work(64 * MIB) {
            let block = heap.block(random.usize(sizes.clone()), Touch::Whole);
            filled += block.bytes();
            young.push(block);
        }
        random.shuffle(&mut young);
        let survivors = young.len() / 10;
        old.extend(young.drain(..survivors));
        young.clear();
    }
}

pub(super) fn burst_1k(heap: Heap, plan: &Plan) {
    bursts(heap, plan, 400, &(KIB..=2 * KIB), plan.work(1500));
}

pub(super) fn burst_24k(heap: Heap, plan: &Plan) {
    bursts(heap, plan, 16, &(24 * KIB..=32 * KIB), plan.work(2500));
}

/// Repeatedly allocates `blocks` blocks and frees all but one, like a request whose answer is cached.
fn bursts(heap: Heap, plan: &Plan, blocks: usize, sizes: &RangeInclusive<usize>, count: usize) {
    let mut random = stream(plan.seed, 0);
    let mut kept = Vec::with_capacity(count);
    let mut burst = Vec::with_capacity(blocks);
    for _ in 0..count {
        burst.extend((0..blocks).map(|_| heap.block(random.usize(sizes.clone()), Touch::Whole)));
        kept.push(burst.swap_remove(random.usize(..blocks)));
        burst.clear();
    }
}

/// A table of one size is thinned out, then another thread builds one of another size.
pub(super) fn survivors_16k_4k(heap: Heap, plan: &Plan) {
    let old = survivors_of(heap, plan.work(128 * MIB), 16 * KIB, 8);
    let new = thread::spawn({
        let bytes = plan.work(128 * MIB);
        move || fill(heap, bytes, 4 * KIB)
    });
    drop((old, new.join()));
}

/// As above, on the same thread. Neither size is whole pages.
pub(super) fn survivors_2k_3000(heap: Heap, plan: &Plan) {
    let old = survivors_of(heap, plan.work(128 * MIB), 2 * KIB, 16);
    drop((old, fill(heap, plan.work(128 * MIB), 3_000)));
}

/// Phases of a program, each with blocks of its own size from 1 to 32 KiB. Each leaves one block of 64.
pub(super) fn phases(heap: Heap, plan: &Plan) {
    let sizes = (0..16).map(|phase| (1024.0 * 32f64.powf(f64::from(phase) / 15.0)) as usize);
    let kept: Vec<_> = sizes.map(|size| survivors_of(heap, plan.work(32 * MIB), size, 64)).collect();
    drop(kept);
}

/// Replaces a random one of 12,000 page runs. No run fits exactly into the place of another.
pub(super) fn runs_random(heap: Heap, plan: &Plan) {
    let mut random = stream(plan.seed, 0);
    let sizes = 33 * KIB..=200 * KIB;
    let mut alive: Vec<Option<Block>> = (0..plan.work(12_000)).map(|_| None).collect();
    let renew = |place: &mut Option<Block>, random: &mut Rng| {
        let bytes = random.usize(sizes.clone());
        replace(place, || heap.block(bytes, Touch::Ends));
    };
    alive.iter_mut().for_each(|place| renew(place, &mut random));
    for _ in 0..plan.work(60_000) {
        let slot = random.usize(..alive.len());
        renew(&mut alive[slot], &mut random);
    }
}

/// `bytes` in blocks of one size, every byte written.
fn fill(heap: Heap, bytes: usize, size: usize) -> Vec<Block> {
    (0..bytes / size).map(|_| heap.block(size, Touch::Whole)).collect()
}

/// Allocates `bytes` in blocks of one size, and frees all but every `nth` block.
fn survivors_of(heap: Heap, bytes: usize, size: usize, nth: usize) -> Vec<Block> {
    let blocks = fill(heap, bytes, size);
    let mut kept = Vec::with_capacity(blocks.len() / nth);
    kept.extend(blocks.into_iter().skip(nth - 1).step_by(nth));
    kept
}
