//! Where a zone has huge pages, and where the kernel may make more.
//!
//! Where huge pages are asked for, khugepaged makes them by itself, too: by the kernel's defaults, of each block of which any page
//! is in memory. What was given back of such a block is in memory again then, booked by nobody: minutes later, a process that had
//! come down is as large as before. So huge pages are forbidden when memory goes back, and allowed again where something is handed
//! out, of blocks that are booked whole, or of which nothing is in memory.
#![allow(unsafe_code, reason = "advises the kernel")]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::bitmap::Bitmap;
use super::layout::{HugeAdvice, ZoneSpec};
use super::residency::Residency;
use crate::os::{self, Errno, HUGE_PAGE_BYTES};

/// Huge pages are allowed for so many bytes ahead: the kernel has threads wait that touch memory meanwhile, so that it is rarely
/// asked.
const AHEAD_BYTES: usize = 32 << 20;

/// No block of a zone lies behind so many.
const EVERYWHERE: Range<usize> = 0..u32::MAX as usize;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct HugePages {
    advice: HugeAdvice,
    /// Where the zone's small pages end.
    small_pages_bytes: usize,
    /// The blocks that were last allowed, from one up to another, as the upper and lower half.
    allowed: AtomicU64,
}

impl HugePages {
    pub(super) fn new(spec: &ZoneSpec) -> Self {
        let (advice, small_pages_bytes) = (spec.huge, spec.small_pages_bytes);
        Self { advice, small_pages_bytes, allowed: AtomicU64::new(EVERYWHERE.end as u64) }
    }

    /// Whether the first touch of a byte of the zone pages in a huge page.
    pub(super) fn comes_whole(&self, at_bytes: usize) -> bool {
        self.advice == HugeAdvice::Ask && at_bytes >= self.small_pages_bytes
    }

    /// What they are asked for of the first `committed` granules.
    pub(super) fn asked(&self, residency: &Residency, committed: usize) -> Range<usize> {
        let is_asked = self.advice == HugeAdvice::Ask;
        let border = if is_asked { residency.granules(self.small_pages_bytes).min(committed) } else { committed };
        border..committed
    }

    /// Advises the kernel on granules that were just committed.
    pub(super) fn advise(&self, residency: &Residency, committed: Range<usize>) {
        match self.advice {
            HugeAdvice::Ask => {
                let asked = self.asked(residency, committed.end);
                let border = asked.start.max(committed.start);
                // A host may give huge pages unasked, of which nothing would be known.
                advise(residency, committed.start..border, os::forbid_huge);
                advise(residency, border..committed.end, os::advise_huge);
            }
            HugeAdvice::Forbid => advise(residency, committed, os::forbid_huge),
            HugeAdvice::Leave => {}
        }
    }

    /// Forbids them until something is handed out.
    pub(super) fn forbid(&self, residency: &Residency, committed: usize) {
        if self.advice == HugeAdvice::Ask {
            advise(residency, self.asked(residency, committed), os::forbid_huge);
            // Noted after the call, and what is allowed before it, so that nothing is noted as allowed that is not.
            self.note(0..0);
        }
    }

    /// Allows them in granules that make whole blocks, all of which are booked, or are about to be; and ahead of them, as far as
    /// nothing is in memory.
    pub(super) fn allow(&self, residency: &Residency, used: Bitmap<'_>, granules: Range<usize>, committed: usize) {
        if granules.is_empty() || !self.comes_whole(residency.bytes(granules.start)) {
            return;
        }
        let block = residency.granules(HUGE_PAGE_BYTES);
        let (blocks, noted) = (granules.start / block..granules.end.div_ceil(block), self.noted());
        if noted.start <= blocks.start && blocks.end <= noted.end {
            return;
        }
        let until = committed.min(granules.end + residency.granules(AHEAD_BYTES));
        let taken = [used.next_set(granules.end, until), residency.resident_bits().next_set(granules.end, until)];
        let fresh_end = taken.into_iter().flatten().min().unwrap_or(until);
        let end = blocks.end.max(fresh_end / block);
        let goes_on = noted.start <= blocks.start && blocks.start <= noted.end;
        self.note(if goes_on { noted.start } else { blocks.start }..end);
        advise(residency, granules.start..committed.min(end * block), os::advise_huge);
    }

    /// Has the kernel see one mapping in a run, whose pages are to move: it moves no more than one at a time.
    pub(super) fn make_one_mapping(&self, residency: &Residency, granules: Range<usize>) {
        if self.noted() != EVERYWHERE {
            advise(residency, granules, os::advise_huge);
        }
    }

    fn noted(&self) -> Range<usize> {
        let both = self.allowed.load(Ordering::Relaxed);
        (both >> u32::BITS) as usize..(both & u64::from(u32::MAX)) as usize
    }

    fn note(&self, blocks: Range<usize>) {
        self.allowed.store((blocks.start as u64) << u32::BITS | blocks.end as u64, Ordering::Relaxed);
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
