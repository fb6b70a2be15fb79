//! The pages of a zone, which are used or free. Finds free runs and claims them.

use std::hash::{Hash, Hasher};

use crate::arena::pages::bitmap::{Bitmap, HintSets, Occupied, WORD_BITS};
use crate::os::Errno;
use crate::sync::{AtomicU64, Ordering};
use crate::tuning;

/// The pages of a zone, and an index of the free page runs by length.
///
/// A free run is a maximal run of clear bits in the bitmap of used pages. For each class of lengths, a [hint set](crate::arena::pages::bitmap)
/// names the words of the bitmap in which such a free run may begin. A search visits only free runs that are long enough. Three operations make
/// free runs, and note them: freeing a run, claiming a part of a free run, and giving up a claim. A search that finds no free run of a class in
/// a word clears the hint, then checks once more.
///
/// A search takes a bounded number of steps, however many free runs there are: it visits a bounded number of free runs and superfluous hints of
/// each class.
pub(crate) struct Runs {
    pub(crate) used: Bitmap<'static>,
    sets: HintSets<{ CLASSES + 1 }>,
    /// The classes whose sets may have a hint. Usually most of them have none. The models search all classes.
    hinted: [AtomicU64; CLASSES.div_ceil(WORD_BITS)],
    /// Set in the models of zones and slabs, which do not index free runs: a search also finds runs without the index. The models of the bitmap
    /// index them.
    is_off: bool,
    failures: Failures,
}

impl Runs {
    /// `used` is clear, so all pages are free.
    ///
    /// # Errors
    /// The system's error, if it grants no memory.
    pub(crate) fn new(used: Bitmap<'static>) -> Result<Self, Errno> {
        let sets = HintSets::new(used.len() / WORD_BITS)?;
        let hinted = std::array::from_fn(|_| AtomicU64::new(0));
        let runs = Self { used, sets, hinted, is_off: false, failures: Failures::new() };
        runs.note(0, used.len());
        Ok(runs)
    }

    /// As [`new`](Self::new), but free runs are not indexed.
    pub(crate) fn without_index(used: Bitmap<'static>) -> Result<Self, Errno> {
        Ok(Self { is_off: true, ..Self::new(used)? })
    }

    pub(crate) fn len(&self) -> usize {
        self.used.len()
    }

    /// Claims the lowest free run at or above `from` that fits `wanted`, or a higher one if many free runs below are too short.
    pub(crate) fn claim_first_fit(&self, from: usize, wanted: Wanted) -> Option<usize> {
        self.claim_aligned_nearby(from, wanted)
            .or_else(|| self.claim_noted(from, wanted))
            .or_else(|| self.claim_anywhere(from, wanted))
    }

    /// As [`claim_first_fit`](Self::claim_first_fit), for runs shorter than their alignment, which is at most a word of the bitmap. Reads
    /// a few words only. Between such runs lie many free runs that are too short or not aligned, and the index would visit them one by one.
    fn claim_aligned_nearby(&self, from: usize, Wanted { n, align, skew }: Wanted) -> Option<usize> {
        if n >= align || align > WORD_BITS || skew != 0 {
            return None;
        }
        self.claim_found(from, n, |from| self.used.next_aligned(from, n, align, tuning::aligned_scan_words()))
    }

    /// As [`claim_first_fit`](Self::claim_first_fit), after a bounded search of the indexed free runs found nothing. The zone may be full. Or
    /// too many hints are superfluous, or a fork cut off a thread that was about to note a free run.
    #[cold]
    fn claim_anywhere(&self, from: usize, wanted: Wanted) -> Option<usize> {
        let Wanted { n, align, skew } = wanted;
        let scan = |from| self.used.find_clear_run(from, n, align, skew);
        if self.is_off() {
            return self.claim_found(from, n, scan);
        }
        self.failures.search(from, wanted, || {
            self.claim_found(from, n, |from| self.lowest(from, wanted, usize::MAX))
                .or_else(|| self.claim_found(from, n, scan))
        })
    }

    /// As [`claim_first_fit`](Self::claim_first_fit), but searches only the indexed free runs.
    pub(crate) fn claim_noted(&self, from: usize, wanted: Wanted) -> Option<usize> {
        self.claim_found(from, wanted.n, |from| self.lowest(from, wanted, tuning::max_probes_per_bin()))
    }

    /// Claims the run that `search` finds, and searches again if another thread was faster.
    fn claim_found(&self, from: usize, n: usize, search: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        loop {
            let start = search(from)?;
            if self.try_claim(start, n) {
                return Some(start);
            }
        }
    }

    /// Claims a free run at or above `from` whose pages are all in `resident`. Visits up to [`tuning::max_resident_probes`] free runs, the short
    /// ones first. Examines up to [`PROBED_PAGES`] of each (more if the request needs more), and `beyond` more.
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
        match self.used.try_claim(start, n) {
            Ok(()) => {
                self.note_used(start, n);
                self.note_rest(start, n);
                true
            }
            Err(taken) => {
                // Another thread may have seen the bits of the failed claim, and treated these pages as used. So they are noted once more.
                let end = (taken + 1).next_multiple_of(WORD_BITS).min(start + n);
                self.note_used(taken.min(self.len() - 1), 1);
                self.note_freed(start, end - start);
                false
            }
        }
    }

    /// Frees `[start, start + n)`, which the caller owns.
    pub(crate) fn release(&self, start: usize, n: usize) {
        if n > 0 {
            self.used.release(start, n);
            self.note_freed(start, n);
        }
    }

    // The index of free runs.

    const fn is_off(&self) -> bool {
        cfg!(loom) && self.is_off
    }

    /// The words of the bitmap that have used pages. The models scan the bitmap itself instead. [`Occupied`] has a model of its own.
    fn occupied(&self) -> Occupied<'static> {
        Occupied { bits: self.used, words: self.sets.set(OCCUPIED) }
    }

    fn note(&self, start: usize, end: usize) {
        let class = class_of(end - start);
        self.sets.set(class).set(start / WORD_BITS);
        self.note_class(class);
    }

    fn note_class(&self, class: usize) {
        let (word, mask) = (&self.hinted[class / WORD_BITS], 1 << (class % WORD_BITS));
        if !cfg!(loom) && word.load(Ordering::SeqCst) & mask == 0 {
            word.fetch_or(mask, Ordering::SeqCst);
        }
    }

    /// The classes from `class` on that may have a hint.
    fn classes_from(&self, mut class: usize) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let hinted = || Bitmap::new(&self.hinted).next_set(class, CLASSES);
            let found = if cfg!(loom) { (class < CLASSES).then_some(class) } else { hinted() }?;
            class = found + 1;
            Some(found)
        })
    }

    /// Clears the mark of a class of which a search found no hint. As for each hint, it checks once more afterwards.
    fn found_none(&self, class: usize) {
        let set = self.sets.set(class);
        if !cfg!(loom) && set.is_empty() {
            self.hinted[class / WORD_BITS].fetch_and(!(1 << (class % WORD_BITS)), Ordering::SeqCst);
            if !set.is_empty() {
                self.note_class(class);
            }
        }
    }

    /// Notes the free runs in `[start, start + n)`, of which some bits became clear, or were set for an instant.
    fn note_freed(&self, start: usize, n: usize) {
        if !cfg!(loom) {
            self.occupied().cleared(start, n);
        }
        let longest = self.note_within(start, n);
        if !self.is_off() {
            self.failures.freed(longest);
        }
    }

    /// Notes the free runs in `[start, start + n)`. Returns the length of the longest.
    fn note_within(&self, start: usize, n: usize) -> usize {
        if self.is_off() {
            return 0;
        }
        let (mut at, last) = (start, start + n);
        let mut longest = 0;
        while let Some(clear) = self.used.next_clear_within(at, last) {
            // In the models, a free run that begins further below is in the last class already.
            let lowest = clear.saturating_sub(reach(0));
            let begin = if clear == at { self.begin_of(lowest, clear) } else { clear };
            let end = self.end_of(clear, reach(0));
            if begin > lowest || lowest == 0 {
                self.note(begin, end);
            }
            longest = longest.max(end - begin);
            at = end + 1;
        }
        longest
    }

    /// The start of the free run around a clear page, at least `lowest`.
    fn begin_of(&self, lowest: usize, clear: usize) -> usize {
        if cfg!(loom) { self.used.end_of_set(lowest, clear) } else { self.occupied().end_of_set(clear) }
    }

    /// The end of the free run around a clear page, at most `reach` pages on.
    fn end_of(&self, clear: usize, reach: usize) -> usize {
        let last = self.used.len().min(clear.saturating_add(reach));
        let set = if cfg!(loom) { self.used.next_set(clear, last) } else { self.occupied().next_set(clear, last) };
        set.unwrap_or(last)
    }

    /// Notes that the bits of `[start, start + n)` were set.
    fn note_used(&self, start: usize, n: usize) {
        if !cfg!(loom) {
            self.occupied().set(start, n);
        }
    }

    /// Notes what is left of a free run on both sides of `[start, start + n)`, which was claimed.
    fn note_rest(&self, start: usize, n: usize) {
        if start > 0 {
            self.note_within(start - 1, 1);
        }
        if start + n < self.used.len() {
            self.note_within(start + n, 1);
        }
    }

    /// The free runs that begin in a word, with their ends. A free run is measured up to `reach` pages.
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

    /// The lowest free run of a class that begins in `from..until`. Clears at most `hints` superfluous hints, and subtracts their number from
    /// it.
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
            let mut is_hinted = false;
            for run in self.in_word(word, reach).filter(is_of_class) {
                is_hinted = true;
                if (from..until).contains(&run.0) {
                    return Some(run);
                }
            }
            if !is_hinted {
                *hints = hints.checked_sub(1)?;
                set.clear(word);
                // A free run may have been noted before the hint was cleared. Or the thread that noted it measured a longer run, and noted only
                // that class.
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

    /// The part of a free run from `from` on, if the run begins there or below.
    fn across(&self, from: usize, reach: usize) -> Option<(usize, usize)> {
        (from > 0).then(|| (from, self.end_of(from, reach))).filter(|&(start, end)| start < end)
    }

    /// The lowest place for a request at or above `from`, among some free runs of each class. Clears at most `max_hints` superfluous hints of
    /// each class.
    fn lowest(&self, from: usize, wanted: Wanted, max_hints: usize) -> Option<usize> {
        if self.is_off() {
            return None;
        }
        let reach = reach(wanted.n + wanted.align);
        if let Some(place) = self.across(from, reach).and_then(|(start, end)| wanted.place_in(start, end)) {
            return Some(place);
        }
        let mut lowest = usize::MAX;
        for class in self.classes_from(class_of(wanted.n)) {
            let mut at = from;
            let mut hints = max_hints;
            // How many free runs may be too short before the search takes a longer one.
            let probes = if class < COARSE { tuning::max_probes_per_bin() } else { tuning::max_long_probes_per_bin() };
            for _ in 0..probes {
                let Some((start, end)) = self.first(class, at, lowest, reach, &mut hints) else { break };
                if let Some(place) = wanted.place_in(start, end) {
                    lowest = lowest.min(place);
                    break;
                }
                at = start + 1;
            }
        }
        (lowest != usize::MAX).then_some(lowest)
    }

    /// Visits up to `max_visits` free runs at or above `from`, the short ones first, until `place_in` finds a place in one. The part of a free
    /// run that begins below `from` comes last. `place_in` gets up to [`PROBED_PAGES`] of a free run (more if the request needs more), and
    /// `beyond` more.
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
        let reach = reach(wanted.n + wanted.align);
        let probed = PROBED_PAGES.max(wanted.n + wanted.align) + beyond;
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

/// The lower bits of each word: a length in pages. Searches for longer runs are not remembered.
const LENGTH_BITS: u32 = 28;
const LENGTH: u64 = (1 << LENGTH_BITS) - 1;
/// How many kinds of searches are remembered at once.
const KINDS: usize = 8;

/// Searches of a whole zone that found nothing. A search is not repeated before a run is freed that may be long enough.
///
/// One word has a generation, and the shortest length that was searched for in this generation. A search announces its length there before it
/// begins. A thread that frees a run of at least that length begins the next generation, in which earlier failures do not count.
pub(crate) struct Failures {
    /// The generation, and the shortest length; 0 if there was no search.
    watch: AtomicU64,
    /// For each kind of search, the generation and the kind in one hash, and the shortest length that failed.
    failed: [AtomicU64; KINDS],
}

impl Failures {
    pub(crate) fn new() -> Self {
        Self { watch: AtomicU64::new(0), failed: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Runs `search`, unless one like it is known to fail. Remembers a search that fails.
    pub(crate) fn search<T>(&self, from: usize, wanted: Wanted, search: impl FnOnce() -> Option<T>) -> Option<T> {
        let length = (wanted.n as u64).min(LENGTH);
        let mut watch = self.watch.load(Ordering::SeqCst);
        while watch & LENGTH == 0 || watch & LENGTH > length {
            // SeqCst: either the search sees what another thread frees, or that thread sees the announcement.
            match self.watch.compare_exchange(watch, watch & !LENGTH | length, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => watch = watch & !LENGTH | length,
                Err(other) => watch = other,
            }
        }
        // If two kinds had the same hash, some requests would miss a free run. That is practically impossible.
        let mut hasher = std::hash::DefaultHasher::new();
        (watch >> LENGTH_BITS, from, wanted.align, wanted.skew).hash(&mut hasher);
        let kind = hasher.finish();
        let (failure, place) = (kind & !LENGTH | length, &self.failed[kind as usize % KINDS]);
        let failed = place.load(Ordering::Relaxed);
        let is_known = (failed ^ failure) & !LENGTH == 0 && failed & LENGTH <= length;
        if is_known && length != LENGTH {
            return None;
        }
        let found = search();
        if found.is_none() {
            place.store(failure, Ordering::Relaxed);
        }
        found
    }

    /// Notes that a run of `pages` pages became free.
    pub(crate) fn freed(&self, pages: usize) {
        let mut watch = self.watch.load(Ordering::SeqCst);
        while watch & LENGTH != 0 && pages as u64 >= watch & LENGTH {
            let next = (watch >> LENGTH_BITS).wrapping_add(1) << LENGTH_BITS;
            match self.watch.compare_exchange(watch, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(other) => watch = other,
            }
        }
    }
}

/// The number of length classes. Each length up to 7 pages has its own class. Beyond, there are four classes per doubling, and two from
/// [`COARSE`] on.
#[cfg(not(loom))]
const CLASSES: usize = 68;
/// The models have two classes, so that a search takes few loads: shorter than [`LONG`], and all others.
#[cfg(loom)]
const CLASSES: usize = 2;
const LONG: usize = 15;
const EXACT: usize = 8;
const PER_DOUBLING: usize = 4;
/// The first of the coarse classes, and its shortest free run. A search visits a few more free runs there: a claim of this many pages takes
/// longer anyway.
const COARSE: usize = 36;
const COARSE_LEN: usize = 1024;

/// How far a free run is measured for `pages` pages. The models measure no further than their last class, so that a search takes few loads.
const fn reach(pages: usize) -> usize {
    match pages {
        _ if !cfg!(loom) => usize::MAX,
        0..LONG => LONG,
        _ => pages,
    }
}

/// A search for resident memory reads at most this many pages of a free run, or as many as the request needs.
const PROBED_PAGES: usize = 1024;

/// The class of free runs of a length.
const fn class_of(len: usize) -> usize {
    if cfg!(loom) {
        return (len >= LONG) as usize;
    }
    if len < EXACT {
        return len;
    }
    let log2 = len.ilog2() as usize;
    if len >= COARSE_LEN {
        let class = COARSE + 2 * (log2 - COARSE_LEN.ilog2() as usize) + (len >> (log2 - 1)) % 2;
        return if class < CLASSES { class } else { CLASSES - 1 };
    }
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
    /// `n` pages anywhere.
    pub(crate) const fn anywhere(n: usize) -> Self {
        Self { n, align: 1, skew: 0 }
    }

    /// The first such place in the free run `start..end`.
    pub(crate) fn place_in(self, start: usize, end: usize) -> Option<usize> {
        let place = (start + self.skew).next_multiple_of(self.align) - self.skew;
        (place + self.n <= end).then_some(place)
    }
}

/// The number of the set of words with set bits. The sets before it belong to the classes.
const OCCUPIED: usize = CLASSES;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The shortest free run of a class.
    const fn min_len(class: usize) -> usize {
        if class < EXACT {
            return class;
        }
        if class >= COARSE {
            let len = COARSE_LEN << ((class - COARSE) / 2);
            return len + (class - COARSE) % 2 * len / 2;
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
