//! Where a zone has huge pages, and where the kernel may make more.
//!
//! Where huge pages are asked for, khugepaged makes them by itself, too: by the kernel's defaults, of each block of which any page
//! is in memory. What was given back of such a block is in memory again then, booked by nobody: minutes later, a process that had
//! come down is as large as before. So a block of which a part goes back is forbidden to be huge before that, and allowed again when
//! all of it is booked.
#![allow(unsafe_code, reason = "advises the kernel")]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::bitmap::Bitmap;
use super::layout::{HugeAdvice, ZoneSpec};
use super::residency::Residency;
use crate::os::{self, Errno, HUGE_PAGE_BYTES};

/// No more blocks of a zone are forbidden: each may be a mapping, of which a process has 65,530 (`vm.max_map_count`).
const MOST_FORBIDDEN: usize = 8 << 10;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct HugePages {
    advice: HugeAdvice,
    /// Where the zone's small pages end.
    small_pages_bytes: usize,
    /// A bit for each block: forbidden to be huge.
    forbidden: Bitmap<'static>,
    forbidden_blocks: AtomicUsize,
}

impl HugePages {
    pub(super) fn new(spec: &ZoneSpec, forbidden: Bitmap<'static>) -> Self {
        let (advice, small_pages_bytes) = (spec.huge, spec.small_pages_bytes);
        Self { advice, small_pages_bytes, forbidden, forbidden_blocks: AtomicUsize::new(0) }
    }

    /// Whether huge pages are asked for where so many bytes of the zone lie before.
    pub(super) fn are_asked(&self, at_bytes: usize) -> bool {
        self.advice == HugeAdvice::Ask && at_bytes >= self.small_pages_bytes
    }

    /// Advises the kernel on granules that were just committed.
    pub(super) fn advise(&self, residency: &Residency, committed: Range<usize>) {
        match self.advice {
            HugeAdvice::Ask => {
                let border = residency.granules(self.small_pages_bytes).clamp(committed.start, committed.end);
                // A host may give huge pages unasked, of which nothing would be known.
                advise(residency, committed.start..border, os::forbid_huge);
                advise(residency, border..committed.end, os::advise_huge);
            }
            HugeAdvice::Forbid => advise(residency, committed, os::forbid_huge),
            HugeAdvice::Leave => {}
        }
    }

    /// The caller's `granules` are about to go back: the blocks that they fill in part are forbidden to be huge.
    pub(super) fn forbid_around(&self, residency: &Residency, granules: Range<usize>, committed: usize) {
        if self.advice != HugeAdvice::Ask {
            return;
        }
        let block = residency.granules(HUGE_PAGE_BYTES);
        let (first, last) = (granules.start / block, (granules.end - 1) / block);
        let is_filled = |index: usize| granules.start <= index * block && (index + 1) * block <= granules.end;
        let ends = [Some(first), Some(last).filter(|&last| last != first)];
        for index in ends.into_iter().flatten().filter(|&index| !is_filled(index)) {
            let is_needed = self.are_asked(residency.bytes(index * block)) && self.forbidden.count(index, 1) == 0;
            if is_needed && self.forbidden_blocks.load(Ordering::Relaxed) < MOST_FORBIDDEN {
                advise(residency, index * block..committed.min((index + 1) * block), os::forbid_huge);
                // Afterwards: where another thread allows it meanwhile, it is allowed once more, and not never.
                self.forbidden_blocks.fetch_add(self.forbidden.set(index, 1), Ordering::Relaxed);
            }
        }
    }

    /// All of these granules is booked, or about to be: the blocks that they fill may be huge again.
    pub(super) fn allow(&self, residency: &Residency, granules: Range<usize>, committed: usize) {
        if self.advice != HugeAdvice::Ask {
            return;
        }
        let block = residency.granules(HUGE_PAGE_BYTES);
        let (first, end) = (granules.start.div_ceil(block), granules.end / block);
        let len = end.saturating_sub(first);
        if self.forbidden.count(first, len) > 0 {
            self.forbidden_blocks.fetch_sub(self.forbidden.clear(first, len), Ordering::Relaxed);
            let border = residency.granules(self.small_pages_bytes);
            advise(residency, border.max(first * block)..committed.min(end * block), os::advise_huge);
        }
    }

    /// Has the kernel see one mapping in a run, whose pages are to move: it moves no more than one at a time.
    pub(super) fn make_one_mapping(&self, residency: &Residency, granules: Range<usize>) {
        let block = residency.granules(HUGE_PAGE_BYTES);
        let (first, end) = (granules.start / block, granules.end.div_ceil(block));
        if self.advice == HugeAdvice::Ask && self.forbidden.count(first, end - first) > 0 {
            let border = residency.granules(self.small_pages_bytes);
            advise(residency, border.max(granules.start)..granules.end, os::advise_huge);
        }
    }
}

fn advise(residency: &Residency, granules: Range<usize>, advise: unsafe fn(*mut u8, usize) -> Result<(), Errno>) {
    if granules.is_empty() {
        return;
    }
    let (at, len) = (residency.address(granules.start), residency.bytes(granules.len()));
    residency.counters.system_call();
    // SAFETY: committed memory of the zone; what it holds stays.
    if let Err(refused) = unsafe { advise(at.as_ptr(), len) } {
        residency.counters.refused(refused, "advise on huge pages for", len);
    }
}
