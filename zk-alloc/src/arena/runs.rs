//! The pages of a zone: used or free. Claims free runs.

use super::bitmap::{Bitmap, WORD_BITS};
use super::failures::Failures;
use super::free_run_index::{FreeRunIndex, Wanted};
use crate::os::Errno;
use crate::tuning;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Runs {
    used: Bitmap<'static>,
    index: FreeRunIndex,
    failures: Failures,
}

impl Runs {
    /// `used` is clear, so all pages are free.
    ///
    /// # Errors
    /// The system's error, if it grants no memory.
    pub(super) fn new(used: Bitmap<'static>) -> Result<Self, Errno> {
        Ok(Self { used, index: FreeRunIndex::new(used)?, failures: Failures::new() })
    }

    /// As [`new`](Self::new), but free runs are neither noted nor searched.
    #[cfg(loom)]
    pub(super) fn without_index(used: Bitmap<'static>) -> Result<Self, Errno> {
        let mut runs = Self::new(used)?;
        runs.index.is_off = true;
        Ok(runs)
    }

    pub(super) fn used(&self) -> Bitmap<'static> {
        self.used
    }

    pub(super) fn len(&self) -> usize {
        self.used.len()
    }

    /// Claims the lowest free run at or above `from` that begins at an `i` with `(i + skew) % align == 0`.
    pub(super) fn claim_first_fit(&self, from: usize, n: usize, align: usize, skew: usize) -> Option<usize> {
        self.claim_noted(from, n, align, skew).or_else(|| self.claim_anywhere(from, Wanted { n, align, skew }))
    }

    /// As [`claim_first_fit`](Self::claim_first_fit), where a bounded search of the noted free runs found nothing. The zone may be full. Or too many
    /// hints are superfluous, or a fork cut off the thread that was about to note a free run.
    #[cold]
    fn claim_anywhere(&self, from: usize, wanted: Wanted) -> Option<usize> {
        let Wanted { n, align, skew } = wanted;
        let scan = |from| self.used.find_clear_run(from, n, align, skew);
        #[cfg(loom)]
        if self.index.is_off {
            return self.claim_found(from, n, scan);
        }
        let search = self.failures.begin(from, wanted)?;
        let found = self
            .claim_found(from, n, |from| self.index.lowest_past_hints(from, wanted))
            .or_else(|| self.claim_found(from, n, scan));
        if found.is_none() {
            self.failures.remember(search);
        }
        found
    }

    /// As [`claim_first_fit`](Self::claim_first_fit), from the noted free runs.
    pub(super) fn claim_noted(&self, from: usize, n: usize, align: usize, skew: usize) -> Option<usize> {
        self.claim_found(from, n, |from| self.index.lowest(from, Wanted { n, align, skew }))
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

    /// Claims a free run at or above `from` whose pages are all in `resident`, in the shortest of [`tuning::max_resident_probes`] free runs
    /// that has one. A free run is looked at `beyond` pages further than in other searches.
    pub(super) fn claim_resident(
        &self,
        from: usize,
        resident: Bitmap<'static>,
        n: usize,
        align: usize,
        skew: usize,
        beyond: usize,
    ) -> Option<usize> {
        let wanted = Wanted { n, align, skew };
        let place_in = |start: usize, end: usize| {
            resident.set_runs(start, end - start).find_map(|(start, len)| wanted.place_in(start, start + len))
        };
        let start = self.index.shortest(from, wanted, tuning::max_resident_probes(), beyond, place_in)?;
        self.try_claim(start, n).then_some(start)
    }

    /// Claims exactly `[start, start + n)`, or nothing.
    pub(super) fn try_claim(&self, start: usize, n: usize) -> bool {
        if start + n > self.len() {
            return false;
        }
        match self.used.try_claim(start, n) {
            Ok(()) => {
                self.index.used(start, n);
                self.index.claimed(start, n);
                true
            }
            Err(taken) => {
                // Another thread may have seen the bits of the failed claim, and taken these pages for used.
                let end = (taken + 1).next_multiple_of(WORD_BITS).min(start + n);
                self.index.used(taken.min(self.len() - 1), 1);
                self.note_freed(start, end - start);
                false
            }
        }
    }

    /// Frees `[start, start + n)`, which the caller owns.
    pub(super) fn release(&self, start: usize, n: usize) {
        if n > 0 {
            self.used.release(start, n);
            self.note_freed(start, n);
        }
    }

    fn note_freed(&self, start: usize, n: usize) {
        let longest = self.index.freed(start, n);
        #[cfg(loom)]
        if self.index.is_off {
            return;
        }
        self.failures.freed(longest);
    }
}
