//! An index of the free page runs of a zone, its *holes*, by length.
//!
//! A hole is a maximal run of clear bits in the bitmap of used pages. For each class of lengths, a [hint set](super::hints) names
//! the words of the bitmap in which such a hole may begin. A search visits only holes that are long enough. Three operations make
//! holes, and note them: freeing a run, claiming a part of a hole, and giving up a claim. A search that finds no hole of a class in a
//! word clears the hint, then looks once more.

use super::bitmap::{Bitmap, WORD_BITS};
use super::hints::{HintSet, HintSets};
use crate::os::Errno;
use crate::tuning;

/// Classes of lengths. Up to 7 pages each length has its own; beyond, there are four to a doubling.
#[cfg(not(loom))]
const CLASSES: usize = 36;
/// The models have two classes, so that a search takes few loads: shorter than [`LONG`], and all others.
#[cfg(loom)]
const CLASSES: usize = 2;
#[cfg(loom)]
const LONG: usize = 15;
#[cfg(not(loom))]
const EXACT: usize = 8;
#[cfg(not(loom))]
const PER_DOUBLING: usize = 4;

/// Holes of this many pages or more are in the last class, and are not measured further.
const LONGEST: usize = least_len(CLASSES - 1);

#[cfg(loom)]
const fn class_of(len: usize) -> usize {
    (len >= LONG) as usize
}

#[cfg(loom)]
const fn least_len(class: usize) -> usize {
    class * LONG
}

/// The class of holes of a length.
#[cfg(not(loom))]
const fn class_of(len: usize) -> usize {
    if len < EXACT {
        return len;
    }
    let log2 = len.ilog2() as usize;
    let class = EXACT + (log2 - EXACT.ilog2() as usize) * PER_DOUBLING + (len >> (log2 - 2)) % PER_DOUBLING;
    if class < CLASSES { class } else { CLASSES - 1 }
}

/// The shortest hole of a class.
#[cfg(not(loom))]
const fn least_len(class: usize) -> usize {
    if class < EXACT {
        return class;
    }
    let (doublings, step) = ((class - EXACT) / PER_DOUBLING, (class - EXACT) % PER_DOUBLING);
    (EXACT << doublings) + step * ((EXACT << doublings) / PER_DOUBLING)
}

/// A request: `n` pages that begin at an `i` with `(i + skew) % align == 0`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) n: usize,
    /// A power of two.
    pub(super) align: usize,
    pub(super) skew: usize,
}

impl Wanted {
    /// The first place at or above `at`.
    fn first_from(self, at: usize) -> usize {
        (at + self.skew).next_multiple_of(self.align) - self.skew
    }

    /// The first place in a hole.
    pub(super) fn place_in(self, start: usize, end: usize) -> Option<usize> {
        Some(self.first_from(start)).filter(|place| place + self.n <= end)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Holes {
    used: Bitmap<'static>,
    sets: HintSets<CLASSES>,
    /// Set by the models of zones and slabs, which note no holes: a search also finds free runs without them. The models of the bitmap note
    /// holes.
    #[cfg(loom)]
    pub(super) is_off: bool,
}

impl Holes {
    /// The holes of a zone of which all pages are free.
    ///
    /// # Errors
    /// The system's error, if it grants no memory.
    pub(super) fn new(used: Bitmap<'static>) -> Result<Self, Errno> {
        let sets = HintSets::new(used.len() / WORD_BITS)?;
        let holes = Self {
            used,
            sets,
            #[cfg(loom)]
            is_off: false,
        };
        holes.note(0, used.len());
        Ok(holes)
    }

    fn set(&self, class: usize) -> HintSet {
        self.sets.set(class)
    }

    fn note(&self, start: usize, end: usize) {
        self.set(class_of(end - start)).set(start / WORD_BITS);
    }

    /// Notes the holes in `[start, start + n)`. Some of its bits became clear, or were set for an instant.
    pub(super) fn freed(&self, start: usize, n: usize) {
        #[cfg(loom)]
        if self.is_off {
            return;
        }
        let (mut at, last) = (start, start + n);
        while let Some(clear) = self.used.next_clear_within(at, last) {
            // A hole that begins further below is in the last class already.
            let lowest = clear.saturating_sub(LONGEST);
            let begin = if clear == at { self.used.end_of_set(lowest, clear) } else { clear };
            let end = self.end_of(clear, LONGEST);
            if begin > lowest || lowest == 0 {
                self.note(begin, end);
            }
            at = end + 1;
        }
    }

    /// The end of the hole around a clear page, at most `reach` pages on.
    fn end_of(&self, clear: usize, reach: usize) -> usize {
        let last = self.used.len().min(clear.saturating_add(reach));
        self.used.next_set(clear, last).unwrap_or(last)
    }

    /// Notes the rest of a hole on both sides of `[start, start + n)`, which was claimed.
    pub(super) fn claimed(&self, start: usize, n: usize) {
        if start > 0 {
            self.freed(start - 1, 1);
        }
        if start + n < self.used.len() {
            self.freed(start + n, 1);
        }
    }

    /// The holes that begin in a word, with their ends. A hole is measured up to `reach` pages.
    fn in_word(&self, word: usize, reach: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut begins = self.used.begins_of_clear(word);
        std::iter::from_fn(move || {
            let bit = (begins != 0).then(|| begins.trailing_zeros() as usize)?;
            begins &= begins - 1;
            let start = word * WORD_BITS + bit;
            Some((start, self.end_of(start, reach)))
        })
        .filter(|&(start, end)| start < end)
    }

    /// The lowest hole of a class that begins in `from..until`.
    fn first(&self, class: usize, from: usize, until: usize, reach: usize) -> Option<(usize, usize)> {
        let set = self.set(class);
        let mut word = from / WORD_BITS;
        loop {
            word = set.first(word)?;
            if word * WORD_BITS >= until {
                return None;
            }
            let is_of_class = |&(start, end): &(usize, usize)| class_of(end - start) == class;
            let mut is_hinted = false;
            for hole in self.in_word(word, reach).filter(is_of_class) {
                is_hinted = true;
                if (from..until).contains(&hole.0) {
                    return Some(hole);
                }
            }
            if !is_hinted {
                set.clear(word);
                // A hole may have been noted before the hint was cleared.
                if self.in_word(word, reach).any(|hole| is_of_class(&hole)) {
                    set.set(word);
                }
            }
            word += 1;
        }
    }

    /// The part from `from` on of a hole that begins there or below.
    fn across(&self, from: usize, reach: usize) -> Option<(usize, usize)> {
        (from > 0).then(|| (from, self.end_of(from, reach))).filter(|&(start, end)| start < end)
    }

    /// The lowest place for a request at or above `from`. Looks at [`tuning::most_misses`] holes of each class that may be too short.
    pub(super) fn lowest(&self, from: usize, wanted: Wanted) -> Option<usize> {
        #[cfg(loom)]
        if self.is_off {
            return None;
        }
        let reach = LONGEST.max(wanted.n + wanted.align);
        if let Some(place) = self.across(from, reach).and_then(|(start, end)| wanted.place_in(start, end)) {
            return Some(place);
        }
        let mut lowest = usize::MAX;
        for class in class_of(wanted.n)..CLASSES {
            let mut at = from;
            // The last class has few holes, and no class has longer ones.
            let most = if class + 1 < CLASSES { tuning::most_misses() } else { usize::MAX };
            for _ in 0..most {
                let Some((start, end)) = self.first(class, at, lowest, reach) else { break };
                if let Some(place) = wanted.place_in(start, end) {
                    lowest = lowest.min(place);
                    break;
                }
                at = start + 1;
            }
        }
        (lowest != usize::MAX).then_some(lowest)
    }

    /// Visits up to `most` holes at or above `from`, the short ones first, until `place_in` finds a place in one. The part of a hole that
    /// begins below comes last. A hole is measured `beyond` pages further than in other searches.
    pub(super) fn shortest(
        &self,
        from: usize,
        wanted: Wanted,
        most: usize,
        beyond: usize,
        place_in: impl Fn(usize, usize) -> Option<usize>,
    ) -> Option<usize> {
        #[cfg(loom)]
        if self.is_off {
            return None;
        }
        let reach = LONGEST.max(wanted.n + wanted.align) + beyond;
        let mut left = most;
        'holes: for class in class_of(wanted.n)..CLASSES {
            let mut at = from;
            while let Some((start, end)) = self.first(class, at, usize::MAX, reach) {
                if left == 0 {
                    break 'holes;
                }
                if let Some(place) = place_in(start, end) {
                    return Some(place);
                }
                left -= 1;
                at = start + 1;
            }
        }
        self.across(from, reach).and_then(|(start, end)| place_in(start, end))
    }
}
