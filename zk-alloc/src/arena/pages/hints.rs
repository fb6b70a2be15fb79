//! Hints where to look: a set of indices. A few loads find the lowest one, however large the set is.
//!
//! A hint says that something *may* be there, and a thread that follows it has to check. A superfluous hint costs a look. Memory without a
//! hint is not found until the next hint. So a thread that clears a hint looks once more afterwards. The thread that makes a place worth a
//! hint sets the hint after that. Whichever of the two is last, the hint is set in the end.
#![allow(unsafe_code, reason = "lays atomics over zeroed memory")]

#[cfg(not(loom))]
use crate::arena::pages::bitmap::align_up;
use crate::arena::pages::bitmap::{WORD_BITS, low_bits};
use crate::os::Errno;
#[cfg(not(loom))]
use crate::os::{self, HUGE_PAGE_BYTES, Mapping};
use crate::sync::{AtomicU64, Ordering};

/// Each level has a bit for each word of the level below that is not zero. With three levels, a look at a few words covers a quarter of a
/// million indices.
const LEVELS: usize = 3;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HintSet {
    /// The words, level by level. Those of several sets are interleaved, so that small sets share pages.
    words: &'static [AtomicU64],
    levels: Levels,
    number: usize,
    sets: usize,
}

/// Where each level of a set begins, counted in words of that set, and where the last one ends.
#[derive(Clone, Copy, Debug)]
struct Levels([usize; LEVELS + 1]);

impl Levels {
    const fn new(len: usize) -> Self {
        let mut begins = [0; LEVELS + 1];
        let (mut depth, mut below) = (0, len);
        while depth < LEVELS {
            below = below.div_ceil(WORD_BITS);
            below += (below == 0) as usize;
            begins[depth + 1] = begins[depth] + below;
            depth += 1;
        }
        Self(begins)
    }

    const fn words(self) -> usize {
        self.0[LEVELS]
    }

    const fn words_at(self, depth: usize) -> usize {
        self.0[depth + 1] - self.0[depth]
    }
}

/// Words of all levels for `len` indices.
pub(crate) const fn words_for(len: usize) -> usize {
    Levels::new(len).words()
}

impl HintSet {
    /// An empty set of indices below `len`, in [`words_for`] zeroed words.
    pub(crate) const fn new(words: &'static [AtomicU64], len: usize) -> Self {
        Self { words, levels: Levels::new(len), number: 0, sets: 1 }
    }

    #[inline]
    fn word(self, depth: usize, index: usize) -> &'static AtomicU64 {
        #[cfg(all(test, not(loom)))]
        crate::arena::pages::bitmap::steps::count();
        &self.words[(self.levels.0[depth] + index) * self.sets + self.number]
    }

    /// Adds an index.
    pub(crate) fn set(self, index: usize) {
        self.set_from(0, index);
    }

    /// Sets bit `index` of level `depth`, and its bits in the levels above.
    fn set_from(self, depth: usize, mut index: usize) {
        // All levels, even if the lowest has the bit: the thread that set it may not have reached the levels above yet.
        for depth in depth..LEVELS {
            let (word, mask) = (self.word(depth, index / WORD_BITS), 1 << (index % WORD_BITS));
            // The bit is nearly always set already. A load keeps the cache line shared.
            if word.load(Ordering::SeqCst) & mask == 0 {
                word.fetch_or(mask, Ordering::SeqCst);
            }
            index /= WORD_BITS;
        }
    }

    /// Adds the indices of a mask, of which bit 0 is index `64 * word`.
    pub(crate) fn set_all(self, word: usize, mask: u64) {
        let lowest = self.word(0, word);
        if lowest.load(Ordering::SeqCst) & mask != mask {
            lowest.fetch_or(mask, Ordering::SeqCst);
        }
        self.set_from(1, word);
    }

    /// Removes an index. The caller then looks whether it has to be set again.
    pub(crate) fn clear(self, index: usize) {
        self.clear_all(index / WORD_BITS, 1 << (index % WORD_BITS));
    }

    /// As [`clear`](Self::clear), for the indices of a mask as in [`set_all`](Self::set_all).
    pub(crate) fn clear_all(self, word: usize, mask: u64) {
        let (mut index, mut mask) = (word, mask);
        for depth in 0..LEVELS {
            let before = self.word(depth, index).fetch_and(!mask, Ordering::SeqCst);
            // Another thread may have set a bit of the word below since, and found this bit still set.
            if depth > 0 {
                let below = index * WORD_BITS + mask.trailing_zeros() as usize;
                if self.word(depth - 1, below).load(Ordering::SeqCst) != 0 {
                    return self.set_from(depth, below);
                }
            }
            if before & !mask != 0 {
                return;
            }
            (index, mask) = (index / WORD_BITS, 1 << (index % WORD_BITS));
        }
    }

    /// Whether it has no index.
    #[cfg(not(loom))]
    pub(crate) fn is_empty(self) -> bool {
        (0..self.levels.words_at(LEVELS - 1)).all(|word| self.word(LEVELS - 1, word).load(Ordering::SeqCst) == 0)
    }

    /// The lowest index at or above `from`.
    pub(crate) fn first(self, from: usize) -> Option<usize> {
        let tops = self.levels.words_at(LEVELS - 1);
        self.first_at(0, from).or_else(|| {
            // The word of `from` has no more. The search goes up until a later word has a bit, and down again.
            let mut at = from / WORD_BITS + 1;
            for depth in 1..LEVELS {
                if let Some(found) = self.first_at(depth, at) {
                    return self.descend(depth, found);
                }
                at = at / WORD_BITS + 1;
            }
            // The highest level has no summary.
            (at..tops).find_map(|word| {
                let bits = self.word(LEVELS - 1, word).load(Ordering::SeqCst);
                (bits != 0)
                    .then(|| self.descend(LEVELS - 1, word * WORD_BITS + bits.trailing_zeros() as usize))
                    .flatten()
            })
        })
    }

    /// The highest index below `end`.
    pub(crate) fn last(self, end: usize) -> Option<usize> {
        let mut end = end;
        for depth in 0..LEVELS {
            if let Some(found) = self.last_at(depth, end) {
                return self.descend_to_last(depth, found);
            }
            // The word before has a bit in the level above.
            end = end.checked_sub(1)? / WORD_BITS;
        }
        // The highest level has no summary.
        (0..end).rev().find_map(|word| {
            let found = self.last_at(LEVELS - 1, (word + 1) * WORD_BITS)?;
            self.descend_to_last(LEVELS - 1, found)
        })
    }

    /// The highest set bit below `end`, within the word that holds the bit before `end`.
    fn last_at(self, depth: usize, end: usize) -> Option<usize> {
        let word = end.checked_sub(1)? / WORD_BITS;
        let bits = self.word(depth, word).load(Ordering::SeqCst) & low_bits(end - word * WORD_BITS);
        (bits != 0).then(|| word * WORD_BITS + bits.ilog2() as usize)
    }

    /// The highest index under bit `index` of level `depth`. If another thread removed it, the next index before it.
    fn descend_to_last(self, depth: usize, mut index: usize) -> Option<usize> {
        for below in (0..depth).rev() {
            match self.last_at(below, (index + 1) * WORD_BITS) {
                Some(found) => index = found,
                None => return self.last(index * WORD_BITS.pow(below as u32 + 1)),
            }
        }
        Some(index)
    }

    /// The lowest set bit at or above `from`, within the word of `from`.
    fn first_at(self, depth: usize, from: usize) -> Option<usize> {
        if from / WORD_BITS >= self.levels.words_at(depth) {
            return None;
        }
        let bits = self.word(depth, from / WORD_BITS).load(Ordering::SeqCst) & (u64::MAX << (from % WORD_BITS));
        (bits != 0).then(|| from / WORD_BITS * WORD_BITS + bits.trailing_zeros() as usize)
    }

    /// The lowest index under bit `index` of level `depth`. If another thread removed it, the next index after it.
    fn descend(self, depth: usize, mut index: usize) -> Option<usize> {
        for below in (0..depth).rev() {
            match self.first_at(below, index * WORD_BITS) {
                Some(found) => index = found,
                None => return self.first((index + 1) * WORD_BITS.pow(below as u32 + 1)),
            }
        }
        Some(index)
    }
}

/// Several sets of the same length, in one table.
#[derive(Debug)]
pub(crate) struct HintSets<const SETS: usize> {
    words: Table<AtomicU64>,
    levels: Levels,
}

impl<const SETS: usize> HintSets<SETS> {
    /// Sets of indices below `len`.
    ///
    /// # Errors
    /// The system's error, if it grants no memory.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        Ok(Self { words: Table::new(SETS * words_for(len))?, levels: Levels::new(len) })
    }

    #[inline]
    pub(crate) fn set(&self, number: usize) -> HintSet {
        HintSet { words: self.words.all(), levels: self.levels, number, sets: SETS }
    }
}

// Tables of atomics for metadata: all zeroes at first, and faulted in as they are touched.

/// An atomic integer, which may be laid over zeroed memory.
///
/// # Safety
/// All-zero bytes are a valid value, which needs no drop, and all changes to it are atomic.
pub(crate) unsafe trait Zeroed: Sync + 'static {
    #[cfg(loom)]
    fn zero() -> Self;
}

macro_rules! zeroed {
    ($($atomic:ty),*) => {$(
        // SAFETY: an integer that is only changed atomically.
        unsafe impl Zeroed for $atomic {
            #[cfg(loom)]
            fn zero() -> Self {
                Self::new(0)
            }
        }
    )*};
}
zeroed!(crate::sync::AtomicU8, crate::sync::AtomicU64);
#[cfg(feature = "c-api")]
zeroed!(std::sync::atomic::AtomicU32);

/// A table. Once published, it lasts as long as the process, because threads may read it at any time.
#[derive(Debug)]
pub(crate) struct Table<T: Zeroed> {
    entries: &'static [T],
    #[cfg(not(loom))]
    mapping: Mapping,
}

impl<T: Zeroed> Table<T> {
    /// A table of `len` zeroes.
    ///
    /// # Errors
    /// The system's error, if it grants no memory.
    #[cfg(not(loom))]
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        let mapping = os::map_zeroed(align_up((len * size_of::<T>()).max(1), HUGE_PAGE_BYTES))?.for_table();
        // SAFETY: the mapping is long enough, aligned to a page, zeroed, and reached through nothing else. It is unmapped
        // when the table is dropped, which happens only before anybody else saw it (`Arena::build` fails).
        let entries = unsafe { std::slice::from_raw_parts(mapping.start().cast::<T>().as_ptr(), len) };
        Ok(Self { entries, mapping })
    }

    /// As [`new`](Self::new), but only reserves address space: [`commit`](Self::commit) makes entries usable.
    ///
    /// # Errors
    /// The system's error, if it grants no address space.
    #[cfg(not(loom))]
    pub(crate) fn reserve(len: usize) -> Result<Self, Errno> {
        let mapping = os::reserve(align_up((len * size_of::<T>()).max(1), HUGE_PAGE_BYTES))?.for_table();
        // SAFETY: as in `new`; no entry is read before it is committed, and it is zero then.
        let entries = unsafe { std::slice::from_raw_parts(mapping.start().cast::<T>().as_ptr(), len) };
        Ok(Self { entries, mapping })
    }

    /// Makes entries `from..to` usable. Entries that are usable already keep their values.
    ///
    /// # Errors
    /// The system's error, if it grants no memory.
    #[cfg(not(loom))]
    pub(crate) fn commit(&self, from: usize, to: usize) -> Result<(), Errno> {
        let page = os::page_bytes();
        let start = from * size_of::<T>() / page * page;
        let end = align_up(to * size_of::<T>(), page).min(self.mapping.len());
        // SAFETY: within the reservation.
        unsafe { os::commit(self.mapping.start().add(start).as_ptr(), end - start) }
    }

    #[cfg(loom)]
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        let entries: Vec<T> = (0..len).map(|_| T::zero()).collect();
        Ok(Self { entries: Box::leak(entries.into_boxed_slice()) })
    }

    #[cfg(loom)]
    pub(crate) fn reserve(len: usize) -> Result<Self, Errno> {
        Self::new(len)
    }

    #[cfg(loom)]
    pub(crate) fn commit(&self, _from: usize, _to: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// All entries. Of a [reserved](Self::reserve) table, only those that were committed may be touched.
    #[inline(always)]
    pub(crate) fn all(&self) -> &'static [T] {
        self.entries
    }
}

/// A model makes thousands of tables. No reference into a table is left when it is dropped.
#[cfg(loom)]
impl<T: Zeroed> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, and dropped together with the structure that held the table.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self.entries).cast_mut()) });
    }
}
