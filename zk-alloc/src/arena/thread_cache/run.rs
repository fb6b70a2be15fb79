//! A page run that a thread caches, in one word.

use std::num::NonZeroU64;

/// A run of pages: the number of its first page, and in the lowest bits how many pages it has, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run(NonZeroU64);

const PAGE_SHIFT: u32 = 12;
/// Leaves 45 bits for the page, which are those of addresses of 57 bits.
const LENGTH_BITS: u32 = 19;

impl Run {
    /// `None` for what is no whole number of pages, or too long.
    pub(crate) const fn new(address: usize, bytes: usize) -> Option<Self> {
        const PAGE_BYTES: usize = 1 << PAGE_SHIFT;
        let (page, pages) = (address as u64 >> PAGE_SHIFT, bytes as u64 >> PAGE_SHIFT);
        let fits = address % PAGE_BYTES == 0 && bytes % PAGE_BYTES == 0;
        if fits && pages < 1 << LENGTH_BITS { Self::of(page << LENGTH_BITS | pages) } else { None }
    }

    pub(super) const fn of(word: u64) -> Option<Self> {
        match NonZeroU64::new(word) {
            Some(word) => Some(Self(word)),
            None => None,
        }
    }

    pub(super) const fn word(self) -> u64 {
        self.0.get()
    }

    pub(crate) const fn address(self) -> usize {
        (self.0.get() >> LENGTH_BITS << PAGE_SHIFT) as usize
    }

    pub(crate) const fn bytes(self) -> usize {
        ((self.0.get() & ((1 << LENGTH_BITS) - 1)) << PAGE_SHIFT) as usize
    }
}
