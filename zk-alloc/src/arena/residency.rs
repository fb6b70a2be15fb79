//! What a zone knows of the memory behind its granules, beside whose they are: which are *resident* (booked in the process's
//! [budget](super::budget), because the kernel has memory behind them or will have it at the first touch), and which are
//! *dirty* (may hold something else than zeroes). The two differ: a block that was paged in whole is resident and clean, what
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

/// So many pages of a run are looked at to learn whether it was written. Each that is not in memory costs a page fault.
const LOOKS: usize = 8;

/// What [`Residency::give_back`] does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveBack {
    /// At once; it reads as zeroes from now on.
    Now,
    /// When the kernel runs short; until then it may be taken back without a fault.
    WhenShort,
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

    /// Whether a part of the caller's granules, one in `part`, holds something else than zeroes, as far as some of their pages tell.
    /// No system call says so much for so little: mincore(2) is in few lists of what a sandbox allows.
    pub(super) fn is_written(&self, start: usize, len: usize, part: usize) -> bool {
        let page = os::page_bytes();
        let pages = self.bytes(len) / page;
        let looks = pages.min(LOOKS);
        let is_written = |&look: &usize| {
            // One in each of so many equal parts, at a place that no habit of the owner's is likely to have.
            let (from, to) = (look * pages / looks, (look + 1) * pages / looks);
            let at = (from + look * 7919 % (to - from)) * page;
            // SAFETY: within the caller's granules.
            let words = unsafe { self.address(start).add(at) }.cast::<u64>();
            // SAFETY: a word of that page, which nobody uses. What is not in memory is read as zeroes; what its last owner left may
            // be anything, also what it never initialised, so that the compiler must not know of it.
            (0..page / size_of::<u64>()).any(|word| unsafe { words.add(word).read_volatile() } != 0)
        };
        let enough = looks.div_ceil(part);
        (0..looks).filter(is_written).take(enough).count() == enough
    }

    /// Whether the caller's granules hold zeroes.
    pub(super) fn is_clean(&self, start: usize, len: usize) -> bool {
        self.dirty.count(start, len) == 0
    }

    pub(super) fn resident_bits(&self) -> Bitmap<'static> {
        self.resident
    }

    /// Books what of the caller's granules is not resident yet, and returns how many bytes; `None`, and nothing is booked, if
    /// that exceeds the limit.
    pub(super) fn book(&self, start: usize, len: usize, limit: Limit) -> Option<usize> {
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

    /// Which of the caller's granules are resident, as bits from the lowest on. They are nobody's from now on: what is booked
    /// for them is the caller's to return.
    pub(super) fn hand_over(&self, start: usize, len: usize) -> u64 {
        let resident = |&index: &usize| self.resident.count(start + index, 1) == 1;
        let bits = (0..len).filter(resident).fold(0, |bits, index| bits | 1 << index);
        self.resident.clear(start, len);
        self.dirty.clear(start, len);
        bits
    }

    /// Takes back what [`hand_over`](Self::hand_over) gave away: these granules are resident, booked by the caller, and dirty.
    pub(super) fn take_back(&self, start: usize, bits: u64) {
        for index in (0..u64::BITS as usize).filter(|&index| bits >> index & 1 == 1) {
            self.resident.set(start + index, 1);
            self.dirty.set(start + index, 1);
        }
    }

    /// Has the kernel page in what of granules is not there. What they hold stays as it is, so that it does not matter whose
    /// they are.
    pub(super) fn page_in(&self, start: usize, len: usize) {
        let (at, bytes) = (self.address(start), self.bytes(len));
        self.counters.system_call();
        // SAFETY: committed granules of this zone.
        if let Err(refused) = unsafe { os::page_in(at.as_ptr(), bytes) } {
            self.counters.refused(refused, "page in", bytes);
        }
    }

    /// Gives the pages of granules back to the kernel, and returns how many bytes went: none if it refuses.
    ///
    /// # Safety
    /// The caller owns `[start, start + len)`, all committed, and needs none of its contents.
    pub(super) unsafe fn give_back(&self, start: usize, len: usize, how: GiveBack) -> usize {
        // SAFETY: the caller's.
        if !unsafe { self.advise_gone(start, len, how) } {
            return 0;
        }
        // What may go only when memory is short is resident until then, and may hold what it held.
        if how == GiveBack::Now {
            self.forget(start, len);
        }
        self.bytes(len)
    }

    /// Has the caller's granules read as zeroes, and leaves them booked; `false` if the kernel refuses.
    ///
    /// # Safety
    /// As for [`give_back`](Self::give_back).
    pub(super) unsafe fn empty(&self, start: usize, len: usize) -> bool {
        // SAFETY: the caller's.
        unsafe { self.advise_gone(start, len, GiveBack::Now) }
    }

    /// # Safety
    /// As for [`give_back`](Self::give_back).
    unsafe fn advise_gone(&self, start: usize, len: usize, how: GiveBack) -> bool {
        self.counters.system_call();
        let (at, bytes) = (self.address(start).as_ptr(), self.bytes(len));
        let result = match how {
            // SAFETY: the caller's.
            GiveBack::Now => unsafe { os::discard(at, bytes) },
            // SAFETY: the caller's.
            GiveBack::WhenShort => unsafe { os::soften(at, bytes) },
        };
        result.inspect_err(|&refused| self.counters.refused(refused, "give back memory", bytes)).is_ok()
    }

    /// Clears the first `bytes` of the run at granule `start`, which the caller owns and has booked: only what is dirty needs
    /// it.
    pub(super) fn zero(&self, start: usize, bytes: usize) {
        let end_bytes = self.bytes(start) + bytes;
        for (run, len) in self.dirty.set_runs(start, self.granules(bytes)) {
            let at = self.bytes(run);
            let dirty_bytes = self.bytes(len).min(end_bytes - at);
            let is_sparse = || !self.is_written(run, len, 4);
            let lazily = self.zeroing.is_cheaper_in_the_kernel(self.bytes(len), is_sparse);
            // SAFETY: granules that the caller owns; they are dirty, hence committed, and their contents are dead.
            if lazily && unsafe { self.advise_gone(run, len, GiveBack::Now) } {
                self.counters.will_fault(dirty_bytes);
                continue;
            }
            // SAFETY: as above.
            unsafe { self.address(run).write_bytes(0, dirty_bytes) };
        }
    }
}
