//! The state of the memory behind a zone's pages.
//!
//! A *resident* page is accounted in the process's [budget](super::budget): the kernel has memory behind it, or will have at the
//! first touch. A *dirty* page may hold something else than zeroes. The two differ. A prefaulted block is resident and clean, and
//! lazily purged memory (`MADV_FREE`) is resident and dirty.
//!
//! Only the owner of a page, by its bit in the zone's bitmap of used pages, changes the two. So they are exact.
#![allow(unsafe_code, reason = "prefaults memory, clears it and purges it")]

use std::ptr::NonNull;

use super::bitmap::Bitmap;
use super::budget::{self, Limit};
use super::layout::Zeroing;
use crate::counters::ZoneCounters;
use crate::os::{self, NotMoved};
use crate::tuning;

/// When [`Residency::purge`] takes memory away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purge {
    /// At once; it reads as zeroes from now on.
    Now,
    /// When the kernel runs short; until then it may be taken back without a fault.
    Lazily,
}

/// The work that a purge may still do. A request purges in proportion to what it brings itself, whatever lies around. The rest is left to
/// later requests.
#[derive(Debug)]
pub(crate) struct Allowance {
    pub(super) bytes: usize,
    /// Ranges of pages to purge. Each takes at most three system calls.
    pub(super) ranges: usize,
    /// Words of bitmaps to read.
    pub(super) words: usize,
}

impl Allowance {
    /// For a caller that is no request: as much work as it takes to purge `bytes`.
    pub(crate) fn unlimited(bytes: usize) -> Self {
        Self { bytes, ranges: usize::MAX, words: usize::MAX }
    }

    /// For a request that brings `brought_bytes`, to purge at most `bytes`.
    pub(super) fn of_request(brought_bytes: usize, bytes: usize) -> Self {
        let most_bytes = tuning::request_purge_bytes().max(brought_bytes.saturating_add(tuning::purge_ahead_bytes()));
        Self {
            bytes: bytes.min(most_bytes),
            ranges: tuning::request_purge_ranges() + brought_bytes / tuning::long_run_bytes().max(1),
            words: tuning::request_scan_words(),
        }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.bytes == 0 || self.ranges == 0 || self.words == 0
    }

    /// A range was purged, or tried, and `gone_bytes` went.
    pub(super) fn spend(&mut self, gone_bytes: usize, ranges: usize, words: usize) {
        self.bytes = self.bytes.saturating_sub(gone_bytes);
        self.ranges = self.ranges.saturating_sub(ranges);
        self.words = self.words.saturating_sub(words);
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Residency {
    base: NonNull<u8>,
    /// The binary logarithm of a page's bytes.
    page_shift: u32,
    resident: Bitmap<'static>,
    dirty: Bitmap<'static>,
    zeroing: Zeroing,
    pub(super) counters: ZoneCounters,
}

impl Residency {
    /// A zone without resident pages.
    pub(super) fn new(
        base: NonNull<u8>,
        page_shift: u32,
        resident: Bitmap<'static>,
        dirty: Bitmap<'static>,
        zeroing: Zeroing,
    ) -> Self {
        Self { base, page_shift, resident, dirty, zeroing, counters: ZoneCounters::new() }
    }

    pub(super) fn bytes(&self, pages: usize) -> usize {
        pages << self.page_shift
    }

    pub(super) fn pages(&self, bytes: usize) -> usize {
        // Not rounded up before the shift: sums with the largest sizes overflow.
        (bytes >> self.page_shift) + usize::from(bytes & ((1 << self.page_shift) - 1) != 0)
    }

    pub(super) fn address(&self, page: usize) -> NonNull<u8> {
        // SAFETY: a page of the zone: the offset stays inside the reservation.
        unsafe { self.base.add(self.bytes(page)) }
    }

    /// How many of `[start, start + len)` are resident.
    pub(super) fn resident(&self, start: usize, len: usize) -> usize {
        self.resident.count(start, len)
    }

    /// The bytes of `[0, len)` that are resident and clean.
    pub(super) fn clean_bytes(&self, len: usize) -> usize {
        let either = self.resident.count_with(self.dirty, 0, len);
        self.bytes(either.saturating_sub(self.dirty.count(0, len)))
    }

    /// The bytes of pages that are in memory, by the kernel's account: accounted memory may never have been touched.
    pub(super) fn bytes_in_memory(&self, start: usize, len: usize) -> Option<usize> {
        self.counters.system_call();
        // SAFETY: asks about pages of the zone, and changes nothing.
        unsafe { os::count_resident(self.address(start).as_ptr(), self.bytes(len)) }
    }

    pub(super) fn resident_bits(&self) -> Bitmap<'static> {
        self.resident
    }

    /// Accounts for those of the caller's pages that are not resident yet. Returns their bytes, or `None`, and accounts for nothing,
    /// beyond the limit.
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

    /// Notes that the caller's pages will be written to.
    pub(super) fn mark_dirty(&self, start: usize, len: usize) {
        self.dirty.set(start, len);
    }

    /// Notes that the memory of the caller's pages is elsewhere now.
    pub(super) fn moved_away(&self, start: usize, len: usize) {
        budget::unaccount(self.forget(start, len));
    }

    /// Notes that the caller's pages have no memory any more. Returns the bytes that were accounted for them.
    fn forget(&self, start: usize, len: usize) -> usize {
        self.dirty.clear(start, len);
        self.bytes(self.resident.clear(start, len))
    }

    /// The resident ones of the caller's pages, as bits from the lowest on. From now on the caller accounts for them.
    pub(super) fn hand_over(&self, start: usize, len: usize) -> u64 {
        let resident = |&index: &usize| self.resident.count(start + index, 1) == 1;
        let bits = (0..len).filter(resident).fold(0, |bits, index| bits | 1 << index);
        self.resident.clear(start, len);
        self.dirty.clear(start, len);
        bits
    }

    /// Takes back what [`hand_over`](Self::hand_over) gave away: these pages are resident, accounted by the caller, and dirty.
    pub(super) fn take_back(&self, start: usize, bits: u64) {
        for index in (0..u64::BITS as usize).filter(|&index| bits >> index & 1 == 1) {
            self.resident.set(start + index, 1);
            self.dirty.set(start + index, 1);
        }
    }

    /// Has the kernel prefault what is missing of some pages. Their contents stay, so that anybody may own them.
    pub(super) fn prefault(&self, start: usize, len: usize) {
        let (at, bytes) = (self.address(start), self.bytes(len));
        self.counters.system_call();
        // SAFETY: committed pages of this zone.
        if let Err(refused) = unsafe { os::prefault(at.as_ptr(), bytes) } {
            self.counters.refused(refused, "prefault", bytes);
        }
    }

    /// Purges pages. Returns the bytes that went, 0 if the kernel refuses.
    ///
    /// # Safety
    /// The caller owns `[start, start + len)`, all committed, and needs none of its contents.
    pub(super) unsafe fn purge(&self, start: usize, len: usize, how: Purge) -> usize {
        // SAFETY: the caller's.
        if !unsafe { self.advise_gone(start, len, how) } {
            return 0;
        }
        // Lazily purged memory is resident until memory is short, and may keep its contents.
        if how == Purge::Now {
            budget::returned(self.forget(start, len));
        }
        self.bytes(len)
    }

    /// Purges pages by a fresh mapping in place of theirs, which has no advice yet.
    ///
    /// # Errors
    /// See [`os::renew`]. Pages that are lost are accounted no more.
    ///
    /// # Safety
    /// As for [`purge`](Self::purge).
    pub(super) unsafe fn renew(&self, start: usize, len: usize) -> Result<(), NotMoved> {
        let bytes = self.bytes(len);
        self.counters.system_call();
        // SAFETY: the caller's.
        let renewed = unsafe { os::renew(self.address(start).as_ptr(), bytes) };
        if renewed.is_ok() || renewed.is_err_and(|refused| !refused.is_target_whole) {
            budget::returned(self.forget(start, len));
        }
        renewed.inspect_err(|refused| self.counters.refused(refused.errno, "map fresh memory", bytes))
    }

    /// Has the caller's pages read as zeroes, and leaves them accounted; `false` if the kernel refuses.
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

    /// Clears the dirty part of the first `bytes` of the run at page `start`, which the caller owns and accounts for.
    pub(super) fn zero(&self, start: usize, bytes: usize) {
        let end_bytes = self.bytes(start) + bytes;
        for (run, len) in self.dirty.set_runs(start, self.pages(bytes)) {
            let at = self.bytes(run);
            let dirty_bytes = self.bytes(len).min(end_bytes - at);
            let in_memory = || self.bytes_in_memory(run, len);
            let lazily = self.zeroing.is_cheaper_in_the_kernel(self.bytes(len), in_memory);
            // SAFETY: pages that the caller owns; they are dirty, so they are committed, and nobody needs their contents.
            if lazily && unsafe { self.advise_gone(run, len, Purge::Now) } {
                self.counters.will_fault(dirty_bytes);
                continue;
            }
            // SAFETY: as above.
            unsafe { self.address(run).write_bytes(0, dirty_bytes) };
        }
    }
}
