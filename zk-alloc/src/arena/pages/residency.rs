//! The state of the memory behind a zone's pages.
//!
//! A *resident* page is accounted in the process's [budget](crate::arena::purge::budget): the kernel has memory behind it, or will have at the
//! first touch. A *dirty* page may hold something else than zeroes. The two differ. A prefaulted block is resident and clean, and
//! lazily purged memory (`MADV_FREE`) is resident and dirty.
//!
//! Only the owner of a page, by its bit in the zone's bitmap of used pages, changes the two. So they are exact.
#![allow(unsafe_code, reason = "prefaults memory, clears it and purges it, advises the kernel")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arena::pages::bitmap::Bitmap;
use crate::arena::pages::layout::{HugeAdvice, Zeroing, ZoneSpec};
use crate::arena::purge::budget::{self, Limit};
use crate::counters::ZoneCounters;
use crate::os::{self, Errno, HUGE_PAGE_BYTES, NotMoved};
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
    pub(crate) bytes: usize,
    /// Ranges of pages to purge. Each takes at most three system calls.
    pub(crate) ranges: usize,
    /// Words of bitmaps to read.
    pub(crate) words: usize,
}

impl Allowance {
    /// For a caller that is no request: as much work as it takes to purge `bytes`.
    pub(crate) fn unlimited(bytes: usize) -> Self {
        Self { bytes, ranges: usize::MAX, words: usize::MAX }
    }

    /// For a request that brings `brought_bytes`, to purge at most `bytes`.
    pub(crate) fn of_request(brought_bytes: usize, bytes: usize) -> Self {
        let most_bytes = tuning::request_purge_bytes().max(brought_bytes.saturating_add(tuning::purge_ahead_bytes()));
        Self {
            bytes: bytes.min(most_bytes),
            ranges: tuning::request_purge_ranges() + brought_bytes / tuning::long_run_bytes().max(1),
            words: tuning::request_scan_words(),
        }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.bytes == 0 || self.ranges == 0 || self.words == 0
    }

    /// A range was purged, or tried, and `gone_bytes` went.
    pub(crate) fn spend(&mut self, gone_bytes: usize, ranges: usize, words: usize) {
        self.bytes = self.bytes.saturating_sub(gone_bytes);
        self.ranges = self.ranges.saturating_sub(ranges);
        self.words = self.words.saturating_sub(words);
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Residency {
    base: NonNull<u8>,
    /// The binary logarithm of a page's bytes.
    page_shift: u32,
    resident: Bitmap<'static>,
    dirty: Bitmap<'static>,
    zeroing: Zeroing,
    pub(crate) counters: ZoneCounters,
}

impl Residency {
    /// A zone without resident pages.
    pub(crate) fn new(
        base: NonNull<u8>,
        page_shift: u32,
        resident: Bitmap<'static>,
        dirty: Bitmap<'static>,
        zeroing: Zeroing,
    ) -> Self {
        Self { base, page_shift, resident, dirty, zeroing, counters: ZoneCounters::new() }
    }

    pub(crate) fn bytes(&self, pages: usize) -> usize {
        pages << self.page_shift
    }

    pub(crate) fn pages(&self, bytes: usize) -> usize {
        // Not rounded up before the shift: sums with the largest sizes overflow.
        (bytes >> self.page_shift) + usize::from(bytes & ((1 << self.page_shift) - 1) != 0)
    }

    pub(crate) fn address(&self, page: usize) -> NonNull<u8> {
        // SAFETY: a page of the zone: the offset stays inside the reservation.
        unsafe { self.base.add(self.bytes(page)) }
    }

    /// How many of `[start, start + len)` are resident.
    pub(crate) fn resident(&self, start: usize, len: usize) -> usize {
        self.resident.count(start, len)
    }

    /// The bytes of `[0, len)` that are resident and clean.
    pub(crate) fn clean_bytes(&self, len: usize) -> usize {
        let either = self.resident.count_with(self.dirty, 0, len);
        self.bytes(either.saturating_sub(self.dirty.count(0, len)))
    }

    /// The bytes of pages that are in memory, by the kernel's account: accounted memory may never have been touched.
    pub(crate) fn bytes_in_memory(&self, start: usize, len: usize) -> Option<usize> {
        self.counters.system_call();
        // SAFETY: asks about pages of the zone, and changes nothing.
        unsafe { os::count_resident(self.address(start).as_ptr(), self.bytes(len)) }
    }

    pub(crate) fn resident_bits(&self) -> Bitmap<'static> {
        self.resident
    }

    /// Accounts for those of the caller's pages that are not resident yet. Returns their bytes, or `None`, and accounts for nothing,
    /// beyond the limit.
    pub(crate) fn account(&self, start: usize, len: usize, limit: Limit) -> Option<usize> {
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
    pub(crate) fn mark_dirty(&self, start: usize, len: usize) {
        self.dirty.set(start, len);
    }

    /// Notes that the memory of the caller's pages is elsewhere now.
    pub(crate) fn moved_away(&self, start: usize, len: usize) {
        budget::unaccount(self.forget(start, len));
    }

    /// Notes that the caller's pages have no memory any more. Returns the bytes that were accounted for them.
    fn forget(&self, start: usize, len: usize) -> usize {
        self.dirty.clear(start, len);
        self.bytes(self.resident.clear(start, len))
    }

    /// The resident ones of the caller's pages, as bits from the lowest on. From now on the caller accounts for them.
    pub(crate) fn hand_over(&self, start: usize, len: usize) -> u64 {
        let resident = |&index: &usize| self.resident.count(start + index, 1) == 1;
        let bits = (0..len).filter(resident).fold(0, |bits, index| bits | 1 << index);
        self.resident.clear(start, len);
        self.dirty.clear(start, len);
        bits
    }

    /// Takes back what [`hand_over`](Self::hand_over) gave away: these pages are resident, accounted by the caller, and dirty.
    pub(crate) fn take_back(&self, start: usize, bits: u64) {
        for index in (0..u64::BITS as usize).filter(|&index| bits >> index & 1 == 1) {
            self.resident.set(start + index, 1);
            self.dirty.set(start + index, 1);
        }
    }

    /// Has the kernel prefault what is missing of some pages. Their contents stay, so that anybody may own them.
    pub(crate) fn prefault(&self, start: usize, len: usize) {
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
    pub(crate) unsafe fn purge(&self, start: usize, len: usize, how: Purge) -> usize {
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
    pub(crate) unsafe fn renew(&self, start: usize, len: usize) -> Result<(), NotMoved> {
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
    pub(crate) unsafe fn empty(&self, start: usize, len: usize) -> bool {
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
    pub(crate) fn zero(&self, start: usize, bytes: usize) {
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

/// Where a zone has huge pages, and where the kernel may make more.
///
/// Where the arena asks for huge pages, khugepaged also makes them by itself. By the kernel's defaults, it collapses each block (the place
/// of a huge page) of which any page is in memory. Then purged memory of the block is in memory again, although the arena does not account
/// for it. Minutes later, the process is as large as before the purge.
///
/// So the arena forbids a block to be huge before it purges a part of it. It allows the block again when the zone accounts for the whole
/// block, as runs or as free memory. Pages of slabs do not count, because the zone does not account for them.
#[derive(Debug)]
pub(crate) struct HugePages {
    advice: HugeAdvice,
    /// The bytes at the zone's start that stay in small pages.
    small_pages_bytes: usize,
    /// A bit for each block, set while the block is forbidden to be huge.
    forbidden: Bitmap<'static>,
    forbidden_blocks: AtomicUsize,
}

impl HugePages {
    pub(crate) fn new(spec: &ZoneSpec, forbidden: Bitmap<'static>) -> Self {
        let (advice, small_pages_bytes) = (spec.huge, spec.small_pages_bytes);
        Self { advice, small_pages_bytes, forbidden, forbidden_blocks: AtomicUsize::new(0) }
    }

    /// Whether the arena asks for huge pages `at_bytes` into the zone.
    pub(crate) fn are_asked(&self, at_bytes: usize) -> bool {
        self.advice == HugeAdvice::Ask && at_bytes >= self.small_pages_bytes
    }

    /// Advises the kernel on pages that were just committed.
    pub(crate) fn advise(&self, residency: &Residency, committed: Range<usize>) {
        match self.advice {
            HugeAdvice::Ask => {
                let border = residency.pages(self.small_pages_bytes).clamp(committed.start, committed.end);
                // A host may make huge pages unasked, and the arena would not account for them.
                advise(residency, committed.start..border, os::forbid_huge);
                advise(residency, border..committed.end, os::advise_huge);
            }
            HugeAdvice::Forbid => {
                advise(residency, committed, os::forbid_huge);
            }
            HugeAdvice::Leave => {}
        }
    }

    /// Advises the kernel on the caller's pages once more, as their mapping is new.
    pub(crate) fn advise_again(&self, residency: &Residency, pages: Range<usize>) {
        self.advise(residency, pages.clone());
        if self.is_any_forbidden() {
            let block = residency.pages(HUGE_PAGE_BYTES);
            let (first, end) = (pages.start / block, pages.end.div_ceil(block));
            for (index, len) in self.forbidden.set_runs(first, end - first) {
                let forbidden = pages.start.max(index * block)..pages.end.min((index + len) * block);
                advise(residency, forbidden, os::forbid_huge);
            }
        }
    }

    /// Whether the block that holds a page is forbidden to be huge.
    pub(crate) fn is_forbidden(&self, residency: &Residency, page: usize) -> bool {
        self.is_any_forbidden() && self.forbidden.count(page / residency.pages(HUGE_PAGE_BYTES), 1) > 0
    }

    fn is_any_forbidden(&self) -> bool {
        self.forbidden_blocks.load(Ordering::Relaxed) > 0
    }

    /// Forbids the blocks that the caller's `pages` fill in part to be huge. These pages are about to be purged.
    pub(crate) fn forbid_around(&self, residency: &Residency, pages: Range<usize>, committed: usize) {
        if self.advice != HugeAdvice::Ask {
            return;
        }
        let block = residency.pages(HUGE_PAGE_BYTES);
        let (first, last) = (pages.start / block, (pages.end - 1) / block);
        let is_filled = |index: usize| pages.start <= index * block && (index + 1) * block <= pages.end;
        let ends = [Some(first), Some(last).filter(|&last| last != first)];
        for index in ends.into_iter().flatten().filter(|&index| !is_filled(index)) {
            let is_needed = self.are_asked(residency.bytes(index * block)) && self.forbidden.count(index, 1) == 0;
            if is_needed && self.forbidden_blocks.load(Ordering::Relaxed) < tuning::max_forbidden() {
                let all = index * block..committed.min((index + 1) * block);
                // The bit is set after the call. `allow` skips a block whose bit is clear, so it does not allow this one at the same time.
                // The counter grows before the bit is set. So a child that is forked in between counts one too many, and its counter never
                // drops below zero.
                if advise(residency, all, os::forbid_huge) {
                    self.forbidden_blocks.fetch_add(1, Ordering::Relaxed);
                    self.forbidden_blocks.fetch_sub(1 - self.forbidden.set(index, 1), Ordering::Relaxed);
                }
            }
        }
    }

    /// Allows the blocks that hold some of these pages to be huge, if the zone accounts for all of a block.
    pub(crate) fn allow(&self, residency: &Residency, pages: Range<usize>, committed: usize) {
        if !self.is_any_forbidden() {
            return;
        }
        let block = residency.pages(HUGE_PAGE_BYTES);
        let (first, end) = (pages.start / block, pages.end.div_ceil(block));
        for (index, len) in self.forbidden.set_runs(first, end - first) {
            if residency.resident(index * block, len * block) == len * block {
                self.allow_accounted(residency, index, len, committed);
            } else {
                (index..index + len)
                    .filter(|&index| residency.resident(index * block, block) == block)
                    .for_each(|index| self.allow_accounted(residency, index, 1, committed));
            }
        }
    }

    /// Allows blocks whose pages are all accounted.
    fn allow_accounted(&self, residency: &Residency, index: usize, len: usize, committed: usize) {
        let block = residency.pages(HUGE_PAGE_BYTES);
        // The bit is cleared after the call. A thread that wants to forbid the block in between finds the bit set, and does nothing: the
        // block may become huge this once.
        if advise(residency, index * block..committed.min((index + len) * block), os::advise_huge) {
            self.forbidden_blocks.fetch_sub(self.forbidden.clear(index, len), Ordering::Relaxed);
        }
    }

    /// Makes the kernel see one mapping in a run whose pages are to move, as far as the run lies where the arena asks for huge pages.
    /// Before Linux 6.17, the kernel moves only one mapping at a time. Later kernels move several, but a forbidden part would stay
    /// forbidden at its new place.
    pub(crate) fn make_one_mapping(&self, residency: &Residency, pages: Range<usize>) {
        let block = residency.pages(HUGE_PAGE_BYTES);
        let (first, end) = (pages.start / block, pages.end.div_ceil(block));
        if self.is_any_forbidden() && self.forbidden.count(first, end - first) > 0 {
            let border = residency.pages(self.small_pages_bytes);
            // Only blocks that the run fills in part are forbidden by now, and a part of a block can't become huge.
            advise(residency, border.max(pages.start)..pages.end, os::advise_huge);
        }
    }
}

/// `false` if the kernel refuses.
fn advise(residency: &Residency, pages: Range<usize>, advise: unsafe fn(*mut u8, usize) -> Result<(), Errno>) -> bool {
    if pages.is_empty() {
        return true;
    }
    let (at, len) = (residency.address(pages.start), residency.bytes(pages.len()));
    residency.counters.system_call();
    // SAFETY: committed memory of the zone; its contents stay.
    let result = unsafe { advise(at.as_ptr(), len) };
    result.inspect_err(|&refused| residency.counters.refused(refused, "advise on huge pages for", len)).is_ok()
}
