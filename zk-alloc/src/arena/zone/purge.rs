//! Giving a zone's free memory back to the kernel.
#![allow(unsafe_code, reason = "gives memory back")]

use std::ptr::NonNull;

use super::{Purge, Zone};
use crate::os;

impl Zone {
    /// Purges free memory, from the top address down, until at least `wanted_bytes` are back or nothing
    /// free is resident. Returns how many bytes went.
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
        // SAFETY: the run is ours since the claim above, and committed, as all is that the callers look at.
        let gone = unsafe { self.purge(start, len, how) };
        self.runs.release(start, len);
        gone
    }

    /// Purges the pages of granules, for good if that is to be now, and returns how many bytes went.
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

    /// Purges what is free of `[at, at + bytes)`, and not known to be resident: the kernel may have brought it into memory.
    /// Returns the number of system calls, which are counted where a thread of the program makes them.
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
                    // SAFETY: the granule is ours since the claim above, free before, and committed, as the caller's memory is.
                    // Where the kernel refuses, it stays as it is.
                    let _ = unsafe { os::discard(self.address(granule).as_ptr(), self.spec.granule_bytes) };
                    calls += 1;
                }
                self.runs.release(granule, 1);
            }
        }
        calls
    }
}
