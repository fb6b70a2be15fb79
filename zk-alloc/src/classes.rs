//! Size classes of small and medium blocks. This module is pure arithmetic, and its tests need no memory.
//!
//! Up to 128 bytes, the classes are 16 bytes apart. Above that, there are eight classes per doubling, so that rounding up wastes at most
//! 1/8. A slab is cut into blocks of one class.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::tuning;

/// The number of a size class. Numbers begin at 1; 0 means no class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

/// The largest request that a class serves, in bytes.
///
/// Under loom there are two classes, so that a thread cache has few atomics. The bitmap of a slab has two words in the class of short
/// blocks, and one in the class of long blocks. A page holds eight short blocks, or four long ones.
pub(crate) const MAX_BYTES: usize = if cfg!(loom) { 2 * FINE_BYTES } else { 32 << 10 };
/// The largest alignment that a class serves, in bytes. A request aligned to more gets pages of its own, because it would leave most of a
/// block empty.
pub(crate) const MAX_ALIGN: usize = 4 << 10;

/// The number of classes, plus one for class number 0, which means no class.
pub(crate) const COUNT: usize = number(MAX_BYTES) + 1;

/// The number of blocks that one word of a slab's bitmap covers.
const WORD_BITS: usize = u64::BITS as usize;
/// The number of words in the longest bitmap.
pub(crate) const MAX_WORDS: usize = if cfg!(loom) { 2 } else { 16 };
/// The maximum number of blocks in a slab. Under loom, slabs of short blocks end with a page without blocks.
const MAX_BLOCKS: usize = if cfg!(loom) { MAX_WORDS * WORD_BITS - 8 } else { MAX_WORDS * WORD_BITS };

/// The size of the smallest slab, in bytes. A slab's address is a multiple of its size. Under loom, the bitmap of a slab has two words in
/// one class, and one in the other.
pub(crate) const MIN_SLAB_BYTES: usize = if cfg!(loom) { 64 << 10 } else { 16 << 10 };

/// Returns the size of a slab for blocks of this size. The slab holds at least eight blocks. With more blocks, less is wasted at the end of
/// the slab. With fewer, the slab becomes empty sooner, so that another class can use it.
pub(crate) const fn slab_bytes(block_bytes: usize) -> usize {
    match block_bytes {
        ..=1024 => MIN_SLAB_BYTES,
        1025..=4096 => 32 << 10,
        4097..=8192 => 64 << 10,
        8193..=16384 => 128 << 10,
        _ => 256 << 10,
    }
}

/// The page size, in bytes. Set once, before there are slabs; 0 until then.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sets the page size of the running kernel. No slab is smaller than a page.
pub(crate) fn set_page_bytes(bytes: usize) {
    PAGE_BYTES.store(bytes, Ordering::Relaxed);
}

const FINE_BYTES: usize = if cfg!(loom) { 512 } else { 16 };
const FINE_CLASSES: usize = 8;
const FINE_MAX_BYTES: usize = FINE_BYTES * FINE_CLASSES;
pub(crate) const PER_DOUBLING: usize = 8;

/// Precomputed properties of a class.
#[derive(Clone, Copy)]
struct Facts {
    block_bytes: u32,
    /// 2^64 / `block_bytes`, rounded up, so that a multiplication replaces the division.
    reciprocal: u64,
    slab_bytes: u32,
    /// The most blocks of this class that a thread caches.
    capacity: u8,
    /// The index of this class's first place among the [`PLACES`] of a thread cache.
    first_place: u16,
}

/// The limits of a thread cache for one class: a number of bytes, then the minimum and the maximum number of blocks.
const CACHED: (usize, usize, usize) = if cfg!(loom) { (64, 2, 2) } else { (128 << 10, 8, 64) };

/// The length of tables that are indexed by class: a power of two, so that no index needs a bounds check.
pub(crate) const TABLE: usize = COUNT.next_power_of_two();

static FACTS: [Facts; TABLE] = facts();

/// The number of places for blocks in a thread cache, also a power of two.
pub(crate) const PLACES: usize = {
    let last = facts()[COUNT - 1];
    (last.first_place as usize + last.capacity as usize).next_power_of_two()
};

const fn facts() -> [Facts; TABLE] {
    let none = Facts { block_bytes: 0, reciprocal: 0, slab_bytes: 0, capacity: 0, first_place: 0 };
    let mut all = [none; TABLE];
    let (mut number, mut place) = (1, 0);
    while number < COUNT {
        let bytes = bytes_of(number);
        let capacity = min(max(CACHED.0 / bytes, CACHED.1), CACHED.2);
        all[number] = Facts {
            block_bytes: bytes as u32,
            reciprocal: (1_u128 << 64).div_ceil(bytes as u128) as u64,
            slab_bytes: slab_bytes(bytes) as u32,
            capacity: capacity as u8,
            first_place: place as u16,
        };
        place += capacity;
        number += 1;
    }
    all
}

const fn min(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// Returns the number of the class that serves `size` bytes, from 1 to [`MAX_BYTES`].
#[inline(always)]
const fn number(size: usize) -> usize {
    if size <= FINE_MAX_BYTES {
        size.div_ceil(FINE_BYTES)
    } else {
        let log2 = (size - 1).ilog2() as usize;
        let step = (size - 1 - (1 << log2)) >> (log2 - PER_DOUBLING.ilog2() as usize);
        FINE_CLASSES + 1 + (log2 - FINE_MAX_BYTES.ilog2() as usize) * PER_DOUBLING + step
    }
}

const fn bytes_of(number: usize) -> usize {
    if number <= FINE_CLASSES {
        number * FINE_BYTES
    } else {
        let above = number - FINE_CLASSES - 1;
        let base = FINE_MAX_BYTES << (above / PER_DOUBLING);
        base + (above % PER_DOUBLING + 1) * (base / PER_DOUBLING)
    }
}

/// The results of [`number`], indexed by `(size - 1) / FINE_BYTES`. A lookup is faster than the computation.
static NUMBERS: [u8; MAX_BYTES / FINE_BYTES] = {
    let mut numbers = [0; MAX_BYTES / FINE_BYTES];
    let mut steps = 0;
    while steps < numbers.len() {
        numbers[steps] = number((steps + 1) * FINE_BYTES) as u8;
        steps += 1;
    }
    numbers
};

impl Class {
    /// Returns the class of a common request: at least one byte, with at most the alignment that `malloc` guarantees. `None` for all other
    /// requests, and for sizes above [`MAX_BYTES`].
    #[inline(always)]
    pub(crate) fn of_usual(size: usize, align: usize) -> Option<Self> {
        // The size may come from C, and be any number. Size 0 wraps to an index beyond the table.
        let steps = size.wrapping_sub(1) / FINE_BYTES;
        if align <= FINE_BYTES { NUMBERS.get(steps).map(|&number| Self(number)) } else { None }
    }

    /// Returns the class of a request of at most [`MAX_BYTES`] and [`MAX_ALIGN`]. Its blocks have at least the requested size and
    /// alignment.
    #[inline(always)]
    pub(crate) const fn of(size: usize, align: usize) -> Self {
        if align <= FINE_BYTES {
            return Self(number(if size == 0 { 1 } else { size }) as u8);
        }
        Self::aligned(size, align)
    }

    /// Returns the smallest class of at least `size` bytes whose block size is a multiple of `align`. A block is aligned to each power of
    /// two that divides its size.
    const fn aligned(size: usize, align: usize) -> Self {
        let mut class = number(max(size, align));
        while bytes_of(class) & (align - 1) != 0 {
            class += 1;
        }
        Self(class as u8)
    }

    /// Returns the class with this number; `None` for 0.
    #[inline(always)]
    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    #[inline(always)]
    pub(crate) const fn number(self) -> u8 {
        self.0
    }

    #[inline(always)]
    fn facts(self) -> &'static Facts {
        &FACTS[self.index()]
    }

    /// Returns the index of the class in tables of [`TABLE`] entries.
    #[inline(always)]
    pub(crate) fn index(self) -> usize {
        self.0 as usize % TABLE
    }

    /// Returns the size of the class's blocks, in bytes.
    #[inline(always)]
    pub(crate) fn block_bytes(self) -> usize {
        self.facts().block_bytes as usize
    }

    /// Returns the size of the class's slabs, in bytes.
    #[inline(always)]
    pub(crate) fn slab_bytes(self) -> usize {
        let bytes = self.facts().slab_bytes as usize;
        // x86-64 has pages of 4 KiB. Debug builds can imitate larger ones.
        if cfg!(all(target_arch = "x86_64", not(debug_assertions))) {
            return bytes;
        }
        bytes.max(PAGE_BYTES.load(Ordering::Relaxed))
    }

    /// Returns the number of blocks in a slab of this class.
    pub(crate) fn blocks(self) -> usize {
        (self.slab_bytes() / self.block_bytes()).min(MAX_BLOCKS)
    }

    /// Returns the number of words in a slab's bitmap.
    pub(crate) fn words(self) -> usize {
        self.blocks().div_ceil(WORD_BITS)
    }

    /// Returns the value of word `word` of a slab's bitmap in which the bits of all blocks are set.
    pub(crate) fn full_word(self, word: usize) -> u64 {
        let left = self.blocks() - word * WORD_BITS;
        if left >= WORD_BITS { u64::MAX } else { (1 << left) - 1 }
    }

    /// Returns the size of the smallest group of neighbouring blocks that fills whole cache lines, as a number of blocks. Groups begin at
    /// multiples of this number. It is 1 for blocks longer than two lines, which share lines only at their ends.
    pub(crate) fn blocks_by_lines(self) -> usize {
        const LINE_BYTES: usize = 64;
        let share_lines = tuning::fetches_lines() != 0 && self.block_bytes() <= 2 * LINE_BYTES;
        if share_lines { (LINE_BYTES >> self.block_bytes().trailing_zeros()).max(1) } else { 1 }
    }

    /// Returns the index of the block that begins at byte `offset` of its slab.
    pub(crate) fn block_at(self, offset: usize) -> usize {
        ((offset as u128 * self.facts().reciprocal as u128) >> 64) as usize
    }

    /// Returns whether byte `offset` of a slab is the first of a block. (Past the last block, the answer may be `true` for a block that
    /// does not fit.)
    #[cfg(any(feature = "c-api", test))]
    #[inline(always)]
    pub(crate) fn begins_block(self, offset: usize) -> bool {
        // Lemire, Kaser and Kurz, "Faster remainder by direct computation" (2019). The low 64 bits of the product are the remainder, in
        // units of the reciprocal.
        let reciprocal = self.facts().reciprocal;
        (offset as u64).wrapping_mul(reciprocal) < reciprocal
    }

    /// Returns the maximum number of blocks of this class that a thread caches.
    #[inline(always)]
    pub(crate) fn capacity(self) -> usize {
        self.facts().capacity as usize
    }

    /// Returns the index of the class's first place among [`PLACES`].
    #[inline(always)]
    pub(crate) fn first_place(self) -> usize {
        self.facts().first_place as usize
    }

    /// Returns all classes, the smallest first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (1..COUNT).map(|number| Self(number as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a class served a request with a block that is too short, the program would overwrite the next block. Misaligned blocks would
    /// violate the requested alignment.
    #[test]
    fn block_meets_size_and_alignment_and_wastes_little() {
        for size in 1..=MAX_BYTES {
            let class = Class::of(size, 1);
            assert!(class.block_bytes() >= size, "{size}");
            assert_eq!(Class::of_usual(size, 16), Some(class), "{size}");
            let smaller = Class::from_number(class.number() - 1).map_or(0, Class::block_bytes);
            assert!(smaller < size, "{size} fits a smaller class");
            assert!(class.block_bytes() - size <= (size / 8).max(15), "{size} in {}", class.block_bytes());
        }
        assert_eq!(
            [Class::of_usual(0, 1), Class::of_usual(MAX_BYTES + 1, 1), Class::of_usual(1, 2 * FINE_BYTES)],
            [None; 3]
        );
        assert!((usize::MAX - 2 * MAX_BYTES..=usize::MAX).all(|size| Class::of_usual(size, 1).is_none()));
        for align in (0..=MAX_ALIGN.ilog2()).map(|log2| 1 << log2) {
            for size in [1, 15, 16, 17, 100, 129, 1000, 1025, 4097, 20_000, MAX_BYTES - 1, MAX_BYTES] {
                let class = Class::of(size, align);
                assert!(class.block_bytes() >= size && class.block_bytes().is_multiple_of(align), "{size} at {align}");
            }
        }
    }

    #[test]
    fn classes_ascend_and_their_cache_places_do_not_overlap() {
        let all: Vec<_> = Class::all().collect();
        assert_eq!(all.len(), COUNT - 1);
        assert_eq!(all.last().map(|class| class.block_bytes()), Some(MAX_BYTES));
        for pair in all.windows(2) {
            assert!(pair[0].block_bytes() < pair[1].block_bytes());
            assert_eq!(pair[0].first_place() + pair[0].capacity(), pair[1].first_place());
        }
        for class in all {
            assert_eq!(Class::of(class.block_bytes(), 1), class);
            assert!(class.blocks() >= 8 && class.blocks() * class.block_bytes() <= class.slab_bytes());
            let bits: u32 = (0..class.words()).map(|word| class.full_word(word).count_ones()).sum();
            assert_eq!(bits as usize, class.blocks());
            for block in 0..class.blocks() {
                assert_eq!(class.block_at(block * class.block_bytes()), block);
            }
            for offset in 0..class.slab_bytes().max(64 << 10) {
                assert_eq!(
                    class.begins_block(offset),
                    offset.is_multiple_of(class.block_bytes()),
                    "{offset}, {class:?}"
                );
            }
        }
    }
}
