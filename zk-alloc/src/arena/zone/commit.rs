//! Making the zone's address space accessible, block by block (see [`mapped`](crate::arena::mapped)).
#![allow(unsafe_code, reason = "commits memory")]

use std::ops::Range;

use super::{RunUse, Shortage, Zone};
use crate::arena::mapped::{Obstacle, Unmapped};
use crate::os::{self, HUGE_PAGE_BYTES};
use crate::tuning;

impl Zone {
    /// Makes the caller's run accessible. If something else is in the way, takes the next run behind it that can be made accessible, and
    /// frees the caller's. Returns the run that the caller has now. On failure, it has none.
    ///
    /// # Errors
    /// [`Shortage::Full`] if there is none, or if more than [`tuning::max_foreign_probes`] foreign mappings are in the way: the next request
    /// goes on behind them. [`Shortage::Refused`] if the kernel refuses memory.
    pub(super) fn commit_or_move(
        &self,
        start: usize,
        pages: usize,
        run_use: RunUse,
        align: usize,
        skew: usize,
    ) -> Result<usize, Shortage> {
        let (mut start, mut probes) = (start, 0);
        loop {
            let behind = match self.commit(start, pages) {
                Ok(()) => return Ok(start),
                Err(Obstacle::Refused) => {
                    self.runs.release(start, pages);
                    return Err(Shortage::Refused);
                }
                Err(Obstacle::Taken { behind, passed }) => {
                    self.give_up(start, pages);
                    probes += usize::from(!passed.is_empty());
                    behind
                }
            };
            if probes > tuning::max_foreign_probes() {
                return Err(Shortage::Full);
            }
            // Each step leads further up, so the loop ends.
            let from = behind * self.block_pages();
            start = self.first_fit(run_use, from, pages, align, skew).ok_or(Shortage::Full)?;
        }
    }

    /// Makes the caller's pages accessible where they are.
    ///
    /// # Errors
    /// See [`Obstacle`].
    pub(super) fn commit(&self, start: usize, pages: usize) -> Result<(), Obstacle> {
        // The models of zones have all memory from the start, and no interleavings to spare. `Mapped` has models of its own.
        if cfg!(loom) {
            return Ok(());
        }
        let blocks = start / self.block_pages()..(start + pages).div_ceil(self.block_pages());
        let reached =
            self.mapped.reach(blocks, || self.step_blocks(), os::process_generation, |blocks| self.map(blocks));
        if let Err(Obstacle::Taken { passed, .. }) = &reached {
            self.take_out(passed.clone());
        }
        reached
    }

    /// Frees pages of the caller's that could not be made accessible. Those in foreign blocks stay used for good, so that no search finds
    /// them again.
    pub(super) fn give_up(&self, start: usize, pages: usize) {
        let (block, end) = (self.block_pages(), start + pages);
        let mut from = start;
        for index in (start / block..end.div_ceil(block)).filter(|&index| self.mapped.is_foreign(index)) {
            let foreign = (index * block).clamp(start, end);
            self.runs.release(from, foreign - from);
            from = ((index + 1) * block).min(end);
        }
        self.runs.release(from, end - from);
    }

    /// Takes the free pages of foreign blocks for good. Pages that other threads hold at this moment are theirs to [give up](Self::give_up).
    fn take_out(&self, blocks: Range<usize>) {
        let (used, block) = (self.runs.used(), self.block_pages());
        let mut first = blocks.start;
        while first < blocks.end {
            // Blocks that are ready, or that another thread is mapping, are not foreign.
            let end = (first..blocks.end).find(|&index| !self.mapped.is_foreign(index)).unwrap_or(blocks.end);
            let (mut at, last) = (first * block, (end * block).min(self.runs.len()));
            while let Some(clear) = used.next_clear_within(at, last) {
                at = used.next_set(clear, last).unwrap_or(last);
                // If another thread was faster, it finds the obstacle by itself.
                self.runs.try_claim(clear, at - clear);
            }
            first = end + 1;
        }
    }

    /// Treats all of the zone as committed, for the models of loom, which have memory of their own.
    #[cfg(loom)]
    pub(crate) fn assume_committed(&self) {
        self.huge.advise(&self.residency, 0..self.runs.len());
        let all = 0..self.runs.len().div_ceil(self.block_pages());
        self.mapped.reach(all, || 1, || 1, |_| Ok(())).expect("nothing is in the way");
    }

    /// Bytes that were prefaulted, and not handed out since.
    pub(crate) fn prefaulted_bytes(&self) -> usize {
        self.residency.clean_bytes(self.mapped_end())
    }

    /// Bytes for which the kernel has pages; `None` if it does not tell.
    pub(crate) fn kernel_bytes(&self) -> Option<usize> {
        let block = self.block_pages();
        self.mapped
            .ready()
            .map(|blocks| self.residency.bytes_in_memory(blocks.start * block, blocks.len() * block))
            .sum()
    }

    /// Bytes of address space in which other mappings lie, as far as the zone found them.
    pub(crate) fn foreign_bytes(&self) -> usize {
        self.mapped.foreign() * HUGE_PAGE_BYTES
    }

    /// Pages from here on are not mapped.
    pub(super) fn mapped_end(&self) -> usize {
        (self.mapped.end() * self.block_pages()).min(self.runs.len())
    }

    /// Pages of a block, the place of a huge page.
    pub(super) fn block_pages(&self) -> usize {
        self.pages(HUGE_PAGE_BYTES)
    }

    /// The blocks of a step in which the zone grows.
    fn step_blocks(&self) -> usize {
        let half = self.bytes(self.mapped_end()) / 2;
        let bytes = half.clamp(tuning::min_commit_bytes(), tuning::max_commit_bytes()).next_power_of_two();
        bytes.div_ceil(HUGE_PAGE_BYTES)
    }

    /// Maps blocks that this thread claimed.
    fn map(&self, blocks: Range<usize>) -> Result<(), Unmapped> {
        let pages = blocks.start * self.block_pages()..blocks.end * self.block_pages();
        let (at, len) = (self.address(pages.start), self.bytes(pages.len()));
        self.counters().system_call();
        // SAFETY: whole blocks of this zone, within its range.
        match unsafe { os::extend(at.as_ptr(), len) } {
            Ok(()) => {
                self.huge.advise(&self.residency, pages);
                Ok(())
            }
            Err(os::OCCUPIED) => Err(Unmapped::Occupied),
            Err(refused) => {
                self.counters().refused(refused, "commit memory", len);
                Err(Unmapped::Refused)
            }
        }
    }
}
