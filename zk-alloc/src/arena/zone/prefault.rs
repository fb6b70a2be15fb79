//! Prefaulting: where the first touch of a run or a slab would fault in a whole huge page, the zone brings it in at once, and accounts for
//! all of it. In small pages it prefaults nothing (docs/experiments/ablation.md).
#![allow(unsafe_code, reason = "prefaults memory")]

use std::ops::Range;

use super::{Limit, Populate, RunUse, Zone};
use crate::os::{self, HUGE_PAGE_BYTES};

impl Zone {
    /// Prefaults the blocks (places of huge pages) that the caller's run begins and ends in. Those between them are left to the threads
    /// that touch them.
    pub(super) fn prefault_edges(&self, start: usize, pages: usize) {
        let (last, end) = (start + pages - 1, start + pages);
        let block = self.pages(HUGE_PAGE_BYTES);
        self.prefault_around(start, start..end);
        if last / block > start / block {
            self.prefault_around(last, start..end);
        }
    }

    /// Accounts for the caller's slab, and prefaults its block, if the first touch would fault in all of that. Returns `false` if the slab
    /// would exceed the limit.
    pub(super) fn prefault_slab(&self, start: usize, pages: usize, limit: Limit) -> bool {
        if self.residency.resident(start, pages) == pages || !self.faults_huge_page(start) {
            return true;
        }
        let is_accounted = self.residency.account(start, pages, limit).is_some();
        if is_accounted {
            self.prefault_around(start, start..start + pages);
        }
        is_accounted
    }

    /// Prefaults the block that holds a page of the caller's run, if the first touch would fault in all of it, and the zone does not
    /// account for all of it yet.
    fn prefault_around(&self, page: usize, run: Range<usize>) {
        let block = self.pages(HUGE_PAGE_BYTES);
        let from = page / block * block;
        let until = (from + block).min(self.mapped_end());
        if self.faults_huge_page(from) && self.residency.resident(from, until - from) < until - from {
            self.prefault_block(from..until, run.start.max(from)..run.end.min(until));
        }
    }

    /// Prefaults `own` pages of the caller together with the rest of their block. The rest is claimed for that time, because only
    /// an owner may account for it.
    fn prefault_block(&self, block: Range<usize>, own: Range<usize>) {
        let mut paged = own.clone();
        let mut is_short = false;
        // If the claim fails, another thread or a slab has the page, and accounts for it. (Or another claim fails at this moment: then the
        // page is accounted when it is handed out.)
        let mut claim = |&page: &usize| {
            let claimed = self.residency.resident(page, 1) == 0 && self.runs.try_claim(page, 1);
            // The huge page comes whether it is accounted or not, so the headroom does not bound it.
            if claimed && self.residency.account(page, 1, Limit::Cap).is_none() {
                self.runs.release(page, 1);
                is_short = true;
                return false;
            }
            claimed
        };
        // The prefaulted pages join the caller's. The huge page brings all of the block.
        for page in (block.start..own.start).rev().filter(&mut claim) {
            if page + 1 == paged.start {
                paged.start = page;
            } else {
                self.runs.release(page, 1);
            }
        }
        for page in (own.end..block.end).filter(&mut claim) {
            if page == paged.end {
                paged.end = page + 1;
            } else {
                self.runs.release(page, 1);
            }
        }
        self.allow_huge(own.clone());
        // A huge page is prefaulted too, though the first touch would bring it. The kernel may have none, or may have split this one
        // before: then accounted memory would not be there. The rest is freed only after that, so that no other thread purges it first.
        self.residency.prefault(paged.start, paged.len());
        self.runs.release(paged.start, own.start - paged.start);
        self.runs.release(own.end, paged.end - own.end);
        // The huge page also brought memory that the cap has no room for.
        if is_short {
            let calls = self.purge_unaccounted(self.address(block.start), self.bytes(block.len()));
            (0..calls).for_each(|_| self.counters().system_call());
        }
    }

    /// Accounts for `bytes` of the zone's free memory for later requests, and has `prefault` fault it in. Returns how many bytes were
    /// accounted: 0 if the zone or the cap has no room for them.
    pub(crate) fn populate(&self, run_use: RunUse, bytes: usize, prefault: impl FnOnce(Populate<'_>)) -> usize {
        let pages = self.pages(bytes.min(self.capacity_bytes()));
        let Some(start) = self.first_fit(run_use, self.first_of(run_use), pages, 1, 0) else { return 0 };
        let Ok(start) = self.commit_or_move(start, pages, run_use, 1, 0) else { return 0 };
        if self.make_usable(start, pages, Limit::Cap).is_err() {
            return 0;
        }
        prefault(Populate { zone: self, start, pages });
        self.runs.release(start, pages);
        self.bytes(pages)
    }
}

impl Populate<'_> {
    /// Prefaults one of `parts` equal parts.
    pub(crate) fn part(&self, index: usize, parts: usize) {
        let share = self.pages.div_ceil(parts.max(1));
        let from = self.pages.min(index * share);
        let len = share.min(self.pages - from);
        if len > 0 {
            let (at, bytes) = (self.zone.address(self.start + from), self.zone.bytes(len));
            self.zone.counters().system_call();
            // SAFETY: pages that `populate` claimed and committed, and that nobody else knows of.
            if let Err(refused) = unsafe { os::populate(at.as_ptr(), bytes) } {
                self.zone.counters().refused(refused, "prefault", bytes);
            }
        }
    }
}
