//! Small random programs, which proptest and the fuzzer generate. A program is a sequence of operations that one thread executes.

use std::alloc::{GlobalAlloc, Layout};
use std::thread;

use zk_alloc::{PhaseGuard, release};

use crate::heap::{Block, Heap};

/// The maximum live size in bytes. A program skips requests that would exceed it.
pub(crate) const MAX_LIVE_BYTES: usize = 1 << 30;

/// One operation of a program. `which`, modulo their number, selects one of the live blocks or open phases, so phases may end in any order.
/// `AllocAbsurd` and `ReallocAbsurd` ask for the largest size that a layout may have, and must fail without any other effect.
/// `AllocElsewhere` and `FreeElsewhere` run on a new thread, which then exits.
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

/// Number of bytes from which an [`Op`] is decoded.
pub(crate) const OP_BYTES: usize = 6;

impl Op {
    /// Decodes an operation from any bytes, which come from proptest or the fuzzer. Most sizes are below 128 KiB, where each range from a
    /// power of two to the next is equally likely. A fifth of the sizes are within one byte of a power of two, because the allocator's
    /// paths often change there.
    pub(crate) fn decode([kind, log2, form, align, low, high]: [u8; OP_BYTES]) -> Self {
        let which = u16::from_le_bytes([low, high]);
        let base = 1usize
            << match log2 {
                0..204 => log2 % 17,
                204..245 => 17 + log2 % 6,
                _ => 23 + log2 % 4,
            };
        let (is_border, noise) = (form % 5 == 0 && base > 1, usize::from(which));
        let size = if is_border { base + noise % 3 - 1 } else { base + ((base * noise) >> 16) };
        let align_log2 = u32::from(if align < 204 { align % 7 } else { 7 + align % 16 });
        let zeroed = form >= 128;
        match kind % 37 {
            0..12 => Self::Alloc { size, align_log2, zeroed },
            12..20 => Self::Free { which },
            20..26 => Self::Realloc { which, size },
            26..28 => Self::FreeElsewhere { which },
            28..30 => Self::AllocElsewhere { size },
            30..32 => Self::BeginPhase,
            32..34 => Self::EndPhase { which },
            34 => Self::Release,
            35 => Self::AllocAbsurd { align_log2, zeroed },
            _ => Self::ReallocAbsurd { which },
        }
    }
}

/// Returns the largest size that a layout with this alignment may have.
fn absurd_size(align: usize) -> usize {
    isize::MAX as usize - (align - 1)
}

fn take<T>(from: &mut Vec<T>, which: u16) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(usize::from(which) % from.len()))
}

/// Executes the operations, then frees all live blocks.
pub(crate) fn run<A: GlobalAlloc + Sync>(heap: &Heap<A>, ops: &[Op]) {
    let mut blocks: Vec<Block> = Vec::new();
    let mut phases = Vec::new();
    let has_room = |size: usize| heap.live_bytes() + size <= MAX_LIVE_BYTES;
    for &op in ops {
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
                let block = has_room(size).then(|| take(&mut blocks, which)).flatten();
                blocks.extend(block.map(|block| heap.realloc(block, size)));
            }
            Op::ReallocAbsurd { which } => {
                if let Some(block) = take(&mut blocks, which) {
                    let layout = block.layout();
                    let block = heap.realloc(block, absurd_size(layout.align()));
                    assert_eq!(block.layout(), layout);
                    blocks.push(block);
                }
            }
            Op::Free { which } => take(&mut blocks, which).into_iter().for_each(|block| heap.free(block)),
            Op::FreeElsewhere { which } => {
                if let Some(block) = take(&mut blocks, which) {
                    elsewhere(|| heap.free(block));
                }
            }
            Op::AllocElsewhere { size } => {
                let layout = Layout::from_size_align(size, 8).expect("a small layout");
                blocks.extend(has_room(size).then(|| elsewhere(|| heap.alloc(layout, false))).flatten());
            }
            Op::BeginPhase => phases.push(PhaseGuard::new()),
            Op::EndPhase { which } => drop(take(&mut phases, which)),
            Op::Release => _ = release(),
        }
    }
    blocks.into_iter().for_each(|block| heap.free(block));
}

/// Runs `work` on another thread, which then exits.
fn elsewhere<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(work).join().expect("a step on another thread"))
}
