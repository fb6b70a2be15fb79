//! What a zone knows of the memory behind its granules, beside whose they are: which are *resident* (accounted in the process's
//! [budget](super::budget), because the kernel has memory behind them or will have it at the first touch), and which are
//! *dirty* (may hold something else than zeroes). The two differ: a block that was prefaulted whole is resident and clean, what
//! `MADV_FREE` was said of is resident and dirty.
//!
//! Both facts of a granule are changed by the thread that owns it (by its bit in the zone's bitmap of used granules) and by no
//! other, so that they are exact.
#![allow(unsafe_code, reason = "pages memory in, clears it and gives it back")]

use std::ptr::NonNull;

use super::bitmap::Bitmap;
use super::budget::{self, Limit};
use super::layout::Zeroing;
use crate::counters::ZoneCounters;
use crate::os;

/// What [`Residency::purge`] does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purge {
    /// At once; it reads as zeroes from now on.
    Now,
    /// When the kernel runs short; until then it may be taken back without a fault.
    Lazily,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Residency {
    base: NonNull<u8>,
    /// The binary logarithm of a granule's bytes.
    granule_shift: u32,
    resident: Bitmap<'static>,
    dirty: Bitmap<'static>,
    zeroing: Zeroing,
    pub(super) counters: ZoneCounters,
}

impl Residency {
    /// The facts of a zone's granules, none of which is resident.
    pub(super) fn new(
        base: NonNull<u8>,
        granule_shift: u32,
        resident: Bitmap<'static>,
        dirty: Bitmap<'static>,
        zeroing: Zeroing,
    ) -> Self {
        Self { base, granule_shift, resident, dirty, zeroing, counters: ZoneCounters::new() }
    }

    pub(super) fn bytes(&self, granules: usize) -> usize {
        granules << self.granule_shift
    }

    pub(super) fn granules(&self, bytes: usize) -> usize {
        // Not rounded up before the shift: sums with the largest sizes overflow.
        (bytes >> self.granule_shift) + usize::from(bytes & ((1 << self.granule_shift) - 1) != 0)
    }

    pub(super) fn address(&self, granule: usize) -> NonNull<u8> {
        // SAFETY: a granule of the zone: the offset stays inside the reservation.
        unsafe { self.base.add(self.bytes(granule)) }
    }

    /// How many of `[start, start + len)` are resident.
    pub(super) fn resident(&self, start: usize, len: usize) -> usize {
        self.resident.count(start, len)
    }

    /// How many bytes of some granules are in memory, as the system says; not what was accounted and never touched.
    pub(super) fn bytes_in_memory(&self, start: usize, len: usize) -> Option<usize> {
        self.counters.system_call();
        // SAFETY: asks about pages of the zone, and changes nothing.
        unsafe { os::count_resident(self.address(start).as_ptr(), self.bytes(len)) }
    }

    pub(super) fn resident_bits(&self) -> Bitmap<'static> {
        self.resident
    }

    /// Accounts for what of the caller's granules is not resident yet, and returns how many bytes; `None`, and nothing is accounted, if
    /// that exceeds the limit.
    pub(super) fn account(&self, start: usize, len: usize, limit: Limit) -> Option<usize> {
        let fresh = self.bytes(len - self.resident.count(start, len));
        if fresh > 0 {
            if !budget::admit(fresh, limit) {
                return None;
            }
            self.resident.set(start, len);
        }
        Some(fresh)
    }

    /// The caller's granules are going to be written to.
    pub(super) fn soil(&self, start: usize, len: usize) {
        self.dirty.set(start, len);
    }

    /// The pages of the caller's granules are gone: somebody else has them, or nobody.
    pub(super) fn forget(&self, start: usize, len: usize) {
        self.dirty.clear(start, len);
        let gone = self.resident.clear(start, len);
        budget::returned(self.bytes(gone));
    }

    /// Which of the caller's granules are resident, as bits from the lowest on. They are nobody's from now on: what is accounted
    /// for them is the caller's to return.
    pub(super) fn hand_over(&self, start: usize, len: usize) -> u64 {
        let resident = |&index: &usize| self.resident.count(start + index, 1) == 1;
        let bits = (0..len).filter(resident).fold(0, |bits, index| bits | 1 << index);
        self.resident.clear(start, len);
        self.dirty.clear(start, len);
        bits
    }

    /// Takes back what [`hand_over`](Self::hand_over) gave away: these granules are resident, accounted by the caller, and dirty.
    pub(super) fn take_back(&self, start: usize, bits: u64) {
        for index in (0..u64::BITS as usize).filter(|&index| bits >> index & 1 == 1) {
            self.resident.set(start + index, 1);
            self.dirty.set(start + index, 1);
        }
    }

    /// Has the kernel prefault what of granules is not there. What they hold stays as it is, so that it does not matter whose
    /// they are.
    pub(super) fn prefault(&self, start: usize, len: usize) {
        let (at, bytes) = (self.address(start), self.bytes(len));
        self.counters.system_call();
        // SAFETY: committed granules of this zone.
        if let Err(refused) = unsafe { os::prefault(at.as_ptr(), bytes) } {
            self.counters.refused(refused, "prefault", bytes);
        }
    }

    /// Purges the pages of granules, and returns how many bytes went: none if it refuses.
    ///
    /// # Safety
    /// The caller owns `[start, start + len)`, all committed, and needs none of its contents.
    pub(super) unsafe fn purge(&self, start: usize, len: usize, how: Purge) -> usize {
        // SAFETY: the caller's.
        if !unsafe { self.advise_gone(start, len, how) } {
            return 0;
        }
        // What may go only when memory is short is resident until then, and may hold what it held.
        if how == Purge::Now {
            self.forget(start, len);
        }
        self.bytes(len)
    }

    /// Has the caller's granules read as zeroes, and leaves them accounted; `false` if the kernel refuses.
    ///
    /// # Safety
    /// As for [`purge`](Self::purge).
    pub(super) unsafe fn empty(&self, start: usize, len: usize) -> bool {
        // SAFETY: the caller's.
        unsafe { self.advise_gone(start, len, Purge::Now) }
    }

    /// # Safety
    /// As for [`purge`](Self::purge).
    unsafe fn advise_gone(&self, start: usize, len: usize, how: Purge) -> bool {
        self.counters.system_call();
        let (at, bytes) = (self.address(start).as_ptr(), self.bytes(len));
        let result = match how {
            // SAFETY: the caller's.
            Purge::Now => unsafe { os::discard(at, bytes) },
            // SAFETY: the caller's.
            Purge::Lazily => unsafe { os::purge_lazily(at, bytes) },
        };
        result.inspect_err(|&refused| self.counters.refused(refused, "purge memory", bytes)).is_ok()
    }

    /// Clears the first `bytes` of the run at granule `start`, which the caller owns and has accounted: only what is dirty needs
    /// it.
    pub(super) fn zero(&self, start: usize, bytes: usize) {
        let end_bytes = self.bytes(start) + bytes;
        for (run, len) in self.dirty.set_runs(start, self.granules(bytes)) {
            let at = self.bytes(run);
            let dirty_bytes = self.bytes(len).min(end_bytes - at);
            let in_memory = || self.bytes_in_memory(run, len);
            let lazily = self.zeroing.is_cheaper_in_the_kernel(self.bytes(len), in_memory);
            // SAFETY: granules that the caller owns; they are dirty, hence committed, and their contents are dead.
            if lazily && unsafe { self.advise_gone(run, len, Purge::Now) } {
                self.counters.will_fault(dirty_bytes);
                continue;
            }
            // SAFETY: as above.
            unsafe { self.address(run).write_bytes(0, dirty_bytes) };
        }
    }
}
