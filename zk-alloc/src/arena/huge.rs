//! Where a zone has huge pages, and where the kernel may make more.
//!
//! Where huge pages are asked for, khugepaged makes them by itself, too: by the kernel's defaults, of each block of which any page
//! is in memory. What was purged of such a block is in memory again then, accounted for by nobody: minutes later, a process that had
//! come down is as large as before. So a block of which a part goes back is forbidden to be huge before that, and allowed again when
//! all of it is accounted as runs or as free memory; what a slab has in memory is not.
#![allow(unsafe_code, reason = "advises the kernel")]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::bitmap::Bitmap;
use super::layout::{HugeAdvice, ZoneSpec};
use super::residency::Residency;
use crate::os::{self, Errno, HUGE_PAGE_BYTES};

/// No more blocks of a zone are forbidden: each adds up to two mappings, of which a process has 65,530 (`vm.max_map_count`).
const MOST_FORBIDDEN: usize = 4 << 10;

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
            HugeAdvice::Forbid => {
                advise(residency, committed, os::forbid_huge);
            }
            HugeAdvice::Leave => {}
        }
    }

    /// Whether the block that holds a granule is forbidden to be huge.
    pub(super) fn is_forbidden(&self, residency: &Residency, granule: usize) -> bool {
        self.is_any_forbidden() && self.forbidden.count(granule / residency.granules(HUGE_PAGE_BYTES), 1) > 0
    }

    fn is_any_forbidden(&self) -> bool {
        self.forbidden_blocks.load(Ordering::Relaxed) > 0
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
                let all = index * block..committed.min((index + 1) * block);
                // Noted afterwards: what is not noted is not allowed, either, and so not while it is being forbidden. Counted
                // before it is noted: a child that is forked in between has counted too many, and never less than none.
                if advise(residency, all, os::forbid_huge) {
                    self.forbidden_blocks.fetch_add(1, Ordering::Relaxed);
                    self.forbidden_blocks.fetch_sub(1 - self.forbidden.set(index, 1), Ordering::Relaxed);
                }
            }
        }
    }

    /// Allows the blocks that hold some of these granules to be huge, if the zone has all of a block accounted.
    pub(super) fn allow(&self, residency: &Residency, granules: Range<usize>, committed: usize) {
        if !self.is_any_forbidden() {
            return;
        }
        let block = residency.granules(HUGE_PAGE_BYTES);
        let (first, end) = (granules.start / block, granules.end.div_ceil(block));
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

    /// Allows blocks of which all is accounted.
    fn allow_accounted(&self, residency: &Residency, index: usize, len: usize, committed: usize) {
        let block = residency.granules(HUGE_PAGE_BYTES);
        // The note is wiped afterwards: what another thread forbids meanwhile it forbids in vain, once.
        if advise(residency, index * block..committed.min((index + len) * block), os::advise_huge) {
            self.forbidden_blocks.fetch_sub(self.forbidden.clear(index, len), Ordering::Relaxed);
        }
    }

    /// Has the kernel see one mapping in a run, whose pages are to move, as far as it lies where huge pages are asked for: before Linux
    /// 6.17 it moves no more than one at a time, and what was forbidden would be so where it arrives.
    pub(super) fn make_one_mapping(&self, residency: &Residency, granules: Range<usize>) {
        let block = residency.granules(HUGE_PAGE_BYTES);
        let (first, end) = (granules.start / block, granules.end.div_ceil(block));
        if self.is_any_forbidden() && self.forbidden.count(first, end - first) > 0 {
            let border = residency.granules(self.small_pages_bytes);
            // Blocks that stay forbidden are those that it holds in part: such a part can't become huge.
            advise(residency, border.max(granules.start)..granules.end, os::advise_huge);
        }
    }
}

/// `false` if the kernel refuses.
fn advise(
    residency: &Residency,
    granules: Range<usize>,
    advise: unsafe fn(*mut u8, usize) -> Result<(), Errno>,
) -> bool {
    if granules.is_empty() {
        return true;
    }
    let (at, len) = (residency.address(granules.start), residency.bytes(granules.len()));
    residency.counters.system_call();
    // SAFETY: committed memory of the zone; what it holds stays.
    let result = unsafe { advise(at.as_ptr(), len) };
    result.inspect_err(|&refused| residency.counters.refused(refused, "advise on huge pages for", len)).is_ok()
}
