//! Blocks that grow, and requests that are hard to place.

use super::{KIB, MIB, Plan};
use crate::heap::{Block, Heap, Touch};

/// `Vec::push` until 256 MiB: the capacity doubles, each byte is written once.
pub(super) fn push(heap: Heap, plan: &Plan) {
    let most = plan.work(256 * MIB);
    let mut vector = heap.block(64, Touch::Whole);
    while vector.bytes() < most {
        let doubled = 2 * vector.bytes();
        vector.grow(doubled.min(most));
    }
}

/// `Vec::reserve_exact` before each piece, as where records are read one after another: to copy it all each time is to copy
/// 4 GiB.
pub(super) fn exact(heap: Heap, plan: &Plan) {
    let step = plan.work(4 * MIB);
    let mut vector = heap.block(step, Touch::Whole);
    for steps in 2..=45 {
        vector.grow(steps * step);
    }
}

/// An alignment sixteen times the size: rounding each up to its alignment is to use sixteen times the memory.
pub(super) fn aligned(heap: Heap, plan: &Plan) {
    let mut alive = Vec::with_capacity(500);
    for _ in 0..plan.work(200) {
        alive.extend((0..500).map(|_| heap.aligned(2 * KIB, 32 * KIB, Touch::Whole)));
        alive.clear();
    }
}

/// Requests that none of the many holes below can hold: an allocator that looks through all of them each time shows it.
/// Only the ends are written; all of the blocks would be 1.3 GiB.
pub(super) fn holes(heap: Heap, plan: &Plan) {
    let mut blocks: Vec<_> = (0..plan.work(40_000)).map(|_| Some(heap.block(33 * KIB, Touch::Ends))).collect();
    blocks.iter_mut().step_by(2).for_each(|block| *block = None);
    let mut kept: [Option<Block>; 4] = [const { None }; 4];
    for request in 0..plan.work(20_000) {
        super::replace(&mut kept[request % 4], || heap.block(200 * KIB, Touch::Ends));
    }
}
