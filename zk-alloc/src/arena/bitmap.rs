//! A bitmap whose runs of bits are claimed and released without a lock.
//!
//! A bit belongs to whoever turned it from 0 to 1, and only the owner turns it back. That is the whole protocol: it
//! holds whatever thread is interrupted, killed by a fork, or overtaken, at whatever instruction. What such a thread
//! leaves behind are bits that stay set, which wastes memory and never gives it out twice.

use super::align::align_up;
use crate::sync::{AtomicU64, Ordering};

pub(super) const WORD_BITS: usize = u64::BITS as usize;

/// What a search came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// The lowest run: it was clear when it was looked at.
    Found(usize),
    /// So many holes that were too short as were to be looked at. It may be at this index, or above.
    Misses(usize),
    Nothing,
}

/// A fixed number of bits, all clear at first, over words that somebody else keeps.
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

    /// Its first `bits` bits, and what else their last word holds.
    pub(super) fn prefix(self, bits: usize) -> Self {
        Self { words: &self.words[..Self::words_for(bits)] }
    }

    /// Words that hold `bits` bits.
    pub(crate) const fn words_for(bits: usize) -> usize {
        bits.div_ceil(WORD_BITS)
    }

    /// Claims exactly `[start, start + n)`, or nothing: then a bit that was already set is returned.
    pub(crate) fn try_claim(self, start: usize, n: usize) -> Result<(), usize> {
        if start + n > self.len() {
            return Err(self.len());
        }
        for (word, mask) in masks(start, n) {
            // Acquire pairs with the Release of `release`: what the last owner did to the memory is over.
            let before = self.words[word].fetch_or(mask, Ordering::AcqRel);
            let taken = before & mask;
            if taken != 0 {
                // Undo what is ours: in this word the bits that we turned, in the words before it all of ours.
                self.words[word].fetch_and(!(mask & !before), Ordering::Release);
                let whole_words_end = (word * WORD_BITS).max(start);
                self.release(start, whole_words_end - start);
                return Err(word * WORD_BITS + highest(taken));
            }
        }
        Ok(())
    }

    /// Gives back `[start, start + n)`, which the caller owns.
    pub(crate) fn release(self, start: usize, n: usize) {
        for (word, mask) in masks(start, n) {
            let before = self.words[word].fetch_and(!mask, Ordering::Release);
            debug_assert_eq!(before & mask, mask, "released a bit that nobody owned");
        }
    }

    /// Sets `[start, start + n)` and returns how many of these bits were clear.
    pub(crate) fn set(self, start: usize, n: usize) -> usize {
        let mut turned = 0;
        for (word, mask) in masks(start, n) {
            // Most often all are set already: a load keeps the line shared.
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
            at = self.next_clear(first).min(end);
            Some((first, at - first))
        })
    }

    /// How many of the bits in `[start, start + n)` are set.
    pub(crate) fn count(self, start: usize, n: usize) -> usize {
        masks(start, n)
            .map(|(word, mask)| (self.words[word].load(Ordering::Relaxed) & mask).count_ones() as usize)
            .sum()
    }

    /// Looks for the lowest run of `n` clear bits that starts at an index `i`, not below `from`, with `(i + skew) % align == 0`.
    /// `align` is a power of two. No [lane](lane_bits) for `n` is clear below `lanes_from`.
    pub(crate) fn find_clear_run(
        self,
        from: usize,
        lanes_from: usize,
        n: usize,
        align: usize,
        skew: usize,
        most_misses: usize,
    ) -> Search {
        debug_assert!(n > 0 && align.is_power_of_two());
        if skew == 0 && (2..=WORD_BITS).contains(&align) && n <= align && lane_bits(n).is_none() {
            return self.next_aligned(from, n, align).map_or(Search::Nothing, Search::Found);
        }
        let mut at = from;
        for _ in 0..most_misses {
            at = self.next_roomy(at, lanes_from, n);
            at = align_up(at + skew, align) - skew;
            if at.checked_add(n).is_none_or(|end| end > self.len()) {
                return Search::Nothing;
            }
            match self.last_set(at, n) {
                None => return Search::Found(at),
                Some(blocker) => at = blocker + 1,
            }
        }
        Search::Misses(at)
    }

    /// The lowest run of `n` clear bits at or above `at` that begins at a multiple of `align`, of which a word has several places:
    /// all of them are looked at together.
    fn next_aligned(self, at: usize, n: usize, align: usize) -> Option<usize> {
        let places = u64::MAX / low_bits(align);
        let mut below = low_bits(at % WORD_BITS);
        self.words.iter().enumerate().skip(at / WORD_BITS).find_map(|(word, bits)| {
            let mut begins = !(bits.load(Ordering::Relaxed) | below);
            below = 0;
            // Of each bit: whether a run of so many clear ones begins there.
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

    /// The lowest place at or above `at` where a run of `n` clear bits may begin, or `len`: a word without a clear
    /// [lane](lane_bits) is passed over by a few operations, however many small holes it has.
    fn next_roomy(self, at: usize, lanes_from: usize, n: usize) -> usize {
        let Some(lane) = lane_bits(n) else { return self.next_clear(at) };
        let Some(clear) = self.next_clear_lane(at.max(lanes_from), lane) else { return self.len() };
        // The run may begin before its first whole lane.
        let from = at.max(clear.saturating_sub(n));
        self.last_set(from, clear - from).map_or(from, |set| set + 1)
    }

    /// Where the lowest clear lane of `lane` bits begins, at or above `at`.
    pub(crate) fn next_clear_lane(self, at: usize, lane: usize) -> Option<usize> {
        if lane > WORD_BITS {
            let is_clear = |words: &[AtomicU64]| words.iter().all(|bits| bits.load(Ordering::Relaxed) == 0);
            let mut lanes = self.words.chunks_exact(lane / WORD_BITS).enumerate().skip(at.div_ceil(lane));
            return lanes.find_map(|(index, words)| is_clear(words).then_some(index * lane));
        }
        let mut below = low_bits(at % WORD_BITS);
        self.words.iter().enumerate().skip(at / WORD_BITS).find_map(|(word, bits)| {
            let found = lowest_clear_lane(bits.load(Ordering::Relaxed) | below, lane);
            below = 0;
            found.map(|clear| word * WORD_BITS + clear)
        })
    }

    /// Where the lowest clear lane of `lane` bits begins that holds some of `[start, start + n)`.
    pub(crate) fn clear_lane_at(self, start: usize, n: usize, lane: usize) -> Option<usize> {
        let from = start / lane * lane;
        self.prefix(align_up(start + n, lane).min(self.len()))
            .next_clear_lane(from, lane)
            .filter(|&found| found < start + n)
    }

    /// The highest run of bits in `[from, end)` that are set here and clear in `taken`, as `(start, length)`.
    pub(crate) fn last_run_without(self, taken: Self, from: usize, end: usize) -> Option<(usize, usize)> {
        let left = |word: usize| {
            let bits = self.words[word].load(Ordering::Relaxed) & !taken.words[word].load(Ordering::Relaxed);
            let within = |bit: usize| low_bits(bit.saturating_sub(word * WORD_BITS).min(WORD_BITS));
            bits & within(end) & !within(from)
        };
        let first = from / WORD_BITS;
        // Each word is looked at once: it may be another at the next look.
        let mut words = (first..end.div_ceil(WORD_BITS)).rev().map(|word| (word, left(word)));
        let (mut word, bits) = words.find(|&(_, bits)| bits != 0)?;
        let top = highest(bits) + 1;
        let mut run = (bits << (WORD_BITS - top)).leading_ones() as usize;
        let (end, mut reaches_down) = (word * WORD_BITS + top, run == top);
        while reaches_down && word > first {
            word -= 1;
            let more = left(word).leading_ones() as usize;
            run += more;
            reaches_down = more == WORD_BITS;
        }
        Some((end - run, run))
    }

    /// The lowest clear bit at or above `at`, or `len`.
    fn next_clear(self, at: usize) -> usize {
        let mut word = at / WORD_BITS;
        let mut below = low_bits(at % WORD_BITS);
        while let Some(bits) = self.words.get(word) {
            let clear = !(bits.load(Ordering::Relaxed) | below);
            if clear != 0 {
                return word * WORD_BITS + clear.trailing_zeros() as usize;
            }
            below = 0;
            word += 1;
        }
        self.len()
    }

    /// The lowest set bit in `[at, end)`.
    fn next_set(self, at: usize, end: usize) -> Option<usize> {
        masks(at, end.saturating_sub(at)).find_map(|(word, mask)| {
            let set = self.words[word].load(Ordering::Relaxed) & mask;
            (set != 0).then(|| word * WORD_BITS + set.trailing_zeros() as usize)
        })
    }

    /// The highest set bit in `[start, start + n)`: the search goes on behind it, so that each word is read about once.
    fn last_set(self, start: usize, n: usize) -> Option<usize> {
        masks(start, n).rev().find_map(|(word, mask)| {
            let set = self.words[word].load(Ordering::Relaxed) & mask;
            (set != 0).then(|| word * WORD_BITS + highest(set))
        })
    }
}

/// The words that `[start, start + n)` touches, each with a mask of its bits in that range.
fn masks(start: usize, n: usize) -> impl DoubleEndedIterator<Item = (usize, u64)> {
    let end = start + n;
    let words = if n == 0 { 0..0 } else { start / WORD_BITS..(end - 1) / WORD_BITS + 1 };
    words.map(move |word| {
        let first = start.max(word * WORD_BITS) - word * WORD_BITS;
        let last = end.min((word + 1) * WORD_BITS) - word * WORD_BITS;
        (word, low_bits(last) & !low_bits(first))
    })
}

/// A word with its lowest `n` bits set; `n` is at most 64.
const fn low_bits(n: usize) -> u64 {
    if n == WORD_BITS { u64::MAX } else { (1 << n) - 1 }
}

/// The lanes that are looked for, by their bits.
#[cfg(not(loom))]
pub(crate) const LANES: [usize; 9] =
    [4, 8, 16, 32, WORD_BITS, 2 * WORD_BITS, 4 * WORD_BITS, 8 * WORD_BITS, 16 * WORD_BITS];
/// The models have one that fits a word, and one that does not: each is a search at each release.
#[cfg(loom)]
pub(crate) const LANES: [usize; 2] = [8, 2 * WORD_BITS];

/// Where a run of `n` bits begins and ends, it covers a whole lane of so many bits, which begins at a multiple of them: the
/// largest of which it holds two less one. `None` for short runs.
pub(crate) fn lane_bits(n: usize) -> Option<usize> {
    LANES.into_iter().rev().find(|lane| n >= 2 * lane - 1)
}

/// Where the lowest aligned lane of `lane` clear bits begins in a word: 4, 8, 16, 32 or all 64.
const fn lowest_clear_lane(bits: u64, lane: usize) -> Option<usize> {
    if lane == WORD_BITS {
        return if bits == 0 { Some(0) } else { None };
    }
    // Subtracting one from each lane borrows from the next where it is zero; that shows in its highest bit. What lies above the
    // first such lane may be wrong, that one is not.
    let ones = u64::MAX / low_bits(lane);
    let borrowed = bits.wrapping_sub(ones) & !bits & (ones << (lane - 1));
    if borrowed == 0 { None } else { Some(borrowed.trailing_zeros() as usize / lane * lane) }
}

const fn highest(bits: u64) -> usize {
    WORD_BITS - 1 - bits.leading_zeros() as usize
}
