//! A program: operations that one thread executes in order. proptest and the fuzzer make small ones.

use std::alloc::{GlobalAlloc, Layout};
use std::thread;

use zk_alloc::{PhaseGuard, release};

use crate::heap::{Block, Heap};

/// The largest live size: a program skips requests that would exceed it.
pub(crate) const MAX_LIVE_BYTES: usize = 1 << 30;

/// One step of a [`run`]. `which` selects a live block, modulo their number, or an open phase, modulo their number. So any phase may end, not
/// only the newest. An absurd request asks for the largest size that a layout may have. It must be refused, and have no other effect. A step
/// `Elsewhere` runs on another thread, which ends at once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Alloc { size: usize, align_log2: u32, zeroed: bool },
    AllocAbsurd { align_log2: u32, zeroed: bool },
    AllocElsewhere { size: usize },
    Realloc { which: u16, size: usize },
    ReallocAbsurd { which: u16 },
    Free { which: u16 },
    FreeElsewhere { which: u16 },
    BeginPhase,
    EndPhase { which: u16 },
    Release,
}

/// The largest size that a layout with this alignment may have.
fn absurd_size(align: usize) -> usize {
    isize::MAX as usize - (align - 1)
}

fn take<T>(from: &mut Vec<T>, which: u16) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(usize::from(which) % from.len()))
}

/// Executes the operations, and then frees all live blocks.
pub(crate) fn run<A: GlobalAlloc + Sync>(heap: &Heap<A>, ops: &[Op]) {
    let mut blocks: Vec<Block> = Vec::new();
    let mut phases = Vec::new();
    for &op in ops {
        step(heap, op, &mut blocks, &mut phases);
    }
    blocks.into_iter().for_each(|block| heap.free(block));
}

fn step<A: GlobalAlloc + Sync>(heap: &Heap<A>, op: Op, blocks: &mut Vec<Block>, phases: &mut Vec<PhaseGuard>) {
    let has_room = |size: usize| heap.live_bytes() + size <= MAX_LIVE_BYTES;
    match op {
        Op::Alloc { size, align_log2, zeroed } => {
            let layout = Layout::from_size_align(size, 1 << align_log2).expect("a small layout");
            blocks.extend(has_room(size).then(|| heap.alloc(layout, zeroed).expect("memory")));
        }
        Op::AllocAbsurd { align_log2, zeroed } => {
            let align = 1 << align_log2;
            let layout = Layout::from_size_align(absurd_size(align), align).expect("the largest layout");
            assert!(heap.alloc(layout, zeroed).is_none());
        }
        Op::Realloc { which, size } => {
            if let Some(block) = has_room(size).then(|| take(blocks, which)).flatten() {
                blocks.push(heap.realloc(block, size));
            }
        }
        Op::ReallocAbsurd { which } => {
            if let Some(block) = take(blocks, which) {
                let layout = block.layout();
                let block = heap.realloc(block, absurd_size(layout.align()));
                assert_eq!(block.layout(), layout);
                blocks.push(block);
            }
        }
        Op::Free { which } => {
            if let Some(block) = take(blocks, which) {
                heap.free(block);
            }
        }
        Op::FreeElsewhere { which } => {
            if let Some(block) = take(blocks, which) {
                thread::scope(|scope| scope.spawn(|| heap.free(block)).join().expect("freed elsewhere"));
            }
        }
        Op::AllocElsewhere { size } => {
            let layout = Layout::from_size_align(size, 8).expect("a small layout");
            let made = has_room(size).then(|| {
                thread::scope(|scope| scope.spawn(|| heap.alloc(layout, false)).join().expect("made elsewhere"))
            });
            blocks.extend(made.flatten());
        }
        Op::BeginPhase => phases.push(PhaseGuard::new()),
        Op::EndPhase { which } => drop(take(phases, which)),
        Op::Release => {
            release();
        }
    }
}
