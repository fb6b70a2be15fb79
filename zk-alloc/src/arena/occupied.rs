//! Which words of a bitmap have set bits. With that, the distance from a clear bit to the next set bit takes a few loads, however far it
//! is.
//!
//! A [hint set](super::hints) names the words. A word is named after a bit of it is set, and no more after all of its bits are clear. Whoever
//! reads a hint looks at the word, so a superfluous hint does no harm. A missing hint makes a claim fail. Then that thread sets it: the
//! thread that set the bits may have been cut off by a fork.

use super::bitmap::{Bitmap, WORD_BITS, masks};
use super::hints::HintSet;

/// Words that are looked at before the hints are.
#[cfg(not(loom))]
const NEAR: usize = 4;
/// The models look at the hints at once.
#[cfg(loom)]
const NEAR: usize = 0;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occupied<'a> {
    pub(super) bits: Bitmap<'a>,
    pub(super) words: HintSet,
}

impl Occupied<'_> {
    /// The bits of `[start, start + n)` were set.
    pub(super) fn set(self, start: usize, n: usize) {
        words_of(start, n).for_each(|(group, mask)| self.words.set_all(group, mask));
    }

    /// The bits of `[start, start + n)` became clear.
    pub(super) fn cleared(self, start: usize, n: usize) {
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
    pub(super) fn next_set(self, at: usize, end: usize) -> Option<usize> {
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
    pub(super) fn end_of_set(self, at: usize) -> usize {
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
