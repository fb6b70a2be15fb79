//! The length of an allocation, and how it changes.
#![allow(unsafe_code, reason = "copies memory, and frees it")]

use std::ptr::NonNull;

use super::Arena;
use crate::classes::Class;
use crate::os;
use crate::route::{self, Path, RunKind};
use crate::tuning;

impl Arena {
    /// The bytes of the memory at `at`, which serves a request for `size` bytes.
    pub(crate) fn length(&self, at: NonNull<u8>, size: usize) -> usize {
        let run_bytes = || self.region.zone(self.region.zone_of(at)).run_bytes(size);
        self.size_classes.class_at(at).map_or_else(run_bytes, Class::block_bytes)
    }

    /// Changes the length of an allocation in place. Returns `false` if there is no room, or if the new length belongs elsewhere:
    /// - a block would be at most half used;
    /// - a run grows out of the lengths of its zone;
    /// - a run shrinks out of them, to less than half or below [`route::min_bytes`].
    ///
    /// # Safety
    /// `at` came from [`alloc`](Self::alloc), with this `align`, and is `old_size` bytes long by now; nobody uses its bytes beyond
    /// `new_size`.
    pub(crate) unsafe fn resize(&self, at: NonNull<u8>, old_size: usize, new_size: usize, align: usize) -> bool {
        if let Some(class) = self.size_classes.class_at(at) {
            // A request for half of a block or less gets a smaller block.
            return new_size <= class.block_bytes() && new_size > class.block_bytes() / 2;
        }
        let runs = self.region.zone_of(at);
        let belongs = route::path(new_size, align) == Path::Run(runs);
        let may_stay = new_size >= route::min_bytes(runs)
            && match runs {
                RunKind::Huge => new_size >= old_size / 2,
                RunKind::Aligned | RunKind::Mid => new_size >= old_size / 2 && new_size <= old_size,
            };
        // SAFETY: the caller's; memory that is no block is a run of its own.
        (belongs || may_stay) && unsafe { self.region.zone(runs).resize(at, old_size, new_size) }
    }

    /// Shrinks an allocation in place, even if its new length belongs elsewhere, because there was no memory there.
    ///
    /// # Safety
    /// As for [`resize`](Self::resize); `new_size` is less than `old_size`.
    pub(crate) unsafe fn shrink_in_place(&self, at: NonNull<u8>, old_size: usize, new_size: usize) {
        if self.size_classes.class_at(at).is_none() {
            // SAFETY: the caller's; memory that is no block is a run of its own.
            unsafe { self.region.zone(self.region.zone_of(at)).resize(at, old_size, new_size) };
        }
    }

    /// Moves a large run to a place with room for its new length. Returns `None`, and leaves the run as it is, if that fails.
    ///
    /// The kernel moves the pages to the new place. If that place is all resident, the contents are copied instead. A move would lose the
    /// pages there, and leave as many missing at the old place. A copy costs less than these faults.
    ///
    /// `before_release` runs if the run was moved, before its old place is free.
    ///
    /// # Safety
    /// As for [`resize`](Self::resize); once an address is returned, nobody uses the old one.
    pub(crate) unsafe fn grow_elsewhere(
        &self,
        at: NonNull<u8>,
        old_size: usize,
        new_size: usize,
        align: usize,
        before_release: impl FnOnce(),
    ) -> Option<NonNull<u8>> {
        if old_size < tuning::move_min_bytes() || new_size < old_size {
            return None;
        }
        let (old_runs, new_runs) = (self.region.zone_of(at), route::run_kind(new_size, align));
        let (old, new) = (self.region.zone(old_runs), self.region.zone(new_runs));
        let len = old.run_bytes(old_size);
        if len > new.run_bytes(new_size) {
            return None;
        }
        let (to, is_copied) = new.claim_to_move(new_size, align, len).ok()?;
        #[cfg(feature = "c-api")]
        if !self.lengths.set(new_runs, new, to, new_size) {
            // SAFETY: claimed above, and given to nobody.
            unsafe { new.release(to, new_size) };
            return None;
        }
        if is_copied {
            // SAFETY: both runs belong to the caller alone, are committed, and are at least `old_size` bytes long.
            unsafe { self.copy(at, to.as_ptr(), old_size) };
        } else {
            old.make_one_mapping(at, len);
            new.counters().system_call();
            // SAFETY: both runs belong to the caller alone, are committed, and are at least `len` bytes long; `to` holds zeroes.
            if let Err(refused) = unsafe { os::move_pages(at.as_ptr(), to.as_ptr(), len) } {
                new.counters().refused(refused.errno, "move pages", len);
                #[cfg(feature = "c-api")]
                self.lengths.take(new_runs, new, to);
                if refused.is_target_whole {
                    // SAFETY: claimed above, and given to nobody.
                    unsafe { new.release(to, new_size) };
                } else {
                    new.abandon(to, new_size);
                }
                return None;
            }
            new.moved_here(to, len, old, at);
        }
        #[cfg(feature = "c-api")]
        self.lengths.take(old_runs, old, at);
        new.count_request(new_size);
        before_release();
        if is_copied {
            // SAFETY: the caller's.
            unsafe { old.release(at, old_size) };
        } else {
            // SAFETY: the caller's; all pages of the run are at `to`.
            unsafe { old.release_moved(at, old_size) };
        }
        Some(to)
    }
}
