//! Purging a zone's free memory.
#![allow(unsafe_code, reason = "purges memory")]

use std::ptr::NonNull;

use super::{Purge, Zone};
use crate::os;

impl Zone {
    /// Purges free memory, from the top address down, until at least `wanted_bytes` are purged or no free memory is resident. Returns how
    /// many bytes were purged.
    pub(crate) fn trim(&self, wanted_bytes: usize, how: Purge) -> usize {
        self.release_cached();
        let resident = self.residency.resident_bits();
        let mut gone = 0;
        let mut end = self.mapped_end();
        while gone < wanted_bytes {
            let Some((start, len)) = resident.last_run_without(self.runs.used(), 0, end) else { break };
            let wanted = self.pages(wanted_bytes - gone).min(len);
            gone += self.trim_run(start + len - wanted, wanted, how);
            end = start + len - wanted;
        }
        gone
    }

    /// Purges the free pages of `[start, start + len)`, at once if no page is used.
    fn trim_run(&self, start: usize, len: usize, how: Purge) -> usize {
        if !self.runs.try_claim(start, len) {
            if len == 1 {
                return 0;
            }
            let half = len / 2;
            return self.trim_run(start, half, how) + self.trim_run(start + half, len - half, how);
        }
        // SAFETY: this thread owns the run since the claim above. The run is committed, as is all memory that the callers look at.
        let gone = unsafe { self.purge(start, len, how) };
        self.runs.release(start, len);
        gone
    }

    /// Purges pages. If they go at once, forbids the blocks around them to be huge. Returns how many bytes were purged.
    ///
    /// # Safety
    /// As for [`Residency::purge`].
    pub(super) unsafe fn purge(&self, start: usize, pages: usize, how: Purge) -> usize {
        if how == Purge::Now {
            self.forbid_huge_around(start..start + pages);
        }
        // SAFETY: the caller's.
        unsafe { self.residency.purge(start, pages, how) }
    }

    /// Purges the free memory of `[at, at + bytes)` that is not accounted as resident. The kernel may have brought it into memory. Returns
    /// the number of system calls. Callers count them if a thread of the program makes them.
    pub(crate) fn purge_unaccounted(&self, at: NonNull<u8>, bytes: usize) -> usize {
        let (start, pages) = (self.index(at), self.pages(bytes));
        if self.residency.resident(start, pages) == pages {
            return 0;
        }
        let mut calls = 0;
        let is_unaccounted = |&page: &usize| self.residency.resident(page, 1) == 0;
        for page in (start..start + pages).filter(is_unaccounted) {
            if self.runs.try_claim(page, 1) {
                if is_unaccounted(&page) {
                    self.forbid_huge_around(page..page + 1);
                    // SAFETY: this thread owns the page since the claim above. It was free before, and is committed, as the caller's
                    // memory is. If the kernel refuses, it stays as it is.
                    let _ = unsafe { os::discard(self.address(page).as_ptr(), self.spec.page_bytes) };
                    calls += 1;
                }
                self.runs.release(page, 1);
            }
        }
        calls
    }
}
