//! Withholding free memory from a forked child.
#![allow(unsafe_code, reason = "purges memory, and has the kernel withhold it from a child")]

use std::ops::Range;
use std::ptr::NonNull;

use super::{Purge, Zone};
use crate::os::{self, Errno, HUGE_PAGE_BYTES};

impl Zone {
    /// Calls `visit` with each run of free resident pages that has at least `min_bytes`, from the top address down.
    pub(crate) fn free_runs(&self, min_bytes: usize, mut visit: impl FnMut(Range<usize>)) {
        let resident = self.residency.resident_bits();
        let mut end = self.mapped_end();
        while let Some((start, len)) = resident.last_run_without(self.runs.used(), 0, end) {
            end = start;
            let run = self.without_split_blocks(start..start + len);
            if self.bytes(run.len()) >= min_bytes.max(1) {
                visit(run);
            }
        }
    }

    /// The part of a run whose withholding splits no huge page.
    fn without_split_blocks(&self, run: Range<usize>) -> Range<usize> {
        if !self.huge.are_asked(self.bytes(run.start)) {
            return run;
        }
        let block = self.pages(HUGE_PAGE_BYTES);
        let start = run.start.next_multiple_of(block);
        start..(run.end / block * block).max(start)
    }

    /// Claims those parts of a run that are free and have at least `min_bytes`, and calls `claimed` with each of them. The caller owns
    /// them from then on.
    pub(crate) fn claim_parts(
        &self,
        run: Range<usize>,
        min_bytes: usize,
        claimed: &mut impl FnMut(NonNull<u8>, usize),
    ) {
        let (start, len) = (run.start, run.len());
        if self.bytes(len) < min_bytes.max(1) {
            return;
        }
        if self.runs.try_claim(start, len) {
            claimed(self.address(start), self.bytes(len));
        } else if len > 1 {
            let half = start + len / 2;
            self.claim_parts(start..half, min_bytes, claimed);
            self.claim_parts(half..start + len, min_bytes, claimed);
        }
    }

    /// Has a forked child read zeroes in a range, instead of inheriting it.
    ///
    /// # Errors
    /// The system's. After `ENOMEM`, a part may be withheld.
    ///
    /// # Safety
    /// The caller owns the range, and nobody needs its contents. The caller [gives the range back](Self::give_back), also after `ENOMEM`.
    pub(crate) unsafe fn withhold(&self, at: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
        self.counters().system_call();
        // SAFETY: the caller's.
        unsafe { os::wipe_on_fork(at.as_ptr(), bytes) }
    }

    /// Frees a range that was claimed, and not withheld.
    ///
    /// # Safety
    /// The caller owns the range, and nobody needs its contents.
    pub(crate) unsafe fn release_claimed(&self, at: NonNull<u8>, bytes: usize) {
        self.runs.release(self.index(at), self.pages(bytes));
    }

    /// Frees a range that was withheld from a child. In the child, it has no memory.
    ///
    /// # Safety
    /// The caller owns the range, and nobody needs its contents.
    pub(crate) unsafe fn give_back(&self, at: NonNull<u8>, bytes: usize, is_in_child: bool) {
        let (start, pages) = (self.index(at), self.pages(bytes));
        self.counters().system_call();
        // SAFETY: the caller's.
        let kept = unsafe { os::keep_on_fork(at.as_ptr(), bytes) };
        match kept {
            // Where another thread was about to withhold the range, the child may have some of it.
            // SAFETY: the caller's; it is committed, as it was free and resident.
            Ok(()) if is_in_child => _ = unsafe { self.purge_and_free(start, pages, Purge::Now) },
            Ok(()) => self.runs.release(start, pages),
            Err(refused) => {
                self.counters().refused(refused, "let children inherit memory", bytes);
                // Nobody gets this range again: a child would not inherit what it holds.
                // SAFETY: as above.
                unsafe { self.purge(start, pages, Purge::Now) };
            }
        }
    }
}
