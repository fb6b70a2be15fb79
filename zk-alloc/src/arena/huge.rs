//! Where a zone has huge pages, and where the kernel may make more.
//!
//! Where the arena asks for huge pages, khugepaged also makes them by itself. By the kernel's defaults, it collapses each block (the place
//! of a huge page) of which any page is in memory. Then purged memory of the block is in memory again, although the arena does not account
//! for it. Minutes later, the process is as large as before the purge.
//!
//! So the arena forbids a block to be huge before it purges a part of it. It allows the block again when the zone accounts for the whole
//! block, as runs or as free memory. Pages of slabs do not count, because the zone does not account for them.
#![allow(unsafe_code, reason = "advises the kernel")]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::bitmap::Bitmap;
use super::layout::{HugeAdvice, ZoneSpec};
use super::residency::Residency;
use crate::os::{self, Errno, HUGE_PAGE_BYTES};
use crate::tuning;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct HugePages {
    advice: HugeAdvice,
    /// The bytes at the zone's start that stay in small pages.
    small_pages_bytes: usize,
    /// A bit for each block, set while the block is forbidden to be huge.
    forbidden: Bitmap<'static>,
    forbidden_blocks: AtomicUsize,
}

impl HugePages {
    pub(super) fn new(spec: &ZoneSpec, forbidden: Bitmap<'static>) -> Self {
        let (advice, small_pages_bytes) = (spec.huge, spec.small_pages_bytes);
        Self { advice, small_pages_bytes, forbidden, forbidden_blocks: AtomicUsize::new(0) }
    }

    /// Whether the arena asks for huge pages `at_bytes` into the zone.
    pub(super) fn are_asked(&self, at_bytes: usize) -> bool {
        self.advice == HugeAdvice::Ask && at_bytes >= self.small_pages_bytes
    }

    /// Advises the kernel on pages that were just committed.
    pub(super) fn advise(&self, residency: &Residency, committed: Range<usize>) {
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
    pub(super) fn advise_again(&self, residency: &Residency, pages: Range<usize>) {
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
    pub(super) fn is_forbidden(&self, residency: &Residency, page: usize) -> bool {
        self.is_any_forbidden() && self.forbidden.count(page / residency.pages(HUGE_PAGE_BYTES), 1) > 0
    }

    fn is_any_forbidden(&self) -> bool {
        self.forbidden_blocks.load(Ordering::Relaxed) > 0
    }

    /// Forbids the blocks that the caller's `pages` fill in part to be huge. These pages are about to be purged.
    pub(super) fn forbid_around(&self, residency: &Residency, pages: Range<usize>, committed: usize) {
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
    pub(super) fn allow(&self, residency: &Residency, pages: Range<usize>, committed: usize) {
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
    pub(super) fn make_one_mapping(&self, residency: &Residency, pages: Range<usize>) {
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
