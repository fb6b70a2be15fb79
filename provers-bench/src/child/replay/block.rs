//! A block of real memory that detects writes by others.
//!
//! A block has marks at both ends and in every page, so that it is resident like a program's block. Each block has
//! different marks. If two blocks overlap, freeing the one that was marked first finds the marks of the other.
#![allow(unsafe_code, reason = "calls the measured allocator, and writes to its memory")]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes between two marks. A page has several, so that a block inside another one probably hits one.
const STEP_BYTES: usize = 256;
const PAGE_BYTES: usize = 4096;
/// Marked bytes at each end.
const END_BYTES: usize = 8;

/// An error that no allocator may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{size_bytes} bytes aligned to {align_bytes} were refused")]
    Refused { size_bytes: usize, align_bytes: usize },
    #[error("a block is at {at:#x}, which is not aligned to {align_bytes}")]
    Misaligned { at: usize, align_bytes: usize },
    #[error(
        "a block was overwritten while it was alive, or not copied when it moved: byte {offset} of {size_bytes} is \
         {found:#04x}, and was marked {marked:#04x}"
    )]
    Overwritten { offset: usize, size_bytes: usize, marked: u8, found: u8 },
    #[error("memory that was asked for zeroed is not: byte {offset} of {size_bytes} is {found:#04x}")]
    NotZeroed { offset: usize, size_bytes: usize, found: u8 },
}

/// A block of the installed allocator. Dropping it without [`Block::free`] leaks it.
#[derive(Debug)]
pub(crate) struct Block {
    at: NonNull<u8>,
    layout: Layout,
    /// The mark bytes; none is 0.
    marks: [u8; 8],
}

// SAFETY: only the block refers to its memory, and an allocator can free on any thread.
unsafe impl Send for Block {}

impl Block {
    /// A block of at least one byte, marked with `number`.
    pub(crate) fn new(layout: Layout, zeroed: bool, number: u64) -> Result<Self, Fault> {
        assert!(layout.size() > 0, "a block has a size");
        // SAFETY: the size is not 0.
        let at = unsafe { if zeroed { alloc_zeroed(layout) } else { alloc(layout) } };
        let block = Self::placed(at, layout, number)?;
        if zeroed {
            block.mark_zeroed()?
        } else {
            block.mark()
        }
        Ok(block)
    }

    /// The block after a `realloc` to `size_bytes`, with new marks. Fails if the retained bytes lost their old marks.
    pub(crate) fn resize(self, size_bytes: usize, number: u64) -> Result<Self, Fault> {
        self.check(self.layout.size())?;
        let refused = Fault::Refused { size_bytes, align_bytes: self.layout.align() };
        let layout = Layout::from_size_align(size_bytes, self.layout.align()).map_err(|_| refused)?;
        assert!(size_bytes > 0, "a block has a size");
        // SAFETY: the installed allocator returned the block with this layout, and nothing refers to the old block
        // afterwards. The new size is not 0, and fits the alignment.
        let at = unsafe { realloc(self.at.as_ptr(), self.layout, size_bytes) };
        let kept_bytes = self.layout.size().min(size_bytes);
        let moved = Self { marks: self.marks, ..Self::placed(at, layout, number)? };
        moved.check_kept(self.layout.size(), kept_bytes)?;
        let block = Self { marks: marks(number), ..moved };
        block.mark();
        Ok(block)
    }

    /// Frees the block. Fails if its marks changed.
    pub(crate) fn free(self) -> Result<(), Fault> {
        self.check(self.layout.size())?;
        // SAFETY: the installed allocator returned the block with this layout, and this call consumes it.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
        Ok(())
    }

    fn placed(at: *mut u8, layout: Layout, number: u64) -> Result<Self, Fault> {
        let (size_bytes, align_bytes) = (layout.size(), layout.align());
        let at = NonNull::new(at).ok_or(Fault::Refused { size_bytes, align_bytes })?;
        if !at.addr().get().is_multiple_of(align_bytes) {
            return Err(Fault::Misaligned { at: at.addr().get(), align_bytes });
        }
        Ok(Self { at, layout, marks: marks(number) })
    }

    fn mark(&self) {
        for offset in places(self.layout.size()) {
            // SAFETY: `places` are inside the block, which nothing else refers to. The write is volatile because
            // nothing may ever read it.
            unsafe { self.at.add(offset).write_volatile(self.marked(offset)) };
        }
    }

    /// Marks a block that must be all zeros. The first access is a write, as in a real program: a read would cause
    /// another page fault.
    fn mark_zeroed(&self) -> Result<(), Fault> {
        let size_bytes = self.layout.size();
        for offset in places(size_bytes) {
            // SAFETY: `places` are inside the block, which is initialised, and which nothing else refers to.
            let byte = unsafe { AtomicU8::from_ptr(self.at.add(offset).as_ptr()) };
            let found = byte.swap(self.marked(offset), Ordering::Relaxed);
            if found != 0 {
                return Err(Fault::NotZeroed { offset, size_bytes, found });
            }
        }
        Ok(())
    }

    /// Checks all marks of a block of `size_bytes`.
    fn check(&self, size_bytes: usize) -> Result<(), Fault> {
        self.check_kept(size_bytes, size_bytes)
    }

    /// Checks the marks in the first `kept_bytes` of a block that had `size_bytes` when it was marked.
    fn check_kept(&self, size_bytes: usize, kept_bytes: usize) -> Result<(), Fault> {
        for offset in places(size_bytes).filter(|offset| *offset < kept_bytes) {
            // SAFETY: `kept_bytes` is at most the block's size, and `mark` wrote every place below it.
            let found = unsafe { self.at.add(offset).read_volatile() };
            let marked = self.marked(offset);
            if found != marked {
                return Err(Fault::Overwritten { offset, size_bytes, marked, found });
            }
        }
        Ok(())
    }

    fn marked(&self, offset: usize) -> u8 {
        // Marks differ between steps and between pages, so a page that was copied to the wrong place is found.
        self.marks[(offset + offset / STEP_BYTES + offset / PAGE_BYTES) % self.marks.len()]
    }
}

/// Consecutive numbers have marks that differ in nearly every byte.
fn marks(number: u64) -> [u8; 8] {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().map(|byte| byte | 1)
}

/// The marked bytes of a block, each once. Every page that the block touches has one, wherever the block begins.
fn places(size_bytes: usize) -> impl Iterator<Item = usize> {
    let head = 0..END_BYTES.min(size_bytes);
    let tail = size_bytes.saturating_sub(END_BYTES).max(head.end)..size_bytes;
    let steps = (STEP_BYTES..tail.start).step_by(STEP_BYTES);
    head.chain(steps).chain(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(size_bytes: usize, zeroed: bool) -> Block {
        Block::new(Layout::from_size_align(size_bytes, 16).unwrap(), zeroed, 3).unwrap()
    }

    fn overwrite(block: &Block, offset: usize) {
        assert!(offset < block.layout.size());
        // SAFETY: inside the block.
        unsafe { *block.at.as_ptr().add(offset) ^= 2 };
    }

    /// Without this check, an allocator that hands out memory twice would pass the replay.
    #[test]
    fn a_block_that_was_overwritten_is_found_when_it_is_freed_or_resized() {
        for (size_bytes, offset) in [(1, 0), (9, 8), (100, 99), (100_000, 8192), (100_000, 99_993)] {
            for zeroed in [false, true] {
                let (freed, resized) = (block(size_bytes, zeroed), block(size_bytes, zeroed));
                overwrite(&freed, offset);
                overwrite(&resized, offset);
                let is_found = |fault| matches!(fault, Fault::Overwritten { offset: at, .. } if at == offset);
                assert!(freed.free().is_err_and(is_found), "{size_bytes} {offset}");
                assert!(resized.resize(1 << 20, 4).is_err_and(is_found), "{size_bytes} {offset}");
            }
        }
    }

    #[test]
    fn a_block_that_nobody_touched_survives_growth_and_shrinking() {
        for sizes in [[1, 7, 8], [64, 100_000, 65], [4096, 4097, 8192], [5 << 20, 9 << 20, 1]] {
            let mut block = block(sizes[0], true);
            for size_bytes in sizes {
                block = block.resize(size_bytes, size_bytes as u64).unwrap();
            }
            block.free().unwrap();
        }
    }

    /// A `realloc` must retain all bytes: a page that was not copied must be found.
    #[test]
    fn every_page_of_a_block_has_a_mark_of_its_block() {
        for (size_bytes, into_a_page) in [(1, 0), (4096, 4095), (12_289, 0), (12_289, 4000), (8200, 4095)] {
            let offsets: Vec<_> = places(size_bytes).collect();
            assert!(offsets.is_sorted_by(|one, next| one < next), "each once: {offsets:?}");
            let pages = |offset: usize| (into_a_page + offset) / PAGE_BYTES;
            let all = 0..=pages(size_bytes - 1);
            assert!(all.into_iter().all(|page| offsets.iter().any(|&offset| pages(offset) == page)), "{offsets:?}");
        }
        let block = block(3 * PAGE_BYTES, true);
        assert_ne!(block.marked(PAGE_BYTES), block.marked(2 * PAGE_BYTES));
        block.free().unwrap();
        let (one, next) = (marks(7), marks(8));
        assert!(one.iter().zip(next).filter(|(one, next)| *one != next).count() >= 6, "{one:?} {next:?}");
    }

    #[test]
    fn memory_that_is_not_zeroed_is_found() {
        let block = block(10_000, true);
        for offset in places(10_000) {
            // SAFETY: inside the block.
            unsafe { block.at.add(offset).write(u8::from(offset == 4096)) };
        }
        assert_eq!(block.mark_zeroed(), Err(Fault::NotZeroed { offset: 4096, size_bytes: 10_000, found: 1 }));
    }
}
