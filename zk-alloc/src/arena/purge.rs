//! Purging the free memory of all zones, also to make room for a request.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::budget::{self, Limit, resident_bytes};
use super::residency::Allowance;
use super::zone::Shortage;
use super::{Arena, Contents, Purge, cached_bytes};
use crate::counters;
use crate::tuning;

impl Arena {
    /// As [`alloc`](Self::alloc), and purges free memory elsewhere to make room.
    #[cold]
    pub(super) fn alloc_within_budget(&self, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        if self.empty_large_caches(size) {
            if let Ok(at) = self.try_alloc(size, align, contents, Limit::Peak) {
                return Some(at);
            }
        }
        // A search for free memory that cannot be there takes as long as one that finds it.
        let served = if budget::is_full(size) {
            Err(Shortage::OverBudget)
        } else {
            self.try_alloc(size, align, contents, Limit::Cap)
        };
        match served {
            Ok(at) => {
                // After the allocation, so that its resident pages are not purged. Its other pages are only accounted so far.
                let gone = self.purge_for(size, budget::peak_limit(0).saturating_sub(tuning::purge_ahead_bytes()));
                budget::purged_at_peak(gone, self.served_bytes());
                Some(at)
            }
            Err(Shortage::Full | Shortage::Refused) => None,
            Err(Shortage::OverBudget) => {
                if self.ask_for_untouched(size) {
                    if let Ok(at) = self.try_alloc(size, align, contents, Limit::Cap) {
                        return Some(at);
                    }
                }
                if !budget::may_make_room(size, cached_bytes()) {
                    return None;
                }
                let limit = budget::max_bytes().saturating_sub(size.checked_add(tuning::purge_ahead_bytes())?);
                // A block in a thread cache keeps its slab alive, which may lie where a run would fit.
                let cached_before = cached_bytes();
                self.size_classes.empty_some_caches(self.slab_zone(), size);
                let gone = self.purge_for(size, limit);
                let at = self.try_alloc(size, align, contents, Limit::Cap).ok();
                if at.is_none() && gone == 0 && cached_bytes() >= cached_before {
                    budget::cap_holds(cached_bytes());
                }
                at
            }
        }
    }

    /// Asks the kernel how much of the accounted memory nobody has touched yet, so that the cap does not count it. Asks rarely, and about
    /// [a part](tuning::ask_bytes) of the memory at a time. Returns whether that may make room for `size` bytes.
    fn ask_for_untouched(&self, size: usize) -> bool {
        if size > budget::max_bytes() || !budget::may_ask_for_untouched() {
            return false;
        }
        let mut left = tuning::ask_bytes();
        let untouched: usize = self.region.zones().iter().rev().map(|zone| zone.untouched_bytes(&mut left)).sum();
        budget::set_untouched(untouched);
        untouched > 0
    }

    /// Purges free memory for a request of `brought_bytes`, until at most `limit_bytes` are resident or the request has done its part.
    /// Returns the bytes purged. Notes it if there was nothing to purge.
    pub(super) fn purge_for(&self, brought_bytes: usize, limit_bytes: usize) -> usize {
        let surplus = resident_bytes().saturating_sub(limit_bytes);
        let gone = self.trim_within(&mut Allowance::of_request(brought_bytes, surplus), Purge::Now);
        if gone == 0 && surplus > 0 {
            budget::nothing_left_to_purge();
        }
        gone
    }

    /// Empties thread caches, some at a time, if they hold much of the memory in use, so that their slabs return to the zone. Each cache costs
    /// its thread a refill, so the program must request as much memory again before a cache's next time. Returns whether some were emptied.
    fn empty_large_caches(&self, brought_bytes: usize) -> bool {
        /// Bytes served when the caches were last emptied.
        static LAST_BYTES: AtomicU64 = AtomicU64::new(0);
        let much = counters::used_bytes() / tuning::cached_part();
        let (last, now) = (LAST_BYTES.load(Ordering::Relaxed), self.served_bytes());
        let is_due = now >= last.saturating_add((much / self.size_classes.calls_to_empty(brought_bytes)) as u64)
            && self.size_classes.cached_bytes() >= much
            && LAST_BYTES.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            self.size_classes.empty_some_caches(self.slab_zone(), brought_bytes);
        }
        is_due
    }

    /// A request's part of a purge by time, down to `keep_bytes`. Returns the bytes purged. Thread caches are emptied only if nothing else is
    /// left.
    pub(super) fn purge_by_tick(&self, keep_bytes: usize) -> usize {
        let gone = self.purge_for(0, keep_bytes);
        if gone > 0 || resident_bytes() <= keep_bytes {
            return gone;
        }
        self.release_cached();
        self.size_classes.empty_some_caches(self.slab_zone(), 0);
        self.purge_for(0, keep_bytes)
    }

    /// Purges free memory until at most `keep_bytes` are resident, or no free memory is. Returns the bytes purged.
    pub(crate) fn trim(&self, keep_bytes: usize, how: Purge) -> usize {
        if how == Purge::Lazily {
            // Lazily purged memory stays accounted, so the resident size does not tell when to stop.
            self.size_classes.empty_caches(self.slab_zone());
            self.release_cached();
            return self.trim_zones(&mut Allowance::unlimited(resident_bytes().saturating_sub(keep_bytes)), how);
        }
        let surplus = || Allowance::unlimited(resident_bytes().saturating_sub(keep_bytes));
        self.release_cached();
        let mut gone = self.trim_zones(&mut surplus(), Purge::Now);
        if surplus().bytes > 0 {
            if keep_bytes == 0 {
                self.size_classes.vacate_caches(self.slab_zone());
            } else {
                self.size_classes.empty_caches(self.slab_zone());
            }
            gone += self.trim_within(&mut surplus(), Purge::Now);
        }
        gone
    }

    /// Purges free pages of slabs, which may free slabs, and free runs.
    fn trim_within(&self, allowance: &mut Allowance, how: Purge) -> usize {
        let runs = self.trim_zones(allowance, how);
        let pages = self.size_classes.purge(self.slab_zone(), allowance);
        runs + pages + if pages > 0 { self.trim_zones(allowance, how) } else { 0 }
    }

    fn trim_zones(&self, allowance: &mut Allowance, how: Purge) -> usize {
        self.region.zones().iter().rev().map(|zone| zone.trim(allowance, how)).sum()
    }

    /// Frees the runs in thread caches.
    pub(crate) fn release_cached(&self) {
        for zone in self.region.zones() {
            zone.release_cached();
        }
    }
}
