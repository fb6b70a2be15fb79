//! What every way to serve the middle sizes can do.

use crate::trace::ground::Ground;
use std::fmt::Debug;

/// A block's place: `offset` bytes into the slab at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) slab: u64,
    pub(crate) offset: u64,
}

/// A way to serve the middle sizes.
pub(crate) trait Middle: Debug {
    /// A place for a new block of `thread`.
    fn alloc(&mut self, ground: &mut Ground, thread: u16, size_bytes: u64, align_bytes: u64) -> Spot;

    /// `thread` frees a block, which was `size_bytes` long.
    fn free(&mut self, ground: &mut Ground, thread: u16, spot: Spot, size_bytes: u64);

    /// Whether a block goes from `old_bytes` to `new_bytes` where it stands.
    fn resize(&mut self, ground: &mut Ground, thread: u16, spot: Spot, old_bytes: u64, new_bytes: u64) -> bool;
}

/// What does not have size classes keeps blocks on lines of the processor's cache.
pub(super) const fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(LINE_BYTES)
}

pub(super) const LINE_BYTES: u64 = 64;
