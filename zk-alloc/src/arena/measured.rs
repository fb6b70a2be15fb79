//! Memory for callers that do not pass its length when they free it, such as `malloc`'s.
#![allow(unsafe_code, reason = "frees memory")]

use std::ptr::NonNull;

use super::{Arena, Contents, NotFreeable, Unserved};
use crate::route::{self, Path};

impl Arena {
    /// As [`alloc`](Self::alloc), for a caller that will not pass the length when it frees the memory.
    #[inline(always)]
    pub(crate) fn alloc_measured(
        &self,
        size: usize,
        align: usize,
        contents: Contents,
    ) -> Result<NonNull<u8>, Unserved> {
        let at = self.alloc(size, align, contents)?;
        if let Path::Run(_) = route::path(size, align) {
            let runs = self.region.zone_of(at);
            if !self.lengths.set(runs, self.region.zone(runs), at, size) {
                // SAFETY: handed out above, and given to nobody.
                unsafe { self.dealloc(at, size) };
                return Err(Unserved::BackingServes);
            }
        }
        Ok(at)
    }

    /// The length in bytes of the allocation at `at`, an address of the region. The memory came from
    /// [`alloc_measured`](Self::alloc_measured).
    ///
    /// # Errors
    /// What is wrong, if no allocation begins there.
    #[inline(always)]
    pub(crate) fn measure(&self, at: NonNull<u8>) -> Result<usize, NotFreeable> {
        match self.size_classes.class_at(at) {
            Some(class) => self.size_classes.check(class, at).map(|()| class.block_bytes()),
            None => {
                let runs = self.region.zone_of(at);
                self.lengths.get(runs, self.region.zone(runs), at).ok_or(NotFreeable::NoRun)
            }
        }
    }

    /// Frees a block into this thread's cache. Returns `false`, and does nothing, if it is no block, if it looks as if it had been freed
    /// before, or if the cache does not take it.
    ///
    /// # Safety
    /// As for [`dealloc_measured`](Self::dealloc_measured).
    #[inline(always)]
    pub(crate) unsafe fn put_cached_measured(&self, at: NonNull<u8>) -> bool {
        // SAFETY: the caller's.
        self.size_classes.class_at(at).is_some_and(|class| unsafe { self.size_classes.put_checked(class, at) })
    }

    /// As [`dealloc`](Self::dealloc), for memory from [`alloc_measured`](Self::alloc_measured).
    ///
    /// # Errors
    /// What is wrong, if no allocation begins at `at`. Nothing was done.
    ///
    /// # Safety
    /// `at` lies in the region. If an allocation begins there, it belongs to the caller, and nobody uses it any more.
    #[inline(always)]
    pub(crate) unsafe fn dealloc_measured(&self, at: NonNull<u8>) -> Result<(), NotFreeable> {
        if let Some(class) = self.size_classes.class_at(at) {
            self.size_classes.check(class, at)?;
            // SAFETY: the caller's.
            unsafe { self.size_classes.dealloc(self.slab_zone(), class, at) };
            return Ok(());
        }
        let runs = self.region.zone_of(at);
        let zone = self.region.zone(runs);
        let bytes = self.lengths.take(runs, zone, at).ok_or(NotFreeable::NoRun)?;
        // SAFETY: the caller's; memory with a noted length is a run of its own.
        unsafe { zone.release(at, bytes) };
        Ok(())
    }

    /// Notes the new length of a run that was resized.
    ///
    /// # Safety
    /// `at` belongs to the caller, and is `size` bytes long by now.
    pub(crate) unsafe fn measured_anew(&self, at: NonNull<u8>, size: usize) {
        if self.size_classes.class_at(at).is_none() {
            let runs = self.region.zone_of(at);
            // The run's entry has been usable since the run was allocated.
            self.lengths.set(runs, self.region.zone(runs), at, size);
        }
    }
}
