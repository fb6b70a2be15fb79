//! Purging a zone's free memory.
#![allow(unsafe_code, reason = "purges memory")]

use std::ptr::NonNull;

use std::sync::atomic::Ordering;

use super::{Purge, Zone};
use crate::arena::bitmap::WORD_BITS;
use crate::arena::residency::Allowance;
use crate::os::{self, HUGE_PAGE_BYTES, NotMoved};
use crate::tuning;

impl Zone {
    /// Purges free memory, from the top address down, until the allowance is spent or no free memory is resident. Returns how many bytes
    /// were purged. A trim that read as many words as it may ends in the midst of the zone, and the next one continues there.
    pub(crate) fn trim(&self, allowance: &mut Allowance, how: Purge) -> usize {
        let resident = self.residency.resident_bits();
        let top = self.mapped_end();
        let begun = Some(self.trimmed_to.swap(0, Ordering::Relaxed)).filter(|&page| page > 0 && page < top);
        let (mut gone, mut end, mut lowest) = (0, begun.unwrap_or(top), 0);
        let mut is_around = begun.is_none();
        while !allowance.is_spent() {
            let from = end.saturating_sub(allowance.words.saturating_mul(WORD_BITS)).max(lowest);
            let found = resident.last_run_without(self.runs.used(), from, end);
            if let Some((start, len)) = found {
                let wanted = self.pages(allowance.bytes).min(len);
                let went = self.trim_run(start + len - wanted, wanted, how);
                allowance.spend(went, 1, (end - start) / WORD_BITS);
                (gone, end) = (gone + went, start + len - wanted);
                continue;
            }
            allowance.spend(0, 0, (end - from) / WORD_BITS + 1);
            if from > lowest {
                self.trimmed_to.store(from, Ordering::Relaxed);
                break;
            }
            if is_around {
                break;
            }
            (end, lowest, is_around) = (top, begun.unwrap_or(0), true);
        }
        if how == Purge::Now {
            self.renew_purged(allowance);
        }
        gone
    }

    /// The accounted bytes of long runs for which the kernel has no pages. Stops when it has found `left` bytes of pages, and the next call
    /// continues there.
    pub(crate) fn untouched_bytes(&self, left: &mut usize) -> usize {
        let end = self.mapped_end();
        let begun = self.asked_to.swap(0, Ordering::Relaxed).min(end);
        let mut untouched = 0;
        for (start, len) in self.residency.resident_bits().set_runs(begun, end - begun) {
            if *left == 0 {
                self.asked_to.store(start, Ordering::Relaxed);
                break;
            }
            // Nobody else need own these pages: the answer is a guess at any time.
            if self.bytes(len) >= HUGE_PAGE_BYTES {
                let Some(in_memory) = self.residency.bytes_in_memory(start, len) else { break };
                untouched += self.bytes(len) - in_memory.min(self.bytes(len));
                // To ask takes time, too.
                *left = left.saturating_sub(in_memory.max(self.bytes(len) / 16));
            }
        }
        untouched
    }

    /// Replaces the mappings that moves left, and of which all free pages were purged, as far as that is done within some system calls.
    fn renew_purged(&self, allowance: &mut Allowance) {
        let mut end = self.mapped_end();
        for _ in 0..tuning::renewed_at_once() {
            if allowance.is_spent() {
                return;
            }
            allowance.spend(0, 1, 1);
            let Some((start, len)) = self.moved.last_free(self.runs.used(), end) else { return };
            end = start;
            if self.runs.try_claim(start, len) {
                let is_purged = self.residency.resident(start, len) == 0;
                if is_purged && self.moved.is_better_renewed(start, len) {
                    // SAFETY: this thread owns the run since the claim above. The run is committed, as all moved pages are.
                    unsafe { self.purge_and_free(start, len, Purge::Now) };
                } else {
                    self.runs.release(start, len);
                }
            }
        }
    }

    /// Purges the free pages of `[start, start + len)`, at once if no page is used.
    fn trim_run(&self, start: usize, len: usize, how: Purge) -> usize {
        if !self.runs.try_claim(start, len) {
            if len == 1 {
                return 0;
            }
            let half = len / 2;
            return self.trim_run(start, half, how) + self.trim_run(start + half, len - half, how);
        }
        // SAFETY: this thread owns the run since the claim above. The run is committed, as is all memory that the callers look at.
        unsafe { self.purge_and_free(start, len, how) }
    }

    /// Purges the caller's pages, and frees them. If they go at once, fresh mappings replace those that moves left there, where that makes
    /// fewer of them. Returns how many bytes were purged.
    ///
    /// # Safety
    /// As for [`Residency::purge`].
    pub(super) unsafe fn purge_and_free(&self, start: usize, pages: usize, how: Purge) -> usize {
        if how == Purge::Now && self.moved.is_better_renewed(start, pages) {
            self.forbid_huge_around(start..start + pages);
            // SAFETY: the caller's.
            match unsafe { self.renew(start, pages) } {
                Ok(()) => {
                    self.runs.release(start, pages);
                    return self.bytes(pages);
                }
                // Nobody gets these pages again, because another mapping may lie among them.
                Err(NotMoved { is_target_whole: false, .. }) => return self.bytes(pages),
                Err(_) => {}
            }
        }
        // SAFETY: the caller's.
        let gone = unsafe { self.purge(start, pages, how) };
        self.runs.release(start, pages);
        gone
    }

    /// Replaces the mappings of the caller's pages by a fresh one, with the advice of its place.
    ///
    /// # Errors
    /// See [`os::renew`].
    ///
    /// # Safety
    /// As for [`Residency::purge`].
    pub(super) unsafe fn renew(&self, start: usize, pages: usize) -> Result<(), NotMoved> {
        // SAFETY: the caller's.
        let renewed = unsafe { self.residency.renew(start, pages) };
        if renewed.is_ok() {
            self.moved.renewed(start, pages);
        }
        if renewed.is_ok() || renewed.is_err_and(|refused| refused.is_target_whole) {
            self.huge.advise_again(&self.residency, start..start + pages);
        }
        renewed
    }

    /// Purges pages. If they go at once, forbids the blocks around them to be huge. Returns how many bytes were purged.
    ///
    /// # Safety
    /// As for [`Residency::purge`].
    pub(super) unsafe fn purge(&self, start: usize, pages: usize, how: Purge) -> usize {
        if how == Purge::Now {
            self.forbid_huge_around(start..start + pages);
        }
        // SAFETY: the caller's.
        unsafe { self.residency.purge(start, pages, how) }
    }

    /// Purges the free memory of `[at, at + bytes)` that is not accounted as resident. The kernel may have brought it into memory. Returns
    /// the number of system calls. Callers count them if a thread of the program makes them.
    pub(crate) fn purge_unaccounted(&self, at: NonNull<u8>, bytes: usize) -> usize {
        let (start, pages) = (self.index(at), self.pages(bytes));
        if self.residency.resident(start, pages) == pages {
            return 0;
        }
        let mut calls = 0;
        let is_unaccounted = |&page: &usize| self.residency.resident(page, 1) == 0;
        for page in (start..start + pages).filter(is_unaccounted) {
            if self.runs.try_claim(page, 1) {
                if is_unaccounted(&page) {
                    self.forbid_huge_around(page..page + 1);
                    // SAFETY: this thread owns the page since the claim above. It was free before, and is committed, as the caller's
                    // memory is. If the kernel refuses, it stays as it is.
                    let _ = unsafe { os::discard(self.address(page).as_ptr(), self.spec.page_bytes) };
                    calls += 1;
                }
                self.runs.release(page, 1);
            }
        }
        calls
    }
}
