//! The pages of a zone: used or free. Claims free runs.

use super::bitmap::{Bitmap, WORD_BITS};
use super::failures::Failures;
use super::holes::{Holes, Wanted};
use crate::os::Errno;
use crate::tuning;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Runs {
    used: Bitmap<'static>,
    holes: Holes,
    failures: Failures,
}

impl Runs {
    /// `used` is clear, so all pages are free.
    ///
    /// # Errors
    /// The system's error, if it grants no memory.
    pub(super) fn new(used: Bitmap<'static>) -> Result<Self, Errno> {
        Ok(Self { used, holes: Holes::new(used)?, failures: Failures::new() })
    }

    /// As [`new`](Self::new), but holes are neither noted nor searched.
    #[cfg(loom)]
    pub(super) fn without_holes(used: Bitmap<'static>) -> Result<Self, Errno> {
        let mut runs = Self::new(used)?;
        runs.holes.is_off = true;
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

    /// As [`claim_first_fit`](Self::claim_first_fit), where a bounded search of the noted holes found nothing. The zone may be full. Or too many
    /// hints are superfluous, or a fork cut off the thread that was about to note a hole.
    #[cold]
    fn claim_anywhere(&self, from: usize, wanted: Wanted) -> Option<usize> {
        let Wanted { n, align, skew } = wanted;
        let scan = |from| self.used.find_clear_run(from, n, align, skew);
        #[cfg(loom)]
        if self.holes.is_off {
            return self.claim_found(from, n, scan);
        }
        let search = self.failures.begin(from, wanted)?;
        let found = self
            .claim_found(from, n, |from| self.holes.lowest_past_hints(from, wanted))
            .or_else(|| self.claim_found(from, n, scan));
        if found.is_none() {
            self.failures.remember(search);
        }
        found
    }

    /// As [`claim_first_fit`](Self::claim_first_fit), from the noted holes.
    pub(super) fn claim_noted(&self, from: usize, n: usize, align: usize, skew: usize) -> Option<usize> {
        self.claim_found(from, n, |from| self.holes.lowest(from, Wanted { n, align, skew }))
    }

    /// Claims the run that `look` finds, and looks again if another thread was faster.
    fn claim_found(&self, from: usize, n: usize, look: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        loop {
            let start = look(from)?;
            if self.try_claim(start, n) {
                return Some(start);
            }
        }
    }

    /// Claims a free run at or above `from` whose pages are all in `resident`, in the shortest of [`tuning::look_holes`] holes
    /// that has one. A hole is looked at `beyond` pages further than in other searches.
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
        let start = self.holes.shortest(from, wanted, tuning::look_holes(), beyond, place_in)?;
        self.try_claim(start, n).then_some(start)
    }

    /// Claims exactly `[start, start + n)`, or nothing.
    pub(super) fn try_claim(&self, start: usize, n: usize) -> bool {
        if start + n > self.len() {
            return false;
        }
        match self.used.try_claim(start, n) {
            Ok(()) => {
                self.holes.used(start, n);
                self.holes.claimed(start, n);
                true
            }
            Err(taken) => {
                // Another thread may have seen the bits of the failed claim, and taken these pages for used.
                let end = (taken + 1).next_multiple_of(WORD_BITS).min(start + n);
                self.holes.used(taken.min(self.len() - 1), 1);
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
        let longest = self.holes.freed(start, n);
        #[cfg(loom)]
        if self.holes.is_off {
            return;
        }
        self.failures.freed(longest);
    }
}
