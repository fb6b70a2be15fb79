//! A bitmap whose runs of bits are claimed and released without a lock.
//!
//! Turning a bit from 0 to 1 takes ownership of it, and only the owner turns it back. That is the whole protocol. It holds no matter which
//! thread is interrupted, cut off by a fork or overtaken, and at which instruction. Such a thread may leave bits set. That wastes memory,
//! but never hands it out twice.

use crate::arena::pages::hints::HintSet;
use crate::sync::{AtomicU64, Ordering};

pub(crate) const WORD_BITS: usize = u64::BITS as usize;

/// A fixed number of bits over borrowed words, all clear at first.
#[derive(Clone, Copy, Debug)]
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

    /// Words that hold `bits` bits.
    pub(crate) const fn words_for(bits: usize) -> usize {
        bits.div_ceil(WORD_BITS)
    }

    /// Claims exactly `[start, start + n)`, or nothing. Then it returns a bit that was already set, or the length if the range ends behind
    /// it.
    pub(crate) fn try_claim(self, start: usize, n: usize) -> Result<(), usize> {
        if start + n > self.len() {
            return Err(self.len());
        }
        for (word, mask) in masks(start, n) {
            // Acquire pairs with the Release of `release`: the last owner's use of the memory is over. `release` says why it is SeqCst.
            let before = self.words[word].fetch_or(mask, Ordering::SeqCst);
            let taken = before & mask;
            if taken != 0 {
                // Undo the claim: the bits that were turned in this word, and all claimed bits of the words before it.
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
            // SeqCst, which includes Release. One thread frees a run, then finds its hint set. Another thread clears that hint, then finds
            // nothing free. The two must not miss each other (see `free_run_index`).
            let before = self.words[word].fetch_and(!mask, Ordering::SeqCst);
            debug_assert_eq!(before & mask, mask, "released a bit that nobody owned");
        }
    }

    /// Sets `[start, start + n)` and returns how many of these bits were clear.
    pub(crate) fn set(self, start: usize, n: usize) -> usize {
        let mut turned = 0;
        for (word, mask) in masks(start, n) {
            // Most often all bits are set already. A load keeps the cache line shared.
            if self.words[word].load(Ordering::Relaxed) & mask != mask {
                let before = self.words[word].fetch_or(mask, Ordering::Relaxed);
                turned += (mask & !before).count_ones() as usize;
            }
        }
        turned
    }

    /// Clears `[start, start + n)`, whatever its bits are, and returns how many were set.
    pub(crate) fn clear(self, start: usize, n: usize) -> usize {
        masks(start, n)
            .map(|(word, mask)| (self.words[word].fetch_and(!mask, Ordering::Relaxed) & mask).count_ones() as usize)
            .sum()
    }

    /// The runs of set bits within `[start, start + n)`, as `(start, length)`, in ascending order.
    pub(crate) fn set_runs(self, start: usize, n: usize) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        let end = start + n;
        let mut at = start;
        std::iter::from_fn(move || {
            let first = self.next_set(at, end)?;
            at = self.next_clear_within(first, end).unwrap_or(end);
            Some((first, at - first))
        })
    }

    /// Whether a bit is set; `false` beyond the last.
    #[inline(always)]
    pub(crate) fn has(self, index: usize) -> bool {
        let word = self.words.get(index / WORD_BITS);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (index % WORD_BITS) & 1 == 1)
    }

    /// How many of the bits in `[start, start + n)` are set.
    pub(crate) fn count(self, start: usize, n: usize) -> usize {
        masks(start, n)
            .map(|(word, mask)| (self.words[word].load(Ordering::Relaxed) & mask).count_ones() as usize)
            .sum()
    }

    /// The lowest run of `n` clear bits that starts at an index `i`, not below `from`, with `(i + skew) % align == 0`. `align` is a
    /// power of two. Reads every word.
    pub(crate) fn find_clear_run(self, from: usize, n: usize, align: usize, skew: usize) -> Option<usize> {
        debug_assert!(n > 0 && align.is_power_of_two());
        if skew == 0 && (2..=WORD_BITS).contains(&align) && n <= align {
            return self.next_aligned(from, n, align, usize::MAX);
        }
        let mut at = from;
        loop {
            at = self.next_clear(at);
            at = align_up(at + skew, align) - skew;
            if at.checked_add(n).is_none_or(|end| end > self.len()) {
                return None;
            }
            match self.last_set(at, n) {
                None => return Some(at),
                Some(blocker) => at = blocker + 1,
            }
        }
    }

    /// The lowest run of `n` clear bits at or above `at` that begins at a multiple of `align`, in the first `max_words` words from there.
    /// `align` is a power of two, from `n` to the bits of a word, which has several such places. They are checked together.
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

    /// The lowest clear bit in `[at, end)`.
    pub(crate) fn next_clear_within(self, at: usize, end: usize) -> Option<usize> {
        masks(at, end.saturating_sub(at)).find_map(|(word, mask)| {
            let clear = !self.words[word].load(Ordering::SeqCst) & mask;
            (clear != 0).then(|| word * WORD_BITS + clear.trailing_zeros() as usize)
        })
    }

    /// Whether all bits of a word are clear.
    pub(crate) fn is_clear(self, word: usize) -> bool {
        self.words[word].load(Ordering::SeqCst) == 0
    }

    /// The start of the clear bits that lie right below `at`, but not below `lowest`.
    pub(crate) fn end_of_set(self, lowest: usize, at: usize) -> usize {
        self.last_set(lowest, at - lowest).map_or(lowest, |set| set + 1)
    }

    /// The bits of a word at which clear bits begin: behind a set bit, or at the start of the bitmap.
    pub(crate) fn begins_of_clear(self, word: usize) -> u64 {
        let bits = self.words[word].load(Ordering::SeqCst);
        let before = if word == 0 { 1 } else { self.words[word - 1].load(Ordering::SeqCst) >> (WORD_BITS - 1) };
        !bits & (bits << 1 | before)
    }

    /// The bits of `[start, start + n)` that are set here or in `other`.
    pub(crate) fn count_with(self, other: Self, start: usize, n: usize) -> usize {
        let either = |word: usize| self.words[word].load(Ordering::Relaxed) | other.words[word].load(Ordering::Relaxed);
        masks(start, n).map(|(word, mask)| (either(word) & mask).count_ones() as usize).sum()
    }

    /// The highest run of bits in `[from, end)` that are set here and clear in `taken`, as `(start, length)`. Of a longer run, only the
    /// highest `max` bits.
    pub(crate) fn last_run_without(self, taken: Self, from: usize, end: usize, max: usize) -> Option<(usize, usize)> {
        let left = |word: usize| {
            #[cfg(all(test, not(loom)))]
            steps::count();
            let bits = self.words[word].load(Ordering::Relaxed) & !taken.words[word].load(Ordering::Relaxed);
            let within = |bit: usize| low_bits(bit.saturating_sub(word * WORD_BITS).min(WORD_BITS));
            bits & within(end) & !within(from)
        };
        let first = from / WORD_BITS;
        // Each word is read once, because it may have changed at a second read.
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

    /// The lowest clear bit at or above `at`, or `len`.
    fn next_clear(self, at: usize) -> usize {
        self.next_clear_within(at, self.len()).unwrap_or(self.len())
    }

    /// The lowest set bit in `[at, end)`.
    pub(crate) fn next_set(self, at: usize, end: usize) -> Option<usize> {
        if at >= end {
            return None;
        }
        let words = &self.words[at / WORD_BITS..(end - 1) / WORD_BITS + 1];
        let mut unwanted = low_bits(at % WORD_BITS);
        words
            .iter()
            .enumerate()
            .find_map(|(word, bits)| {
                #[cfg(all(test, not(loom)))]
                steps::count();
                let set = bits.load(Ordering::SeqCst) & !unwanted;
                unwanted = 0;
                (set != 0).then(|| (at / WORD_BITS + word) * WORD_BITS + set.trailing_zeros() as usize)
            })
            .filter(|&set| set < end)
    }

    /// The highest set bit in `[start, start + n)`. The search for a run continues behind it, so that each word is read about once.
    fn last_set(self, start: usize, n: usize) -> Option<usize> {
        masks(start, n).rev().find_map(|(word, mask)| {
            let set = self.words[word].load(Ordering::SeqCst) & mask;
            (set != 0).then(|| word * WORD_BITS + highest(set))
        })
    }
}

/// The words that `[start, start + n)` touches, each with a mask of its bits in that range.
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

/// A word with its lowest `n` bits set; `n` is at most 64.
pub(crate) const fn low_bits(n: usize) -> u64 {
    if n == WORD_BITS { u64::MAX } else { (1 << n) - 1 }
}

const fn highest(bits: u64) -> usize {
    WORD_BITS - 1 - bits.leading_zeros() as usize
}

/// The words of bitmaps and hint sets that a thread read or wrote, for the tests of what a search costs.
#[cfg(all(test, not(loom)))]
pub(crate) mod steps {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    pub(crate) fn count() {
        STEPS.set(STEPS.get() + 1);
    }

    /// The steps since the last call.
    pub(crate) fn take() -> usize {
        STEPS.take()
    }
}

/// Words that are looked at before the hints are.
#[cfg(not(loom))]
const NEAR: usize = 4;
/// The models look at the hints at once.
#[cfg(loom)]
const NEAR: usize = 0;

/// Which words of a bitmap have set bits. With that, the distance from a clear bit to the next set bit takes a few loads, however far it
/// is.
///
/// A [hint set](crate::arena::pages::hints) names the words. A word is named after a bit of it is set, and no more after all of its bits are clear. Whoever
/// reads a hint looks at the word, so a superfluous hint does no harm. A missing hint makes a claim fail. Then that thread sets it: the
/// thread that set the bits may have been cut off by a fork.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupied<'a> {
    pub(crate) bits: Bitmap<'a>,
    pub(crate) words: HintSet,
}

#[cfg_attr(loom, allow(dead_code))]
impl Occupied<'_> {
    /// The bits of `[start, start + n)` were set.
    pub(crate) fn set(self, start: usize, n: usize) {
        words_of(start, n).for_each(|(group, mask)| self.words.set_all(group, mask));
    }

    /// The bits of `[start, start + n)` became clear.
    pub(crate) fn cleared(self, start: usize, n: usize) {
        for (group, mask) in words_of(start, n) {
            let clear = self.clear_words(group, mask);
            if clear != 0 {
                self.words.clear_all(group, clear);
                // A bit may have been set before the hint was cleared.
                let set = clear & !self.clear_words(group, clear);
                if set != 0 {
                    self.words.set_all(group, set);
                }
            }
        }
    }

    /// Those words of a group whose bits are all clear.
    fn clear_words(self, group: usize, mask: u64) -> u64 {
        let (first, end) = (mask.trailing_zeros() as usize, WORD_BITS - mask.leading_zeros() as usize);
        let is_clear = |&bit: &usize| mask >> bit & 1 == 1 && self.bits.is_clear(group * WORD_BITS + bit);
        (first..end).filter(is_clear).fold(0, |clear, bit| clear | 1 << bit)
    }

    /// The lowest set bit in `[at, end)`.
    pub(crate) fn next_set(self, at: usize, end: usize) -> Option<usize> {
        let mut far = (at / WORD_BITS + NEAR) * WORD_BITS;
        if let Some(set) = self.bits.next_set(at, end.min(far)) {
            return Some(set);
        }
        while far < end {
            let word = self.words.first(far / WORD_BITS)?;
            far = (word + 1) * WORD_BITS;
            if let Some(set) = self.bits.next_set((word * WORD_BITS).min(end), end.min(far)) {
                return Some(set);
            }
        }
        None
    }

    /// The start of the clear bits that lie right below `at`.
    pub(crate) fn end_of_set(self, at: usize) -> usize {
        let mut far = (at.div_ceil(WORD_BITS)).saturating_sub(NEAR) * WORD_BITS;
        let near = self.bits.end_of_set(far, at);
        if near > far {
            return near;
        }
        while let Some(word) = self.words.last(far / WORD_BITS) {
            far = word * WORD_BITS;
            let end = self.bits.end_of_set(far, far + WORD_BITS);
            if end > far {
                return end;
            }
        }
        0
    }
}

/// The words of `[start, start + n)`, in groups of 64: the number of a group, and a mask.
fn words_of(start: usize, n: usize) -> impl Iterator<Item = (usize, u64)> {
    let first = start / WORD_BITS;
    masks(first, (start + n).div_ceil(WORD_BITS) - first)
}

// Rounding.

/// Rounds up to a multiple of `align`, a power of two.
pub(crate) const fn align_up(n: usize, align: usize) -> usize {
    (n + (align - 1)) & !(align - 1)
}
