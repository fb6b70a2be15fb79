//! Collections in a scratch.
#![allow(unsafe_code, reason = "implements Allocator")]

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::{LINE_BYTES, Scratch};

impl Scratch {
    /// A block for `layout`, on a boundary of at least a cache line, as for arrays.
    fn block(&self, layout: Layout, zeroed: bool) -> Result<NonNull<[u8]>, AllocError> {
        let (size, align) = (layout.size(), layout.align().max(LINE_BYTES));
        let at = if zeroed { self.bump.claim_zeroed(size, align) } else { self.bump.claim(size, align) };
        at.map(|at| NonNull::slice_from_raw_parts(at, size)).map_err(|_| AllocError)
    }

    /// Gives a block another layout: in place, or as a new block with its contents.
    ///
    /// # Safety
    /// `at` is a block of `old`, and nobody uses it any more if this succeeds.
    unsafe fn refit(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if at.addr().get() % new.align() == 0 && self.bump.resize(at, old.size(), new.size()) {
            return Ok(NonNull::slice_from_raw_parts(at, new.size()));
        }
        let moved = self.block(new, false)?;
        // SAFETY: both are at least that long, and a new block overlaps no live memory.
        unsafe { at.copy_to_nonoverlapping(moved.cast(), old.size().min(new.size())) };
        Ok(moved)
    }
}

// SAFETY: a block belongs to the caller until it is freed, or until a reset, for which all copies of the reference must be gone.
// All copies of a reference are the same scratch. Blocks don't move when the scratch does: they lie in its mapping.
unsafe impl Allocator for &Scratch {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.block(layout, false)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.block(layout, true)
    }

    unsafe fn deallocate(&self, at: NonNull<u8>, layout: Layout) {
        self.bump.resize(at, layout.size(), 0);
    }

    unsafe fn grow(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's.
        unsafe { self.refit(at, old, new) }
    }

    unsafe fn grow_zeroed(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's.
        let grown = unsafe { self.refit(at, old, new) }?;
        // SAFETY: the block is `new.size()` long, which is at least `old.size()` when growing.
        unsafe { grown.cast::<u8>().add(old.size()).write_bytes(0, new.size() - old.size()) };
        Ok(grown)
    }

    unsafe fn shrink(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's.
        unsafe { self.refit(at, old, new) }
    }
}
