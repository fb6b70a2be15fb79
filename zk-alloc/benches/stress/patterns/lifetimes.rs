//! Blocks that live long among blocks that do not. What is looked for is memory that the few keep from the many.

use std::ops::RangeInclusive;

use super::{KIB, MIB, Plan, replace};
use crate::heap::{Block, Heap, Touch};
use crate::random::Random;

/// Replaces a random one of as many blocks as make 64 MiB.
pub(super) fn random(heap: Heap, plan: &Plan) {
    let sizes = KIB..=32 * KIB;
    let mut random = Random::new(plan.seed, 0);
    let blocks = plan.work(64 * MIB) / ((sizes.start() + sizes.end()) / 2);
    let mut alive: Vec<Option<Block>> = (0..blocks).map(|_| None).collect();
    for _ in 0..plan.work(100_000) {
        let slot = random.below(blocks);
        let bytes = random.within(&sizes);
        replace(&mut alive[slot], || heap.block(bytes, Touch::Whole));
    }
}

/// Fills 64 MiB and frees all but a tenth, at random places, again and again: a cache that keeps some of each day.
pub(super) fn survivors(heap: Heap, plan: &Plan) {
    let sizes = KIB..=4 * KIB;
    let mut random = Random::new(plan.seed, 0);
    // Room for all that will be in them: the bookkeeping does not grow meanwhile.
    let most = plan.work(64 * MIB) / sizes.start();
    let (mut young, mut old) = (Vec::with_capacity(most), Vec::with_capacity(most));
    for _ in 0..6 {
        let mut filled = 0;
        while filled < plan.work(64 * MIB) {
            let block = heap.block(random.within(&sizes), Touch::Whole);
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

/// Allocates so many blocks and frees all of them but one: a request whose answer is cached.
fn bursts(heap: Heap, plan: &Plan, blocks: usize, sizes: &RangeInclusive<usize>, count: usize) {
    let mut random = Random::new(plan.seed, 0);
    let mut kept = Vec::with_capacity(count);
    let mut burst = Vec::with_capacity(blocks);
    for _ in 0..count {
        burst.extend((0..blocks).map(|_| heap.block(random.within(sizes), Touch::Whole)));
        kept.push(burst.swap_remove(random.below(blocks)));
        burst.clear();
    }
}
