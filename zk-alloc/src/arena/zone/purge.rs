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
        let mut end = self.committed.granules();
        while gone < wanted_bytes {
            let Some((start, len)) = resident.last_run_without(self.runs.used(), 0, end) else { break };
            let wanted = self.granules(wanted_bytes - gone).min(len);
            gone += self.trim_run(start + len - wanted, wanted, how);
            end = start + len - wanted;
        }
        gone
    }

    /// Purges the free granules of `[start, start + len)`, in one piece if no granule is used.
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

    /// Purges the pages of granules. If they go at once, forbids the blocks around them to be huge. Returns how many bytes were purged.
    ///
    /// # Safety
    /// As for [`Residency::purge`].
    pub(super) unsafe fn purge(&self, start: usize, granules: usize, how: Purge) -> usize {
        if how == Purge::Now {
            self.forbid_huge_around(start..start + granules);
        }
        // SAFETY: the caller's.
        unsafe { self.residency.purge(start, granules, how) }
    }

    /// Purges the free memory of `[at, at + bytes)` that is not accounted as resident. The kernel may have brought it into memory. Returns
    /// the number of system calls. Callers count them if a thread of the program makes them.
    pub(crate) fn purge_unaccounted(&self, at: NonNull<u8>, bytes: usize) -> usize {
        let (start, granules) = (self.index(at), self.granules(bytes));
        if self.residency.resident(start, granules) == granules {
            return 0;
        }
        let mut calls = 0;
        let is_unaccounted = |&granule: &usize| self.residency.resident(granule, 1) == 0;
        for granule in (start..start + granules).filter(is_unaccounted) {
            if self.runs.try_claim(granule, 1) {
                if is_unaccounted(&granule) {
                    self.forbid_huge_around(granule..granule + 1);
                    // SAFETY: this thread owns the granule since the claim above. It was free before, and is committed, as the caller's
                    // memory is. If the kernel refuses, it stays as it is.
                    let _ = unsafe { os::discard(self.address(granule).as_ptr(), self.spec.granule_bytes) };
                    calls += 1;
                }
                self.runs.release(granule, 1);
            }
        }
        calls
    }
}
