//! The used and free pages of a zone, and the search for free runs.

use std::sync::atomic::{self, AtomicUsize};

use crate::arena::pages::bitmap::{Bitmap, HintSets, WORD_BITS, each_bit, low_bits};
use crate::os::Errno;
use crate::sync::{AtomicU64, Ordering};
use crate::tuning;

/// The pages of a zone, and an index of the free page runs by length.
///
/// A free run is a maximal run of clear bits in the bitmap of used pages. For each class of lengths, a [hint
/// set](crate::arena::pages::bitmap) names the words of the bitmap in which a free run of that class may begin. A search visits only free
/// runs that are long enough. Three operations create free runs, and set hints for them: freeing a run, claiming a part of a free run, and
/// giving up a claim. A search that finds no free run of the class in a hinted word clears the hint, then checks the word again.
///
/// A search takes a bounded number of steps, no matter how many free runs there are: in each class, it visits a bounded number of free
/// runs, and of superfluous hints (those for words in which no such run begins).
pub(crate) struct Runs {
    pub(crate) used: Bitmap<'static>,
    sets: HintSets<CLASSES>,
    /// A bit for each class: set if the class's hint set may not be empty. Most sets are usually empty. The loom models ignore this word
    /// and search all classes.
    hinted: AtomicU64,
    /// Whether searches scan the bitmap instead of using the index. Set in the loom models of zones and slabs; the models of the bitmap use
    /// the index.
    is_off: bool,
    /// No page at or above this index has ever been used.
    frontier: AtomicUsize,
}

impl Runs {
    /// Creates the runs of a zone. `used` must be clear: all pages are free.
    ///
    /// # Errors
    /// The system's error, if it refuses memory.
    pub(crate) fn new(used: Bitmap<'static>) -> Result<Self, Errno> {
        let sets = HintSets::new(used.len() / WORD_BITS)?;
        let runs = Self { used, sets, hinted: AtomicU64::new(0), is_off: false, frontier: AtomicUsize::new(0) };
        runs.note(0, used.len());
        Ok(runs)
    }

    /// Like [`new`](Self::new), but searches scan the bitmap instead of the index.
    pub(crate) fn without_index(used: Bitmap<'static>) -> Result<Self, Errno> {
        Ok(Self { is_off: true, ..Self::new(used)? })
    }

    pub(crate) fn len(&self) -> usize {
        self.used.len()
    }

    /// Claims `wanted` in the lowest free run at or above `from` that has room for it, or in a higher one if many free runs below are too
    /// short. The number of free runs that a search visits is bounded, so in a zone without long free runs it may miss one of many short
    /// runs that would fit.
    pub(crate) fn claim_first_fit(&self, from: usize, wanted: Wanted) -> Option<usize> {
        #[cfg(loom)]
        if self.is_off {
            return self.claim_found(from, wanted.n, |from| {
                self.used.find_clear_run(from, wanted.n, wanted.align, wanted.skew)
            });
        }
        self.claim_aligned_nearby(from, wanted)
            .or_else(|| self.claim_noted(from, wanted))
            // The search above gives up after a number of superfluous hints. This one clears any number of them.
            .or_else(|| self.claim_found(from, wanted.n, |from| self.lowest(from, wanted, usize::MAX)))
    }

    /// Like [`claim_first_fit`](Self::claim_first_fit), for runs that are shorter than their alignment. Handles alignments of up to one
    /// bitmap word, and reads only a few words. With the index, the search would visit the many free runs that are too short or not
    /// aligned, one by one.
    fn claim_aligned_nearby(&self, from: usize, Wanted { n, align, skew }: Wanted) -> Option<usize> {
        if n >= align || align > WORD_BITS || skew != 0 {
            return None;
        }
        self.claim_found(from, n, |from| self.used.next_aligned(from, n, align, tuning::aligned_scan_words()))
    }

    /// Like [`claim_first_fit`](Self::claim_first_fit), but clears a bounded number of superfluous hints.
    pub(crate) fn claim_noted(&self, from: usize, wanted: Wanted) -> Option<usize> {
        self.claim_found(from, wanted.n, |from| self.lowest(from, wanted, tuning::max_probes_per_bin()))
    }

    /// Claims the run that `search` finds, and searches again if another thread claims it first.
    fn claim_found(&self, from: usize, n: usize, search: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        loop {
            let start = search(from)?;
            if self.try_claim(start, n) {
                return Some(start);
            }
        }
    }

    /// Claims a free run at or above `from` whose pages are all in `resident`. Visits up to [`tuning::max_resident_probes`] free runs, in
    /// ascending order of length class. Examines up to [`PROBED_PAGES`] pages of each (or as many as the request needs), plus `beyond`
    /// pages.
    pub(crate) fn claim_resident(
        &self,
        from: usize,
        resident: Bitmap<'static>,
        wanted: Wanted,
        beyond: usize,
    ) -> Option<usize> {
        let place_in = |start: usize, end: usize| {
            resident.set_runs(start, end - start).find_map(|(start, len)| wanted.place_in(start, start + len))
        };
        let start = self.shortest(from, wanted, tuning::max_resident_probes(), beyond, place_in)?;
        self.try_claim(start, wanted.n).then_some(start)
    }

    /// Claims exactly `[start, start + n)`, or nothing.
    pub(crate) fn try_claim(&self, start: usize, n: usize) -> bool {
        if start + n > self.len() {
            return false;
        }
        // The frontier moves first, so that all used pages are below the frontier that another thread reads.
        if self.frontier() < start + n {
            self.frontier.fetch_max(start + n, atomic::Ordering::SeqCst);
        }
        match self.used.try_claim(start, n) {
            Ok(()) => {
                self.note_rest(start, n);
                true
            }
            Err(taken) => {
                // While some bits of the failed claim were set, another thread may have cleared hints for these pages. So this thread sets
                // the hints again.
                let end = (taken + 1).next_multiple_of(WORD_BITS).min(start + n);
                self.note_within(start, end - start);
                false
            }
        }
    }

    /// Frees `[start, start + n)`, which the caller owns.
    pub(crate) fn release(&self, start: usize, n: usize) {
        if n > 0 {
            self.used.release(start, n);
            self.note_within(start, n);
        }
    }

    // The index of free runs.

    const fn is_off(&self) -> bool {
        cfg!(loom) && self.is_off
    }

    fn note(&self, start: usize, end: usize) {
        let class = class_of(end - start);
        self.sets.set(class).set(start / WORD_BITS);
        self.note_class(class);
    }

    fn note_class(&self, class: usize) {
        if !cfg!(loom) && self.hinted.load(Ordering::SeqCst) >> class & 1 == 0 {
            self.hinted.fetch_or(1 << class, Ordering::SeqCst);
        }
    }

    /// Returns the classes that may have a hint, from `class` upwards.
    fn classes_from(&self, class: usize) -> impl Iterator<Item = usize> {
        let hinted = if cfg!(loom) { low_bits(CLASSES) } else { self.hinted.load(Ordering::SeqCst) };
        each_bit(hinted & !low_bits(class))
    }

    /// Clears the bit of a class in `hinted` if the class's hint set is empty. Then checks again, and sets the bit if another thread has
    /// added a hint.
    fn found_none(&self, class: usize) {
        let set = self.sets.set(class);
        if !cfg!(loom) && set.is_empty() {
            self.hinted.fetch_and(!(1 << class), Ordering::SeqCst);
            if !set.is_empty() {
                self.note_class(class);
            }
        }
    }

    /// Sets hints for the free runs in `[start, start + n)`, where some bits became clear, or were briefly set.
    fn note_within(&self, start: usize, n: usize) {
        if self.is_off() {
            return;
        }
        let (mut at, last) = (start, start + n);
        while let Some(clear) = self.used.next_clear_within(at, last) {
            // A free run that begins further below is so long that it already has a hint in the last class.
            let lowest = clear.saturating_sub(LONG);
            let begin = if clear == at { self.used.end_of_set(lowest, clear) } else { clear };
            let end = self.end_of(clear, LONG);
            if begin > lowest || lowest == 0 {
                self.note(begin, end);
            }
            at = end + 1;
        }
    }

    /// Returns the end of the free run around the page `clear`, or `clear + reach` if the run extends beyond that.
    fn end_of(&self, clear: usize, reach: usize) -> usize {
        let last = self.used.len().min(clear.saturating_add(reach));
        self.used.next_set(clear, last.min(self.frontier())).unwrap_or(last)
    }

    fn frontier(&self) -> usize {
        self.frontier.load(atomic::Ordering::SeqCst)
    }

    /// Sets hints for the parts of a free run that remain on both sides after `[start, start + n)` was claimed.
    fn note_rest(&self, start: usize, n: usize) {
        if start > 0 {
            self.note_within(start - 1, 1);
        }
        if start + n < self.used.len() {
            self.note_within(start + n, 1);
        }
    }

    /// Returns the start and end of each free run that begins in a word of the bitmap. Runs longer than `reach` pages are cut off there.
    fn in_word(&self, word: usize, reach: usize) -> impl Iterator<Item = (usize, usize)> {
        self.measured(word, self.used.begins_of_clear(word), reach)
    }

    /// Like [`in_word`](Self::in_word), for the runs that begin at the bits in `begins` and are still free.
    fn measured(&self, word: usize, begins: u64, reach: usize) -> impl Iterator<Item = (usize, usize)> {
        let starts = each_bit(begins).map(move |bit| word * WORD_BITS + bit);
        starts.map(move |start| (start, self.end_of(start, reach))).filter(|&(start, end)| start < end)
    }

    /// Finds the lowest free run of a class that begins in `from..until`. Clears at most `hints` superfluous hints, and reduces `hints` by
    /// their number.
    fn first(
        &self,
        class: usize,
        from: usize,
        until: usize,
        reach: usize,
        hints: &mut usize,
    ) -> Option<(usize, usize)> {
        let set = self.sets.set(class);
        let mut word = from / WORD_BITS;
        loop {
            let Some(hinted) = set.first(word) else {
                self.found_none(class);
                return None;
            };
            word = hinted;
            if word * WORD_BITS >= until {
                return None;
            }
            let is_of_class = |&(start, end): &(usize, usize)| class_of(end - start) == class;
            // If a free run begins in this word below `from`, the hint may be for that run, so it is kept. The run is not measured, because
            // the caller may have just visited it.
            let begins = self.used.begins_of_clear(word);
            let below = low_bits(from.saturating_sub(word * WORD_BITS).min(WORD_BITS));
            let mut is_hinted = begins & below != 0;
            for run in self.measured(word, begins & !below, reach).filter(is_of_class) {
                is_hinted = true;
                if run.0 < until {
                    return Some(run);
                }
            }
            if !is_hinted {
                *hints = hints.checked_sub(1)?;
                set.clear(word);
                // Another thread may have freed a run here and set this hint just before this thread cleared it. Or that thread measured
                // the run when it was longer, and set a hint only in the class of that length.
                #[cfg(not(loom))]
                self.in_word(word, reach).for_each(|(start, end)| self.note(start, end));
                #[cfg(loom)]
                if self.in_word(word, reach).any(|run| is_of_class(&run)) {
                    set.set(word);
                }
            }
            word += 1;
        }
    }

    /// Returns the part at or above `from` of the free run that contains the page `from`, if that page is free.
    fn across(&self, from: usize, reach: usize) -> Option<(usize, usize)> {
        (from > 0).then(|| (from, self.end_of(from, reach))).filter(|&(start, end)| start < end)
    }

    /// Finds the lowest place for a request at or above `from`, among a bounded number of free runs of each class. Clears at most
    /// `max_hints` superfluous hints of each class.
    fn lowest(&self, from: usize, wanted: Wanted, max_hints: usize) -> Option<usize> {
        if self.is_off() {
            return None;
        }
        let reach = LONG.max(wanted.n + wanted.align);
        if let Some(place) = self.across(from, reach).and_then(|(start, end)| wanted.place_in(start, end)) {
            return Some(place);
        }
        let mut lowest = usize::MAX;
        for class in self.classes_from(class_of(wanted.n)) {
            let mut at = from;
            let mut hints = max_hints;
            // The number of free runs without a suitable place after which the search goes on to the next class.
            let is_long = class == CLASSES - 1;
            let probes = if is_long { tuning::max_long_probes_per_bin() } else { tuning::max_probes_per_bin() };
            for _ in 0..probes {
                let Some((start, end)) = self.first(class, at, lowest, reach, &mut hints) else { break };
                if let Some(place) = wanted.place_in(start, end) {
                    lowest = lowest.min(place);
                    break;
                }
                at = start + 1;
            }
        }
        // The pages beyond the frontier are free; no hint is needed to find them.
        if lowest == usize::MAX { wanted.place_in(from.max(self.frontier()), self.len()) } else { Some(lowest) }
    }

    /// Visits up to `max_visits` free runs at or above `from`, in ascending order of length class, until `place_in` finds a place in one.
    /// If the page `from` is in a free run, the part of that run from there on is visited last. `place_in` gets up to [`PROBED_PAGES`]
    /// pages of a free run (or as many as the request needs), plus `beyond` pages.
    fn shortest(
        &self,
        from: usize,
        wanted: Wanted,
        max_visits: usize,
        beyond: usize,
        place_in: impl Fn(usize, usize) -> Option<usize>,
    ) -> Option<usize> {
        if self.is_off() {
            return None;
        }
        let probed = PROBED_PAGES.max(wanted.n + wanted.align) + beyond;
        let reach = LONG.max(probed);
        let place_in = |start: usize, end: usize| place_in(start, end.min(start + probed));
        let mut left = max_visits;
        'search: for class in self.classes_from(class_of(wanted.n)) {
            let mut at = from;
            let mut hints = tuning::max_probes_per_bin();
            while let Some((start, end)) = self.first(class, at, usize::MAX, reach, &mut hints) {
                if left == 0 {
                    break 'search;
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

/// The number of length classes. Each length up to 7 pages has its own class. Above that, there are four classes per doubling. The last
/// class holds all free runs of [`LONG`] pages or more.
#[cfg(not(loom))]
const CLASSES: usize = 37;
/// In the loom models there are only two classes, free runs shorter than [`LONG`] and all others, so that a search takes few loads.
#[cfg(loom)]
const CLASSES: usize = 2;
/// The length from which free runs are in the last class, in pages. Free runs are measured only up to this length, unless a request needs
/// more.
const LONG: usize = if cfg!(loom) { 15 } else { 1024 };
const EXACT: usize = 8;
const PER_DOUBLING: usize = 4;

/// The maximum number of pages of a free run that a search for resident memory reads, unless the request needs more.
const PROBED_PAGES: usize = 1024;

/// Returns the class of free runs that are `len` pages long.
const fn class_of(len: usize) -> usize {
    if len >= LONG {
        return CLASSES - 1;
    }
    if cfg!(loom) {
        return 0;
    }
    if len < EXACT {
        return len;
    }
    let log2 = len.ilog2() as usize;
    EXACT + (log2 - EXACT.ilog2() as usize) * PER_DOUBLING + (len >> (log2 - 2)) % PER_DOUBLING
}

/// The run that a request needs: `n` pages that begin at an index `i` with `(i + skew) % align == 0`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) n: usize,
    /// A power of two.
    pub(crate) align: usize,
    pub(crate) skew: usize,
}

impl Wanted {
    /// Asks for `n` pages anywhere.
    pub(crate) const fn anywhere(n: usize) -> Self {
        Self { n, align: 1, skew: 0 }
    }

    /// Returns the lowest place for such a run in the free run `start..end`, if there is one.
    pub(crate) fn place_in(self, start: usize, end: usize) -> Option<usize> {
        let place = (start + self.skew).next_multiple_of(self.align) - self.skew;
        (place + self.n <= end).then_some(place)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns the length of the shortest free run of a class.
    const fn min_len(class: usize) -> usize {
        if class < EXACT {
            return class;
        }
        let (doublings, step) = ((class - EXACT) / PER_DOUBLING, (class - EXACT) % PER_DOUBLING);
        (EXACT << doublings) + step * ((EXACT << doublings) / PER_DOUBLING)
    }

    #[test]
    fn a_length_is_in_the_last_class_whose_shortest_run_is_not_longer() {
        for class in 1..CLASSES {
            assert_eq!(class_of(min_len(class)), class);
            assert_eq!(class_of(min_len(class) - 1), class - 1);
        }
        assert_eq!(class_of(usize::MAX), CLASSES - 1);
    }
}
