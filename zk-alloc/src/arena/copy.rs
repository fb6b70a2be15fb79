//! Copying an allocation to another place, for a request to change its length.
#![allow(unsafe_code, reason = "copies memory")]

use std::ptr::{NonNull, copy_nonoverlapping};

use super::layout::Density;
use super::{Arena, of};
use crate::{os, tuning};

/// How densely the runs that were copied had been used.
static COPIES: Density = Density::new();

impl Arena {
    /// Copies the first `bytes` of the arena's allocation at `from`. A run of which the program touched only a part takes no more memory at
    /// its new place: pages that were never touched are not copied.
    ///
    /// # Safety
    /// Both allocations are at least `bytes` long, belong to the caller alone, and do not overlap.
    pub(crate) unsafe fn copy(&self, from: NonNull<u8>, to: *mut u8, bytes: usize) {
        let is_sparse = || {
            // Whole pages: the last one may hold anything behind the allocation.
            let missing = |in_memory: usize| bytes.saturating_sub(in_memory) >= bytes / tuning::sparse_copy_part();
            // SAFETY: asks about memory of the caller, and changes nothing.
            unsafe { os::count_resident(from.as_ptr(), bytes) }.is_some_and(missing)
        };
        // SAFETY: the caller's. Runs begin with a page, and the arena's memory is private and anonymous.
        let is_copied = bytes >= tuning::sparse_copy_min_bytes()
            && self.is_run(from)
            && of(to).is_some_and(|(_, to)| self.is_run(to))
            && COPIES.is_sparse(bytes, tuning::max_copy_trust(), is_sparse)
            && unsafe { os::copy_held(from.as_ptr(), to, bytes) };
        if !is_copied {
            // SAFETY: the caller's.
            unsafe { copy_nonoverlapping(from.as_ptr(), to, bytes) };
        }
    }

    fn is_run(&self, at: NonNull<u8>) -> bool {
        self.size_classes.class_at(at).is_none()
    }
}
