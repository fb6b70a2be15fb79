//! Changing the length of a run, where it stands or elsewhere.
#![allow(unsafe_code, reason = "hands out memory")]

use std::ptr::NonNull;

use super::{Limit, Shortage, Tenant, Zone};

impl Zone {
    /// Hands out a run of at least `bytes` bytes for the contents of another run, which is `len` bytes long. Also says whether the contents
    /// must be copied: the first `len` bytes of the new run are all resident, or do not read as zeroes.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn claim_to_move(
        &self,
        bytes: usize,
        align: usize,
        len: usize,
    ) -> Result<(NonNull<u8>, bool), Shortage> {
        let granules = self.granules(bytes);
        let start = self.claim_free(Tenant::of_run(bytes), bytes, align).ok_or(Shortage::Full)?;
        let moved = self.granules(len);
        let resident = self.residency.resident(start, moved);
        let fresh = self.commit_and_book(start, granules, Limit::Cap)?;
        // Resident pages would be lost where other pages move to.
        // SAFETY: claimed and committed above; nobody needs what it holds.
        let is_copied = resident == moved || resident > 0 && !unsafe { self.residency.empty(start, moved) };
        if fresh > 0 && moved < granules {
            self.page_in_edges(start + moved, granules - moved, true);
        }
        self.grown(granules, fresh);
        self.counters().requested(bytes);
        self.residency.soil(start, granules);
        Ok((self.address(start), is_copied))
    }

    /// Changes the length of a run where it stands; `false` if what follows it is taken. Shrinking never fails.
    ///
    /// # Safety
    /// `at` came from [`claim`](Self::claim) and is `old_bytes` long by now. When shrunk, nobody uses the end.
    pub(crate) unsafe fn resize(&self, at: NonNull<u8>, old_bytes: usize, new_bytes: usize) -> bool {
        let (old, new) = (self.granules(old_bytes), self.granules(new_bytes));
        let start = self.index(at);
        if new > old {
            let (more_at, more) = (start + old, new - old);
            let claim = || self.runs.try_claim(more_at, more);
            let claimed = claim() || self.release_kept() && claim();
            if !claimed {
                return false;
            }
            let Ok(fresh) = self.make_usable(more_at, more, Limit::Cap, true) else { return false };
            self.residency.soil(more_at, more);
            self.grown(more, fresh);
        } else if new < old {
            self.release_granules(start + new, old - new);
        }
        true
    }

    /// Takes back a run whose pages were moved elsewhere.
    ///
    /// # Safety
    /// As for [`release`](Self::release); the kernel has taken all pages of the run.
    pub(crate) unsafe fn release_moved(&self, at: NonNull<u8>, bytes: usize) {
        let (start, granules) = (self.index(at), self.granules(bytes));
        self.forbid_huge_around(start..start + granules);
        self.residency.forget(start, granules);
        self.release_granules(start, granules);
    }

    /// Leaves a run of the caller's unused for ever: it may have a hole in which another mapping lies.
    pub(crate) fn abandon(&self, at: NonNull<u8>, bytes: usize) {
        let (start, granules) = (self.index(at), self.granules(bytes));
        self.residency.forget(start, granules);
        self.counters().released(self.bytes(granules));
    }

    /// Has the kernel see one mapping in a run, whose pages are to move.
    pub(crate) fn make_one_mapping(&self, at: NonNull<u8>, bytes: usize) {
        let start = self.index(at);
        self.huge.make_one_mapping(&self.residency, start..start + self.granules(bytes));
    }
}
