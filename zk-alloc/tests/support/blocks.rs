//! Blocks of memory that a test requests directly from an allocator, which need not be the global allocator.
#![allow(unsafe_code, reason = "calls GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

use zk_alloc::ZkAllocator;

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;
pub(crate) const GIB: usize = 1 << 30;

pub(crate) type Allocator = &'static (dyn GlobalAlloc + Sync);

pub(crate) static RESIDENT: ZkAllocator = ZkAllocator::resident();

/// A block of memory from an allocator. Dropping it frees the memory.
pub(crate) struct Block {
    allocator: Allocator,
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: only the block owns its memory.
unsafe impl Send for Block {}

impl Block {
    /// Allocates a block without writing to it.
    pub(crate) fn untouched(allocator: Allocator, size: usize, align: usize) -> Self {
        // SAFETY: callers pass a size that is not 0.
        Self::made(allocator, size, align, |layout| unsafe { allocator.alloc(layout) })
    }

    /// Allocates a block of zeroes.
    pub(crate) fn zeroed(allocator: Allocator, size: usize) -> Self {
        // SAFETY: callers pass a size that is not 0.
        Self::made(allocator, size, 8, |layout| unsafe { allocator.alloc_zeroed(layout) })
    }

    /// Allocates a block and writes every byte, so the whole block is resident.
    pub(crate) fn written(allocator: Allocator, size: usize) -> Self {
        let block = Self::untouched(allocator, size, 8);
        block.write(0, size);
        block
    }

    fn made(allocator: Allocator, size: usize, align: usize, make: impl FnOnce(Layout) -> *mut u8) -> Self {
        let layout = Layout::from_size_align(size, align).expect("a small layout");
        let at = NonNull::new(make(layout)).expect("memory");
        Self { allocator, at, layout }
    }

    pub(crate) fn address(&self) -> usize {
        self.at.addr().get()
    }

    pub(crate) fn size(&self) -> usize {
        self.layout.size()
    }

    /// Writes `len` bytes, starting at byte `from`.
    pub(crate) fn write(&self, from: usize, len: usize) {
        assert!(from + len <= self.layout.size());
        // SAFETY: the range is within the block, which is alive and owned here. Nothing refers to its contents at the same time.
        unsafe { self.at.add(from).write_bytes(0xA5, len) };
    }

    /// Returns whether every byte of the block is zero. Every byte must be initialised.
    pub(crate) fn is_zero(&self) -> bool {
        // SAFETY: the block is alive, and initialised if the allocator works.
        let bytes = unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.layout.size()) };
        bytes.iter().fold(0, |all, byte| all | byte) == 0
    }

    /// Returns a pointer to the block as `u64` words. The block must be aligned to 8 bytes.
    pub(crate) fn words(&self) -> NonNull<u64> {
        self.at.cast()
    }

    /// Changes the length of the block. Returns `false` if the allocator refuses.
    pub(crate) fn resize(&mut self, size: usize) -> bool {
        // SAFETY: the block came from this allocator with this layout, and the old one is not used if the block moves.
        let at = unsafe { self.allocator.realloc(self.at.as_ptr(), self.layout, size) };
        let Some(at) = NonNull::new(at) else { return false };
        let layout = Layout::from_size_align(size, self.layout.align()).expect("a small layout");
        (self.at, self.layout) = (at, layout);
        true
    }

    /// Returns the block with another length, or `None` if the allocator refuses.
    pub(crate) fn resized(mut self, size: usize) -> Option<Self> {
        self.resize(size).then_some(self)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the block came from this allocator with this layout, and is not used afterwards.
        unsafe { self.allocator.dealloc(self.at.as_ptr(), self.layout) };
    }
}

/// Returns by how many bytes RSS exceeds `before`. If call sites are sampled, the size of the sample tables is subtracted.
pub(crate) fn cost(before: usize) -> usize {
    let is_sampled = std::env::var_os("ZK_ALLOC_PROFILE").is_some_and(|value| value == "1");
    let tables = if is_sampled { 4 * MIB } else { 0 };
    super::rss_bytes().saturating_sub(before + tables)
}

/// Fails if RSS exceeds `before` by more than `bound` bytes.
#[track_caller]
pub(crate) fn assert_costs_at_most(bound: usize, before: usize, when: &str) {
    let cost = cost(before);
    assert!(cost <= bound, "RSS grew by {cost} bytes, more than {bound}, {when}\n{}", zk_alloc::stats());
}

/// Keeps every `nth` of `blocks` and frees the others.
pub(crate) fn keep_every<T>(nth: usize, blocks: &mut Vec<T>) {
    let mut number = 1..;
    blocks.retain(|_| number.next().is_some_and(|number| number % nth == 0));
}

/// Frees every `nth` of `blocks` and keeps the others.
pub(crate) fn free_every<T>(nth: usize, blocks: &mut Vec<T>) {
    let mut number = 1..;
    blocks.retain(|_| number.next().is_some_and(|number| number % nth != 0));
}
