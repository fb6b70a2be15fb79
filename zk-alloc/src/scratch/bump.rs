//! A bump pointer over a mapping. It deals in addresses only; modules above decide who holds which of them.
#![allow(unsafe_code, reason = "hands out parts of a mapping")]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;

use super::{MemoryRefused, ScratchExhausted};
use crate::arena::HugeAdvice;
use crate::config;
use crate::os::{self, Errno, HUGE_PAGE_BYTES, Mapping};
use crate::secret::wipe;

/// See the module's documentation.
///
/// Bytes at `used` and beyond are free. Bytes at `written` and beyond are zero, unless they are handed out now.
pub(super) struct Bump {
    memory: Mapping,
    /// Bytes from the start that are handed out, including the gaps that alignment left.
    used: Cell<usize>,
    /// The highest `used` since the last wipe or discard, as of the last resize or reset.
    written: Cell<usize>,
}

impl Bump {
    /// One mapping of at least `bytes`, faulted in as it is touched.
    pub(super) fn with_capacity(bytes: usize) -> Result<Self, MemoryRefused> {
        let refused = |Errno(errno)| MemoryRefused { asked_bytes: bytes, errno };
        // Whole huge pages: kernels from 6.7 on place such mappings on a huge-page boundary.
        let page = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { os::page_bytes() };
        let memory = os::map_zeroed(os::round_up(bytes, page).map_err(refused)?).map_err(refused)?;
        let (at, len) = (memory.start().as_ptr(), memory.len());
        // A refusal costs time and nothing else.
        let _ = match HugeAdvice::of(config::huge_pages()) {
            // SAFETY: the mapping made above.
            HugeAdvice::Forbid => unsafe { os::forbid_huge(at, len) },
            // SAFETY: as above.
            HugeAdvice::Ask if len >= HUGE_PAGE_BYTES => unsafe { os::advise_huge(at, len) },
            HugeAdvice::Ask | HugeAdvice::Leave => Ok(()),
        };
        Ok(Self { memory, used: Cell::new(0), written: Cell::new(0) })
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.used.get()
    }

    pub(super) fn capacity_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Claims `size` free bytes, on a boundary of `align`, a power of two.
    #[inline]
    pub(super) fn claim(&self, size: usize, align: usize) -> Result<NonNull<u8>, ScratchExhausted> {
        let base = self.memory.start();
        let Some(offset) = place(base.addr().get(), self.used.get(), self.capacity_bytes(), size, align) else {
            return Err(self.exhausted(size, align));
        };
        self.used.set(offset + size);
        // SAFETY: `place` returns an offset within the capacity, which is the length of the mapping.
        Ok(unsafe { base.add(offset) })
    }

    /// As [`claim`](Self::claim), zeroed. It leaves bytes alone that were not used since they were last zeroed.
    pub(super) fn claim_zeroed(&self, size: usize, align: usize) -> Result<NonNull<u8>, ScratchExhausted> {
        let at = self.claim(size, align)?;
        let stale = self.written.get().saturating_sub(self.offset(at)).min(size);
        // SAFETY: the first of `size` bytes that were just claimed.
        unsafe { at.write_bytes(0, stale) };
        Ok(at)
    }

    /// Changes the length of a claim where it stands, and returns whether that was possible. The last claim grows while there is
    /// room, and frees the bytes that it loses. Any other claim can only shrink, and its lost bytes stay unused until the reset.
    /// A length of 0 frees a claim.
    ///
    /// The caller uses no more than `new_size` bytes from now on.
    #[cfg(any(feature = "allocator-api2", test))]
    pub(super) fn resize(&self, at: NonNull<u8>, old_size: usize, new_size: usize) -> bool {
        let offset = self.offset(at);
        if offset + old_size != self.used.get() {
            return new_size <= old_size;
        }
        let fits = new_size <= self.capacity_bytes() - offset;
        if fits {
            self.set_used(offset + new_size);
        }
        fits
    }

    /// Frees everything. Pages and contents stay.
    ///
    /// `&mut`: nobody borrows from this any more, so its addresses may be handed out again.
    pub(super) fn reset(&mut self) {
        self.set_used(0);
    }

    /// Frees everything, and zeroes all bytes that were handed out since the last wipe.
    pub(super) fn wipe(&mut self) {
        self.reset();
        let start = self.memory.start().cast::<MaybeUninit<u8>>().as_ptr();
        // SAFETY: `written` is within the mapping, and after a reset its bytes are ours alone.
        wipe(unsafe { slice::from_raw_parts_mut(start, self.written.get()) });
        self.written.set(0);
    }

    /// Frees everything, and purges the pages.
    pub(super) fn discard(&mut self) {
        self.reset();
        // SAFETY: the mapping, whose contents are dead after a reset.
        let purged = unsafe { os::discard(self.memory.start().as_ptr(), self.memory.len()) };
        // If the kernel refuses, the contents stay, and `claim_zeroed` zeroes them.
        if purged.is_ok() {
            self.written.set(0);
        }
    }

    /// The error for a request that does not fit.
    #[cold]
    pub(super) fn exhausted(&self, asked_bytes: usize, align_bytes: usize) -> ScratchExhausted {
        let (used, capacity_bytes) = (self.used.get(), self.capacity_bytes());
        ScratchExhausted { asked_bytes, align_bytes, left_bytes: capacity_bytes - used, capacity_bytes }
    }

    fn offset(&self, at: NonNull<u8>) -> usize {
        at.addr().get() - self.memory.start().addr().get()
    }

    fn set_used(&self, used: usize) {
        self.written.set(self.written.get().max(self.used.get()));
        self.used.set(used);
    }
}

/// Where in `[base + used, base + capacity)` the first `size` bytes on a boundary of `align` begin, as an offset from `base`.
const fn place(base: usize, used: usize, capacity: usize, size: usize, align: usize) -> Option<usize> {
    let Some(at) = (base + used).checked_next_multiple_of(align) else { return None };
    let offset = at - base;
    if offset <= capacity && size <= capacity - offset { Some(offset) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_aligned_as_an_address_and_ends_within_the_capacity() {
        const BASE: usize = 0x7000_1000;
        assert_eq!(place(BASE, 0, 4096, 4096, 64), Some(0));
        assert_eq!(place(BASE, 1, 4096, 4096 - 64, 64), Some(64));
        assert_eq!(place(BASE, 1, 4096, 4096 - 63, 64), None);
        assert_eq!(place(BASE, 4096, 4096, 0, 1), Some(4096));
        assert_eq!(place(BASE, 4096, 4096, 1, 1), None);
        // The address has to lie on the boundary, not the offset.
        assert_eq!(place(BASE, 1, 1 << 14, 1, 1 << 13), Some(0x1000));
        // A boundary past the end, and one past all addresses.
        assert_eq!(place(BASE, 4000, 4096, 0, 1 << 20), None);
        assert_eq!(place(usize::MAX - 4096, 4000, 4096, 0, 1 << 20), None);
        assert_eq!(place(BASE, 8, 4096, usize::MAX, 1), None);
    }

    /// Zeroing is left out for bytes that still hold the kernel's zeroes. Bytes that were freed, by whatever path, may hold
    /// something else.
    #[test]
    fn zeroed_claims_are_zero_wherever_somebody_was_before() {
        let mut bump = Bump::with_capacity(4096).unwrap();
        let fill = |bump: &Bump, len| {
            let at = bump.claim(len, 1).unwrap();
            // SAFETY: just claimed.
            unsafe { at.write_bytes(0xA5, len) };
            at
        };
        let assert_zeroed = |bump: &Bump, len| {
            let at = bump.claim_zeroed(len, 1).unwrap();
            // SAFETY: just claimed, and initialised, which is what is being tested.
            assert!(unsafe { slice::from_raw_parts(at.as_ptr(), len) }.iter().all(|&byte| byte == 0));
            at
        };
        let at = fill(&bump, 1000);
        assert!(bump.resize(at, 1000, 100));
        assert_zeroed(&bump, 2000);
        bump.reset();
        fill(&bump, 500);
        assert_zeroed(&bump, 3000);
        type Way = fn(&mut Bump);
        let ways: [Way; 3] = [Bump::reset, Bump::wipe, Bump::discard];
        for back in ways {
            back(&mut bump);
            let at = assert_zeroed(&bump, 4096);
            assert!(bump.resize(at, 4096, 0));
            fill(&bump, 4096);
        }
    }
}
