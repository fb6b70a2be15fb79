//! A program: operations that one thread carries out in order. Small ones come from proptest and from the fuzzer.

use std::alloc::{GlobalAlloc, Layout};
use std::thread;

use zk_alloc::{PhaseGuard, release};

use crate::heap::{Block, Heap};

/// Alive at most, in bytes: beyond, a program allocates nothing.
pub(crate) const MAX_LIVE_BYTES: usize = 1 << 30;

/// One step of a [`run`]. Which block is meant is counted modulo the blocks that are alive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Alloc {
        size: usize,
        align_log2: u32,
        zeroed: bool,
    },
    /// As many bytes as a layout may have: refused, and nothing else happens.
    AllocAbsurd {
        align_log2: u32,
        zeroed: bool,
    },
    Realloc {
        which: u16,
        size: usize,
    },
    ReallocAbsurd {
        which: u16,
    },
    Free {
        which: u16,
    },
    /// Another thread, which ends at once, gives a block back.
    FreeElsewhere {
        which: u16,
    },
    /// Another thread, which ends at once, makes a block.
    AllocElsewhere {
        size: usize,
    },
    BeginPhase,
    /// Ends any of the program's phases, not only the last begun.
    EndPhase {
        which: u16,
    },
    Release,
}

/// The largest size that a layout with this alignment may have.
fn absurd_size(align: usize) -> usize {
    isize::MAX as usize - (align - 1)
}

fn take<T>(from: &mut Vec<T>, which: u16) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(usize::from(which) % from.len()))
}

/// Carries out the operations, and then gives back what is alive.
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
