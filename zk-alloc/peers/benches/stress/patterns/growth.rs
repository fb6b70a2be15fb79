//! Blocks that grow, and requests that are hard to place.

use super::{KIB, MIB, Plan};
use crate::heap::{Block, Heap, Touch};

/// `Vec::push` up to 256 MiB: the capacity doubles, and each byte is written once.
pub(super) fn push(heap: Heap, plan: &Plan) {
    let most = plan.work(256 * MIB);
    let mut vector = heap.block(64, Touch::Whole);
    while vector.bytes() < most {
        let doubled = 2 * vector.bytes();
        vector.grow(doubled.min(most));
    }
}

/// `Vec::reserve_exact` before each part, as for records that are read one after another. An allocator that copies
/// everything each time copies 4 GiB.
pub(super) fn exact(heap: Heap, plan: &Plan) {
    let step = plan.work(4 * MIB);
    let mut vector = heap.block(step, Touch::Whole);
    for steps in 2..=45 {
        vector.grow(steps * step);
    }
}

/// The alignment is sixteen times the size. An allocator that rounds sizes up to the alignment uses sixteen times the
/// memory.
pub(super) fn aligned(heap: Heap, plan: &Plan) {
    let mut alive = Vec::with_capacity(500);
    for _ in 0..plan.work(200) {
        alive.extend((0..500).map(|_| heap.aligned(2 * KIB, 32 * KIB, Touch::Whole)));
        alive.clear();
    }
}

/// Requests that fit none of the many holes below. An allocator that searches all of them each time is slow here. Only
/// the ends are written, because all of the blocks would take 1.3 GiB.
pub(super) fn holes(heap: Heap, plan: &Plan) {
    let mut blocks: Vec<_> = (0..plan.work(40_000)).map(|_| Some(heap.block(33 * KIB, Touch::Ends))).collect();
    blocks.iter_mut().step_by(2).for_each(|block| *block = None);
    let mut kept: [Option<Block>; 4] = [const { None }; 4];
    for request in 0..plan.work(20_000) {
        super::replace(&mut kept[request % 4], || heap.block(200 * KIB, Touch::Ends));
    }
}
