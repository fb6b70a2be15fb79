//! Changing the length of a run, in place or elsewhere.
#![allow(unsafe_code, reason = "hands out memory")]

use std::ptr::NonNull;

use super::{Limit, RunUse, Shortage, Zone};
use crate::arena::{moved, thread_cache};
use crate::os::{self, HUGE_PAGE_BYTES};
use crate::tuning;

impl Zone {
    /// Hands out a run of at least `bytes` bytes for the contents of another run, which is `len` bytes long. Also says whether the contents
    /// must be copied: the first `len` bytes of the new run are all resident, or do not read as zeroes, or there are too many mappings. The caller counts the request.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn claim_to_move(
        &self,
        bytes: usize,
        align: usize,
        len: usize,
    ) -> Result<(NonNull<u8>, bool), Shortage> {
        let pages = self.pages(bytes);
        let start = self.claim_to_grow_on(bytes, align).ok_or(Shortage::Full)?;
        let (align, skew) = self.align_and_skew(bytes, align);
        let start = self.commit_or_move(start, pages, RunUse::of_run(bytes), align, skew)?;
        let moved = self.pages(len);
        let resident = self.residency.resident(start, moved);
        let fresh = self.account(start, pages, Limit::Cap)?;
        // A move replaces the resident pages of the new place. If all are resident, a copy keeps them. Else the place is emptied for the
        // move.
        let is_copied = resident == moved
            || !moved::may_move()
            // SAFETY: claimed and committed above; nobody needs its contents.
            || resident > 0 && !unsafe { self.residency.empty(start, moved) };
        if fresh > 0 && moved < pages {
            self.prefault_edges(start + moved, pages - moved);
        }
        // Moved pages are not faulted in.
        let moved_bytes = if is_copied { 0 } else { self.bytes(moved - resident) };
        self.count(self.bytes(pages), fresh.saturating_sub(moved_bytes));
        self.residency.mark_dirty(start, pages);
        Ok((self.address(start), is_copied))
    }

    /// Counts a request that was handed a run: for its thread, or else for the zone.
    pub(crate) fn count_request(&self, bytes: usize) {
        if !thread_cache::count_run(bytes) {
            self.counters().requested(bytes);
        }
    }

    /// Claims a run with room to grow. Claims one without room if addresses are scarce, or if more of it is resident.
    fn claim_to_grow_on(&self, bytes: usize, align: usize) -> Option<usize> {
        let pages = self.pages(bytes);
        let resident = |start: usize| self.residency.resident(start, pages);
        let with_room = self.claim_with_room(bytes, align);
        if with_room.is_some_and(|start| resident(start) == pages) {
            return with_room;
        }
        let without = self.claim_free(RunUse::of_run(bytes), bytes, align);
        let (Some(one), Some(other)) = (with_room, without) else { return with_room.or(without) };
        let (better, worse) = if resident(other) > resident(one) { (other, one) } else { (one, other) };
        self.runs.release(worse, pages);
        Some(better)
    }

    /// Claims a run at a multiple of its room; `None` where addresses are scarce.
    fn claim_with_room(&self, bytes: usize, align: usize) -> Option<usize> {
        let (room, pages) = (self.spec.growth_room, self.pages(bytes));
        // The zone begins at a multiple of a huge page, and so does each room.
        if room == 1 || align > HUGE_PAGE_BYTES {
            return None;
        }
        let room = pages.checked_mul(room)?.checked_next_power_of_two()?;
        let start = self.claim_aligned(RunUse::of_run(bytes), pages, room, 0)?;
        let is_mappable = self.may_map_to(start + pages);
        if !is_mappable {
            self.runs.release(start, pages);
        }
        is_mappable.then_some(start)
    }

    /// Whether all pages up to this one are mapped, or the process's limits leave room for [`tuning::address_headroom_factor`] times the missing bytes
    /// (`RLIMIT_AS`, `RLIMIT_DATA`, `vm.overcommit_memory=2`).
    fn may_map_to(&self, pages: usize) -> bool {
        let missing = self.bytes(pages.saturating_sub(self.mapped_end()));
        missing == 0 || missing.checked_mul(tuning::address_headroom_factor()).is_some_and(os::may_map_sparsely)
    }

    /// Changes the length of a run in place; `false` if it can't grow there. Shrinking never fails.
    ///
    /// # Safety
    /// `at` came from [`claim`](Self::claim) and is `old_bytes` long by now. When shrunk, nobody uses the end.
    pub(crate) unsafe fn resize(&self, at: NonNull<u8>, old_bytes: usize, new_bytes: usize) -> bool {
        let (old, new) = (self.pages(old_bytes), self.pages(new_bytes));
        let start = self.index(at);
        if new > old {
            let (more_at, more) = (start + old, new - old);
            let claim = || self.runs.try_claim(more_at, more);
            let claimed = claim() || self.release_some_cached(more) && claim();
            if !claimed {
                return false;
            }
            if self.commit(more_at, more).is_err() {
                self.give_up(more_at, more);
                return false;
            }
            let Ok(fresh) = self.make_usable(more_at, more, Limit::Cap) else { return false };
            self.residency.mark_dirty(more_at, more);
            self.count(self.bytes(more), fresh);
        } else if new < old {
            self.release_pages(start + new, old - new);
        }
        true
    }

    /// Frees a run whose pages were moved elsewhere.
    ///
    /// # Safety
    /// As for [`release`](Self::release); the kernel has taken all pages of the run.
    pub(crate) unsafe fn release_moved(&self, at: NonNull<u8>, bytes: usize) {
        let (start, pages) = (self.index(at), self.pages(bytes));
        self.forbid_huge_around(start..start + pages);
        self.residency.moved_away(start, pages);
        if self.moved.is_better_renewed(start, pages) {
            // The pages are gone, so that a fresh mapping costs nothing but the call.
            // SAFETY: the caller's pages, which it does not need any more.
            let renewed = unsafe { self.renew(start, pages) };
            if renewed.is_err_and(|refused| !refused.is_target_whole) {
                return self.counters().released(self.bytes(pages));
            }
        }
        self.release_pages(start, pages);
    }

    /// Notes that `len` bytes were moved from `from`, a place in the zone `old`, to the caller's run.
    pub(crate) fn moved_here(&self, to: NonNull<u8>, len: usize, old: &Self, from: NonNull<u8>) {
        let (start, pages) = (self.index(to), self.pages(len));
        let inner = old.moved.inner_edges(old.index(from), old.pages(len)).map(|page| self.pages(old.bytes(page)));
        self.moved.moved_here(start, pages, inner);
    }

    /// Never hands out the caller's run again, because another mapping may lie in a gap of it.
    pub(crate) fn abandon(&self, at: NonNull<u8>, bytes: usize) {
        let (start, pages) = (self.index(at), self.pages(bytes));
        self.residency.moved_away(start, pages);
        self.counters().released(self.bytes(pages));
    }

    /// Makes the kernel see one mapping in a run whose pages are to move.
    pub(crate) fn make_one_mapping(&self, at: NonNull<u8>, bytes: usize) {
        let start = self.index(at);
        self.huge.make_one_mapping(&self.residency, start..start + self.pages(bytes));
    }
}
