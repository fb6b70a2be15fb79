//! The interface of all simulated allocators of small and medium sizes.

use crate::trace::ground::Ground;
use std::fmt::Debug;

/// A block's place: `offset` bytes into the slab at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) slab: u64,
    pub(crate) offset: u64,
}

/// An allocator of small and medium sizes.
pub(crate) trait BlockAllocator: Debug {
    /// Returns the place of a new block for `thread`.
    fn alloc(&mut self, ground: &mut Ground, thread: u16, size_bytes: u64, align_bytes: u64) -> Spot;

    /// Frees a block of `size_bytes` on `thread`.
    fn free(&mut self, ground: &mut Ground, thread: u16, spot: Spot, size_bytes: u64);

    /// Resizes a block in place from `old_bytes` to `new_bytes`, if possible. Returns whether it did.
    fn resize(&mut self, ground: &mut Ground, thread: u16, spot: Spot, old_bytes: u64, new_bytes: u64) -> bool;
}

/// Allocators without size classes align blocks to cache lines.
pub(super) const fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(LINE_BYTES)
}

pub(super) const LINE_BYTES: u64 = 64;
