//! A bitmap whose runs of bits are claimed and released without a lock, and sets of hints that show where to search a bitmap.
//!
//! Setting a bit takes ownership of it, and only the owner clears it. Ownership needs no other synchronisation, and a thread may be
//! interrupted, overtaken or cut off by a fork at any instruction. A thread that is cut off may leave bits set, which wastes memory, but no
//! memory is ever handed out twice.
#![allow(unsafe_code, reason = "lays atomics over zeroed memory")]

use crate::os::{self, AllZero, Errno, Mapping};
use crate::sync::{AtomicU8, AtomicU64, Ordering};

pub(crate) const WORD_BITS: usize = u64::BITS as usize;

/// A fixed number of bits over borrowed words, all clear at first.
#[derive(Clone, Copy)]
pub(crate) struct Bitmap<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Bitmap<'a> {
    pub(crate) const fn new(words: &'a [AtomicU64]) -> Self {
        Self { words }
    }

    pub(crate) const fn len(self) -> usize {
        self.words.len() * WORD_BITS
    }

    /// Returns the number of words that `bits` bits need.
    pub(crate) const fn words_for(bits: usize) -> usize {
        bits.div_ceil(WORD_BITS)
    }

    /// Claims exactly `[start, start + n)`, or nothing. On failure, returns a bit that was already set, or the bitmap's length if the range
    /// extends beyond it.
    pub(crate) fn try_claim(self, start: usize, n: usize) -> Result<(), usize> {
        if start + n > self.len() {
            return Err(self.len());
        }
        for (word, mask) in masks(start, n) {
            // SeqCst includes Acquire, which pairs with the Release of `release`: the last owner's accesses to the memory happen before
            // those of the new owner. `release` explains why SeqCst is needed.
            let before = self.words[word].fetch_or(mask, Ordering::SeqCst);
            let taken = before & mask;
            if taken != 0 {
                // Undo the claim: clear the bits that it set in this word, and all its bits in the words before.
                self.words[word].fetch_and(!(mask & !before), Ordering::SeqCst);
                let whole_words_end = (word * WORD_BITS).max(start);
                self.release(start, whole_words_end - start);
                return Err(word * WORD_BITS + highest(taken));
            }
        }
        Ok(())
    }

    /// Frees `[start, start + n)`, which the caller owns.
    pub(crate) fn release(self, start: usize, n: usize) {
        for (word, mask) in masks(start, n) {
            // SeqCst includes Release. It also orders two threads: one frees a run, then checks whether its hint is set; the other clears
            // that hint, then checks whether anything is free. At least one of them must see the other's change (see `Runs`).
            let before = self.words[word].fetch_and(!mask, Ordering::SeqCst);
            debug_assert_eq!(before & mask, mask, "released a bit that nobody owned");
        }
    }

    /// Sets `[start, start + n)` and returns how many of these bits were clear.
    pub(crate) fn set(self, start: usize, n: usize) -> usize {
        let mut turned = 0;
        for (word, mask) in masks(start, n) {
            // Usually all bits are set already. Loading first keeps the cache line shared.
            if self.words[word].load(Ordering::Relaxed) & mask != mask {
                let before = self.words[word].fetch_or(mask, Ordering::Relaxed);
                turned += (mask & !before).count_ones() as usize;
            }
        }
        turned
    }

    /// Clears `[start, start + n)` and returns how many of these bits were set.
    pub(crate) fn clear(self, start: usize, n: usize) -> usize {
        masks(start, n)
            .map(|(word, mask)| (self.words[word].fetch_and(!mask, Ordering::Relaxed) & mask).count_ones() as usize)
            .sum()
    }

    /// Returns the runs of set bits within `[start, start + n)`, as `(start, length)`, in ascending order.
    pub(crate) fn set_runs(self, start: usize, n: usize) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        let end = start + n;
        let mut at = start;
        std::iter::from_fn(move || {
            let first = self.next_set(at, end)?;
            at = self.next_clear_within(first, end).unwrap_or(end);
            Some((first, at - first))
        })
    }

    /// Whether a bit is set; `false` beyond the last bit.
    #[inline(always)]
    pub(crate) fn has(self, index: usize) -> bool {
        let word = self.words.get(index / WORD_BITS);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (index % WORD_BITS) & 1 == 1)
    }

    /// Returns the bits of `[start, start + n)`, which are in one word.
    pub(crate) fn bits(self, start: usize, n: usize) -> u64 {
        self.words[start / WORD_BITS].load(Ordering::Relaxed) >> (start % WORD_BITS) & low_bits(n)
    }

    /// Counts the set bits in `[start, start + n)`.
    pub(crate) fn count(self, start: usize, n: usize) -> usize {
        masks(start, n)
            .map(|(word, mask)| (self.words[word].load(Ordering::Relaxed) & mask).count_ones() as usize)
            .sum()
    }

    /// Finds the lowest run of `n` clear bits that starts at an index `i`, not below `from`, with `(i + skew) % align == 0`. `align` is a
    /// power of two. Only for loom models without an index of free runs.
    #[cfg(loom)]
    pub(crate) fn find_clear_run(self, from: usize, n: usize, align: usize, skew: usize) -> Option<usize> {
        let mut at = from;
        loop {
            at = self.next_clear_within(at, self.len())?;
            at = (at + skew).next_multiple_of(align) - skew;
            if at + n > self.len() {
                return None;
            }
            match self.last_set(at, n) {
                None => return Some(at),
                Some(blocker) => at = blocker + 1,
            }
        }
    }

    /// Finds the lowest run of `n` clear bits at or above `at` that begins at a multiple of `align`, in the first `max_words` words from
    /// `at` on. `align` is a power of two, at least `n` and at most the bits of a word. Checks all aligned places of a word together.
    pub(crate) fn next_aligned(self, at: usize, n: usize, align: usize, max_words: usize) -> Option<usize> {
        let places = u64::MAX / low_bits(align);
        let mut below = low_bits(at % WORD_BITS);
        self.words.iter().enumerate().skip(at / WORD_BITS).take(max_words).find_map(|(word, bits)| {
            #[cfg(all(test, not(loom)))]
            steps::count();
            let mut begins = !(bits.load(Ordering::SeqCst) | below);
            below = 0;
            // For each bit: whether `len` clear bits begin there.
            let mut len = 1;
            while len < n {
                let more = len.min(n - len);
                begins &= begins >> more;
                len += more;
            }
            begins &= places;
            (begins != 0).then(|| word * WORD_BITS + begins.trailing_zeros() as usize)
        })
    }

    /// Returns the lowest clear bit in `[at, end)`.
    pub(crate) fn next_clear_within(self, at: usize, end: usize) -> Option<usize> {
        masks(at, end.saturating_sub(at)).find_map(|(word, mask)| {
            let clear = !self.words[word].load(Ordering::SeqCst) & mask;
            (clear != 0).then(|| word * WORD_BITS + clear.trailing_zeros() as usize)
        })
    }

    /// Returns the start of the run of clear bits right below `at`, or `lowest` if the run begins further below.
    pub(crate) fn end_of_set(self, lowest: usize, at: usize) -> usize {
        self.last_set(lowest, at - lowest).map_or(lowest, |set| set + 1)
    }

    /// Returns the bits of a word at which a run of clear bits begins: after a set bit, or at the start of the bitmap.
    pub(crate) fn begins_of_clear(self, word: usize) -> u64 {
        let bits = self.words[word].load(Ordering::SeqCst);
        let before = if word == 0 { 1 } else { self.words[word - 1].load(Ordering::SeqCst) >> (WORD_BITS - 1) };
        !bits & (bits << 1 | before)
    }

    /// Finds the highest run of bits in `[from, end)` that are set here and clear in `taken`, as `(start, length)`. Returns only the
    /// highest `max` bits of a longer run.
    pub(crate) fn last_run_without(self, taken: Self, from: usize, end: usize, max: usize) -> Option<(usize, usize)> {
        let left = |word: usize| {
            #[cfg(all(test, not(loom)))]
            steps::count();
            let bits = self.words[word].load(Ordering::Relaxed) & !taken.words[word].load(Ordering::Relaxed);
            let within = |bit: usize| low_bits(bit.saturating_sub(word * WORD_BITS).min(WORD_BITS));
            bits & within(end) & !within(from)
        };
        let first = from / WORD_BITS;
        // Each word is read once, because a second read may see a changed word.
        let mut words = (first..end.div_ceil(WORD_BITS)).rev().map(|word| (word, left(word)));
        let (mut word, bits) = words.find(|&(_, bits)| bits != 0)?;
        let top = highest(bits) + 1;
        let mut run = (bits << (WORD_BITS - top)).leading_ones() as usize;
        let (end, mut reaches_down) = (word * WORD_BITS + top, run == top);
        while reaches_down && word > first && run < max {
            word -= 1;
            let more = left(word).leading_ones() as usize;
            run += more;
            reaches_down = more == WORD_BITS;
        }
        let run = run.min(max);
        Some((end - run, run))
    }

    /// Returns the lowest set bit in `[at, end)`.
    pub(crate) fn next_set(self, at: usize, end: usize) -> Option<usize> {
        masks(at, end.saturating_sub(at)).find_map(|(word, mask)| {
            let set = self.words[word].load(Ordering::SeqCst) & mask;
            (set != 0).then(|| word * WORD_BITS + set.trailing_zeros() as usize)
        })
    }

    /// Returns the highest set bit in `[start, start + n)`. The search for a run continues above that bit, so each word is read about once.
    fn last_set(self, start: usize, n: usize) -> Option<usize> {
        masks(start, n).rev().find_map(|(word, mask)| {
            let set = self.words[word].load(Ordering::SeqCst) & mask;
            (set != 0).then(|| word * WORD_BITS + highest(set))
        })
    }
}

/// Returns the words that `[start, start + n)` touches, each with a mask of its bits in that range.
pub(crate) fn masks(start: usize, n: usize) -> impl DoubleEndedIterator<Item = (usize, u64)> {
    let end = start + n;
    let words = if n == 0 { 0..0 } else { start / WORD_BITS..(end - 1) / WORD_BITS + 1 };
    words.map(move |word| {
        let first = start.max(word * WORD_BITS) - word * WORD_BITS;
        let last = end.min((word + 1) * WORD_BITS) - word * WORD_BITS;
        #[cfg(all(test, not(loom)))]
        steps::count();
        (word, low_bits(last) & !low_bits(first))
    })
}

/// Returns a word with its lowest `n` bits set; `n` is at most 64.
pub(crate) const fn low_bits(n: usize) -> u64 {
    if n == WORD_BITS { u64::MAX } else { (1 << n) - 1 }
}

/// Iterates over the indices of a word's set bits, in ascending order.
pub(crate) fn each_bit(word: u64) -> impl Iterator<Item = usize> {
    let mut left = word;
    std::iter::from_fn(move || {
        let bit = (left != 0).then(|| left.trailing_zeros() as usize);
        left &= left.wrapping_sub(1);
        bit
    })
}

/// Returns the runs of set bits in a word, as `(start, length)`, in ascending order.
pub(crate) fn each_run(word: u64) -> impl Iterator<Item = (usize, usize)> {
    let mut left = word;
    std::iter::from_fn(move || {
        let first = (left != 0).then(|| left.trailing_zeros() as usize)?;
        let len = (left >> first).trailing_ones() as usize;
        left &= !low_bits(first + len);
        Some((first, len))
    })
}

const fn highest(bits: u64) -> usize {
    WORD_BITS - 1 - bits.leading_zeros() as usize
}

/// Counts the words of bitmaps and hint sets that a thread reads or writes, for tests of the cost of a search.
#[cfg(all(test, not(loom)))]
pub(crate) mod steps {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    pub(crate) fn count() {
        STEPS.set(STEPS.get() + 1);
    }

    /// Returns the number of steps of this thread since the last call.
    pub(crate) fn take() -> usize {
        STEPS.take()
    }
}

// Hints: a set of indices at which a search should look. A few loads find the lowest index, no matter how large the set is.
//
// A hint means that something *may* be there, and a thread that follows the hint has to check. A superfluous hint only costs a check. If a
// hint is missing, no search finds the memory until the hint is set again. So a thread that clears a hint checks the place once more
// afterwards, and a thread that frees memory at the place sets the hint afterwards. No matter which thread comes last, the hint is set at
// the end.

/// The number of levels. In each level above the lowest, a bit is set for each nonzero word of the level below. With three levels, one word
/// at the top covers a quarter of a million indices.
const LEVELS: usize = 3;

/// A set of hints.
#[derive(Clone, Copy)]
pub(crate) struct HintSet {
    /// The words, level by level. The words of several sets are interleaved, so small sets share pages.
    words: &'static [AtomicU64],
    levels: Levels,
    number: usize,
    sets: usize,
}

/// The index of the word at which each level of a set begins, and the end of the last level.
type Levels = [usize; LEVELS + 1];

const fn levels_for(len: usize) -> Levels {
    let mut begins = [0; LEVELS + 1];
    let (mut depth, mut below) = (0, len);
    while depth < LEVELS {
        below = below.div_ceil(WORD_BITS);
        below += (below == 0) as usize;
        begins[depth + 1] = begins[depth] + below;
        depth += 1;
    }
    begins
}

/// Returns the number of words that a set of indices below `len` needs for all its levels.
pub(crate) const fn words_for(len: usize) -> usize {
    levels_for(len)[LEVELS]
}

impl HintSet {
    /// Creates an empty set of indices below `len`, in [`words_for`] zeroed words.
    pub(crate) const fn new(words: &'static [AtomicU64], len: usize) -> Self {
        Self { words, levels: levels_for(len), number: 0, sets: 1 }
    }

    fn words_at(self, depth: usize) -> usize {
        self.levels[depth + 1] - self.levels[depth]
    }

    #[inline]
    fn word(self, depth: usize, index: usize) -> &'static AtomicU64 {
        #[cfg(all(test, not(loom)))]
        crate::arena::pages::bitmap::steps::count();
        &self.words[(self.levels[depth] + index) * self.sets + self.number]
    }

    /// Adds an index.
    pub(crate) fn set(self, index: usize) {
        self.set_from(0, index);
    }

    /// Sets bit `index` of level `depth`, and its bits in the levels above.
    fn set_from(self, depth: usize, mut index: usize) {
        // Visits all levels, even if the lowest already has the bit: the thread that set it may not have reached the levels above yet.
        for depth in depth..LEVELS {
            let (word, mask) = (self.word(depth, index / WORD_BITS), 1 << (index % WORD_BITS));
            // The bit is nearly always set already. Loading first keeps the cache line shared.
            if word.load(Ordering::SeqCst) & mask == 0 {
                word.fetch_or(mask, Ordering::SeqCst);
            }
            index /= WORD_BITS;
        }
    }

    /// Removes an index. The caller must then check whether to add it again.
    pub(crate) fn clear(self, mut index: usize) {
        for depth in 0..LEVELS {
            let mask = 1 << (index % WORD_BITS);
            let before = self.word(depth, index / WORD_BITS).fetch_and(!mask, Ordering::SeqCst);
            // Before this bit was cleared, another thread may have set a bit in the word below, and found this bit still set.
            if depth > 0 && self.word(depth - 1, index).load(Ordering::SeqCst) != 0 {
                return self.set_from(depth, index);
            }
            if before & !mask != 0 {
                return;
            }
            index /= WORD_BITS;
        }
    }

    /// Whether the set is empty.
    pub(crate) fn is_empty(self) -> bool {
        (0..self.words_at(LEVELS - 1)).all(|word| self.word(LEVELS - 1, word).load(Ordering::SeqCst) == 0)
    }

    /// Finds the lowest index at or above `from`.
    pub(crate) fn first(self, from: usize) -> Option<usize> {
        let mut at = from;
        for depth in 0..LEVELS {
            if let Some(found) = self.first_at(depth, at) {
                return self.descend(depth, found);
            }
            // The rest of the word has no index. The search goes up the levels until another word has a bit, and then down again.
            at = at / WORD_BITS + 1;
        }
        // No level summarises the highest one, so the search reads its words one by one.
        (at..self.words_at(LEVELS - 1)).find_map(|word| {
            let found = self.first_at(LEVELS - 1, word * WORD_BITS)?;
            self.descend(LEVELS - 1, found)
        })
    }

    /// Finds the lowest set bit at or above `from`, within the word of `from`.
    fn first_at(self, depth: usize, from: usize) -> Option<usize> {
        let (word, bit) = (from / WORD_BITS, from % WORD_BITS);
        if word >= self.words_at(depth) {
            return None;
        }
        let bits = self.word(depth, word).load(Ordering::SeqCst) & u64::MAX << bit;
        (bits != 0).then(|| word * WORD_BITS + bits.trailing_zeros() as usize)
    }

    /// Finds the lowest index under bit `index` of level `depth`, or the next higher one if another thread removed it.
    fn descend(self, depth: usize, mut index: usize) -> Option<usize> {
        for below in (0..depth).rev() {
            let Some(found) = self.first_at(below, index * WORD_BITS) else {
                return self.first((index + 1) * WORD_BITS.pow(below as u32 + 1));
            };
            index = found;
        }
        Some(index)
    }
}

/// Several sets of the same length, in one table.
pub(crate) struct HintSets<const SETS: usize> {
    words: Table<AtomicU64>,
    levels: Levels,
}

impl<const SETS: usize> HintSets<SETS> {
    /// Creates empty sets of indices below `len`.
    ///
    /// # Errors
    /// The system's error, if it refuses memory.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        Ok(Self { words: Table::new(SETS * words_for(len))?, levels: levels_for(len) })
    }

    #[inline]
    pub(crate) fn set(&self, number: usize) -> HintSet {
        HintSet { words: self.words.all(), levels: self.levels, number, sets: SETS }
    }
}

// Tables of atomics for metadata. They are all zeroes at first, and are faulted in as they are touched.

// SAFETY: all-zero bytes are a valid integer, and all changes to it are atomic.
unsafe impl AllZero for AtomicU8 {}
// SAFETY: as above.
unsafe impl AllZero for AtomicU64 {}
// SAFETY: as above.
#[cfg(feature = "c-api")]
unsafe impl AllZero for std::sync::atomic::AtomicU32 {}

/// A table of atomics. Once published, it lasts as long as the process, because threads may read it at any time.
pub(crate) struct Table<T: AllZero + Default> {
    entries: &'static [T],
    #[cfg(not(loom))]
    mapping: Mapping,
}

impl<T: AllZero + Default> Table<T> {
    /// Creates a table of `len` zeroes.
    ///
    /// # Errors
    /// The system's error, if it refuses memory.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        Self::over(len, os::map_zeroed)
    }

    /// Like [`new`](Self::new), but only reserves address space: [`commit`](Self::commit) makes entries usable.
    ///
    /// # Errors
    /// The system's error, if it refuses address space.
    pub(crate) fn reserve(len: usize) -> Result<Self, Errno> {
        Self::over(len, os::reserve)
    }

    #[cfg(not(loom))]
    fn over(len: usize, map: fn(usize) -> Result<Mapping, Errno>) -> Result<Self, Errno> {
        let mapping = map((len * size_of::<T>()).max(1).next_multiple_of(os::HUGE_PAGE_BYTES))?.for_table();
        // SAFETY: the mapping is long enough, aligned to a page, and accessed through nothing else. Entries are zero when they are first
        // read: the mapping is zeroed, or entries become zero when they are committed, and none is read before that. The mapping is removed
        // when the table is dropped. That happens only if `Arena::build` fails, before any other thread can access the table.
        let entries = unsafe { std::slice::from_raw_parts(mapping.start().cast::<T>().as_ptr(), len) };
        Ok(Self { entries, mapping })
    }

    /// Makes entries `from..to` usable. Entries that are usable already keep their values.
    ///
    /// # Errors
    /// The system's error, if it refuses memory.
    #[cfg(not(loom))]
    pub(crate) fn commit(&self, from: usize, to: usize) -> Result<(), Errno> {
        let page = os::page_bytes();
        let start = from * size_of::<T>() / page * page;
        let end = (to * size_of::<T>()).next_multiple_of(page).min(self.mapping.len());
        // SAFETY: within the reservation.
        unsafe { os::commit(self.mapping.start().add(start).as_ptr(), end - start) }
    }

    #[cfg(loom)]
    fn over(len: usize, _map: fn(usize) -> Result<Mapping, Errno>) -> Result<Self, Errno> {
        Ok(Self { entries: Box::leak((0..len).map(|_| T::default()).collect()) })
    }

    #[cfg(loom)]
    pub(crate) fn commit(&self, _from: usize, _to: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Returns all entries. In a [reserved](Self::reserve) table, only committed entries may be touched.
    #[inline(always)]
    pub(crate) fn all(&self) -> &'static [T] {
        self.entries
    }
}

/// Frees the entries, because a model creates thousands of tables. No reference into a table is left when the table is dropped.
#[cfg(loom)]
impl<T: AllZero + Default> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: leaked by `over`, and dropped together with the structure that contains the table, so no reference to the entries is
        // left.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self.entries).cast_mut()) });
    }
}
