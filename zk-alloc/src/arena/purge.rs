//! Purging the free memory of all zones, also to make room for a request.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::budget::{self, Limit, resident_bytes};
use super::zone::Shortage;
use super::{Arena, Contents, Purge, cached_bytes};
use crate::counters;
use crate::tuning;

impl Arena {
    /// As [`alloc`](Self::alloc), and purges free memory elsewhere to make room.
    #[cold]
    pub(super) fn alloc_within_budget(&self, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        if self.empty_large_caches() {
            if let Ok(at) = self.try_alloc(size, align, contents, Limit::Peak) {
                return Some(at);
            }
        }
        match self.try_alloc(size, align, contents, Limit::Cap) {
            Ok(at) => {
                // After the allocation, so that its resident pages are not purged. Its other pages are only accounted so far.
                self.purge_to(budget::peak_limit(0).saturating_sub(tuning::purge_ahead_bytes()));
                Some(at)
            }
            Err(Shortage::Full | Shortage::Refused) => None,
            Err(Shortage::OverBudget) => {
                if !budget::may_make_room(size, cached_bytes()) {
                    return None;
                }
                // A block in a thread cache keeps its slab alive, which may lie where a run would fit.
                self.size_classes.empty_caches(self.slab_zone());
                self.purge_to(budget::max_bytes().saturating_sub(size.checked_add(tuning::purge_ahead_bytes())?));
                self.try_alloc(size, align, contents, Limit::Cap).ok()
            }
        }
    }

    /// Purges free memory until at most `limit_bytes` are resident, and notes it if that fails.
    fn purge_to(&self, limit_bytes: usize) {
        self.trim_now(limit_bytes, || ());
        if resident_bytes() > limit_bytes {
            budget::nothing_left_to_purge();
        }
    }

    /// Empties thread caches if they hold much of the memory in use, so that their slabs return to the zone. Each cache costs its thread a
    /// refill, so the program must request as much memory again before the next time. Returns whether they were emptied.
    fn empty_large_caches(&self) -> bool {
        /// Bytes served when the caches were last emptied.
        static LAST_BYTES: AtomicU64 = AtomicU64::new(0);
        let much = counters::used_bytes() / tuning::cached_part();
        let (last, now) = (LAST_BYTES.load(Ordering::Relaxed), self.served_bytes());
        let is_due = now >= last.saturating_add(much as u64)
            && self.size_classes.cached_bytes() >= much
            && LAST_BYTES.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            self.size_classes.empty_caches(self.slab_zone());
        }
        is_due
    }

    /// Purges free memory until at most `keep_bytes` are resident, or no free memory is. Returns the bytes purged.
    pub(crate) fn trim(&self, keep_bytes: usize, how: Purge) -> usize {
        if how == Purge::Lazily {
            // Lazily purged memory stays accounted, so the resident size does not tell when to stop.
            self.size_classes.empty_caches(self.slab_zone());
            return self.trim_zones(resident_bytes().saturating_sub(keep_bytes), how);
        }
        self.trim_now(keep_bytes, || {
            if keep_bytes == 0 {
                self.size_classes.vacate_caches(self.slab_zone());
            } else {
                self.size_classes.empty_caches(self.slab_zone());
            }
        })
    }

    /// Purges free runs. If they are not enough, calls `empty_caches`, then purges the free pages of slabs.
    fn trim_now(&self, keep_bytes: usize, empty_caches: impl FnOnce()) -> usize {
        let surplus = || resident_bytes().saturating_sub(keep_bytes);
        let mut gone = self.trim_zones(surplus(), Purge::Now);
        if surplus() > 0 {
            empty_caches();
            gone += self.size_classes.purge(self.slab_zone(), surplus());
            gone += self.trim_zones(surplus(), Purge::Now);
        }
        gone
    }

    fn trim_zones(&self, wanted_bytes: usize, how: Purge) -> usize {
        let zones = self.region.zones().iter().rev();
        zones.fold(0, |gone, zone| gone + zone.trim(wanted_bytes.saturating_sub(gone), how))
    }

    /// Frees the runs in thread caches.
    pub(crate) fn release_cached(&self) {
        for zone in self.region.zones() {
            zone.release_cached();
        }
    }
}
