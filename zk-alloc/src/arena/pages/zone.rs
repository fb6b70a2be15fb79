//! A zone: a part of the region, divided into pages of one size, which it hands out in runs. Its pages have the size of the kernel's pages;
//! only those of the zone of huge runs are larger.
//!
//! A page is *used* (the thread that set its bit owns it) or free. It is *committed* (readable and writable) if the zone has [`Mapped`] its
//! block. [`Residency`] holds the state of the memory behind each page. A run is marked used before its address is returned, and stays so
//! until after the address is freed. That is the central invariant of the crate.
#![allow(unsafe_code, reason = "hands out memory, commits it, prefaults it, purges it, and withholds it from a child")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::accounts::{self, Limit};
use crate::arena::front::{self, Run};
use crate::arena::pages::bitmap::{Bitmap, WORD_BITS, each_run};
use crate::arena::pages::layout::{self, RunUse, ZoneSpec};
#[cfg(feature = "c-api")]
use crate::arena::pages::lengths::Lengths;
use crate::arena::pages::memory::{Allowance, Mapped, Obstacle, Purge, Residency};
use crate::arena::pages::moved::{self, Moved};
use crate::arena::pages::runs::{Runs, Wanted};
use crate::os::{self, Errno, HUGE_PAGE_BYTES, NotMoved};
use crate::sync::AtomicU64;
use crate::{gate, tuning};

/// The stack size of a thread that helps to prefault, in bytes. If none were given, the standard library would read a default from the
/// environment, under the environment's lock.
const HELPER_STACK_BYTES: usize = 256 << 10;

/// The contents of a new allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Anything.
    Any,
    /// Zeroes.
    Zeroed,
}

/// Why a zone has no memory for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The zone has no free addresses.
    Full,
    /// The kernel refuses memory.
    Refused,
    /// The memory would exceed the [limit](Limit), unless other memory is purged first.
    OverBudget,
}

/// See the module's documentation.
pub(crate) struct Zone {
    base: NonNull<u8>,
    runs: Runs,
    residency: Residency,
    mapped: Mapped,
    moved: Moved,
    #[cfg(feature = "c-api")]
    pub(crate) lengths: Lengths,
    spec: ZoneSpec,
    /// The page below which the next trim continues; 0 to begin at the top.
    trimmed_to: AtomicUsize,
    /// The page below which the next search for moved mappings continues; 0 to begin at the top.
    renewed_to: AtomicUsize,
    /// The page at which the next query of the kernel for untouched memory resumes.
    asked_to: AtomicUsize,
}

// SAFETY: `base` is an address that never changes; everything mutable is atomic, and the memory behind `base` is only accessed through
// pages that the caller owns.
unsafe impl Send for Zone {}
// SAFETY: as above.
unsafe impl Sync for Zone {}

impl Zone {
    /// Creates a zone at `base`, which is a multiple of the page size.
    ///
    /// # Safety
    /// The addresses that the bitmaps describe are within one [`AddressRange`](crate::os::AddressRange), and belong to no other zone. The
    /// bitmaps, five for pages and two for blocks, are clear. So are the words in `claims`, one for each block.
    pub(crate) unsafe fn new(
        base: NonNull<u8>,
        spec: ZoneSpec,
        bits: [Bitmap<'static>; 5],
        block_bits: [Bitmap<'static>; 2],
        claims: &'static [AtomicU64],
    ) -> Result<Self, Errno> {
        let page_bytes = spec.page_bytes;
        debug_assert!(page_bytes.is_power_of_two() && base.addr().get() % page_bytes == 0);
        let [used, resident, dirty, moved, edges] = bits;
        let runs = if cfg!(loom) { Runs::without_index(used) } else { Runs::new(used) }?;
        let [forbidden, ready] = block_bits;
        let residency = Residency::new(base, spec, resident, dirty, forbidden);
        Ok(Self {
            base,
            runs,
            residency,
            mapped: Mapped::new(ready, claims),
            moved: Moved { pages: moved, edges },
            #[cfg(feature = "c-api")]
            lengths: Lengths::new(used.len())?,
            spec,
            trimmed_to: AtomicUsize::new(0),
            renewed_to: AtomicUsize::new(0),
            asked_to: AtomicUsize::new(0),
        })
    }

    /// Hands out a run of at least `bytes` bytes. If no free run that it finds is fully resident, it first calls `elsewhere`, and returns
    /// the memory that this call finds, if any.
    ///
    /// # Errors
    /// See [`Shortage`].
    #[inline]
    pub(crate) fn claim(
        &self,
        bytes: usize,
        align: usize,
        contents: Contents,
        limit: Limit,
        elsewhere: impl FnOnce() -> Option<NonNull<u8>>,
    ) -> Result<NonNull<u8>, Shortage> {
        let Some(start) = self.take_cached(bytes, align) else {
            return self.claim_run(bytes, align, contents, limit, elsewhere);
        };
        if contents == Contents::Zeroed {
            self.residency.zero(start, bytes);
        }
        Ok(self.address(start))
    }

    #[cold]
    fn claim_run(
        &self,
        bytes: usize,
        align: usize,
        contents: Contents,
        limit: Limit,
        elsewhere: impl FnOnce() -> Option<NonNull<u8>>,
    ) -> Result<NonNull<u8>, Shortage> {
        let (wanted, run_use) = (self.wanted(bytes, align), RunUse::of_run(bytes));
        let found = self.claim_free(run_use, wanted);
        if found.is_none_or(|start| self.residency.resident(start, wanted.n) < wanted.n) {
            if let Some(at) = elsewhere() {
                found.into_iter().for_each(|start| self.runs.release(start, wanted.n));
                return Ok(at);
            }
        }
        let start = self.commit_or_move(found.ok_or(Shortage::Full)?, run_use, wanted)?;
        self.hand_out(start, bytes, contents, limit)
    }

    /// Serves a request that belongs to another zone, if this zone has a free run that is fully resident.
    pub(crate) fn claim_for_other_zone(&self, bytes: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        // Resident pages are committed.
        let start = self.claim_resident(RunUse::of_run(bytes), self.wanted(bytes, align))?;
        self.hand_out(start, bytes, contents, Limit::Peak).ok()
    }

    /// Prepares a committed run, which the caller owns, to serve a request. On failure, frees the run.
    fn hand_out(&self, start: usize, bytes: usize, contents: Contents, limit: Limit) -> Result<NonNull<u8>, Shortage> {
        let pages = self.pages(bytes);
        let fresh = self.make_usable(start, pages, limit)?;
        self.count(self.bytes(pages), fresh);
        self.count_request(bytes);
        if contents == Contents::Zeroed {
            self.residency.zero(start, bytes);
        }
        self.residency.mark_dirty(start, pages);
        Ok(self.address(start))
    }

    // Slabs: runs whose pages several threads use at once.

    /// Hands out a slab, which is aligned to its length and may have any contents.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn claim_slab(&self, bytes: usize, limit: Limit) -> Result<NonNull<u8>, Shortage> {
        let wanted = self.wanted(bytes, bytes);
        let start = self.claim_free(RunUse::Slab, wanted).ok_or(Shortage::Full)?;
        let start = self.commit_or_move(start, RunUse::Slab, wanted)?;
        if !self.prefault_slab(start, wanted.n, limit) {
            self.runs.release(start, wanted.n);
            return Err(Shortage::OverBudget);
        }
        self.residency.mark_resident_dirty(start, wanted.n);
        Ok(self.address(start))
    }

    /// Takes back a slab.
    ///
    /// # Safety
    /// `at` came from [`claim_slab`](Self::claim_slab) with these `bytes`. The slab must not be used afterwards.
    pub(crate) unsafe fn release_slab(&self, at: NonNull<u8>, bytes: usize) {
        self.free_pages(self.index(at), self.pages(bytes));
    }

    /// Returns which pages of the slab at `at` are resident, as a bit mask (lowest page first).
    pub(crate) fn slab_pages(&self, at: NonNull<u8>, bytes: usize) -> u64 {
        self.residency.slab_pages(self.index(at), self.pages(bytes))
    }

    /// Counts `pages` (a bit mask) of the slab at `at` as resident. The caller owns a block in each of these pages.
    ///
    /// # Errors
    /// [`Shortage::OverBudget`] if the pages would exceed the limit. Then none of them is counted.
    pub(crate) fn account_slab(&self, at: NonNull<u8>, pages: u64, limit: Limit) -> Result<(), Shortage> {
        let fresh = self.residency.account_slab(self.index(at), pages, limit).ok_or(Shortage::OverBudget)?;
        if fresh > 0 {
            self.count(0, fresh);
        }
        Ok(())
    }

    /// Purges `pages` (a bit mask) of the slab at `at`. Returns how many bytes were purged.
    ///
    /// # Safety
    /// Every block in these pages is free, and the caller owns it.
    pub(crate) unsafe fn purge_slab(&self, at: NonNull<u8>, pages: u64) -> usize {
        let start = self.index(at);
        // SAFETY: upheld by the caller; the pages of a slab are committed.
        each_run(pages).map(|(first, len)| unsafe { self.purge(start + first, len, Purge::Now) }).sum()
    }

    /// Counts `bytes` that are now in use, and `fresh_bytes` that are now resident.
    pub(crate) fn count(&self, bytes: usize, fresh_bytes: usize) {
        let pages = bytes / self.spec.page_bytes;
        accounts::grown(bytes, fresh_bytes, || front::cached_run_bytes_for(pages));
    }

    /// Takes a run for `bytes` out of this thread's cache, and returns its first page. The run is resident and dirty.
    #[inline(always)]
    fn take_cached(&self, bytes: usize, align: usize) -> Option<usize> {
        if !self.caches(bytes) {
            return None;
        }
        let is_aligned = |run: Run| run.address() & (align - 1) == 0;
        let run = front::take_run_if(self.run_bytes(bytes), bytes, is_aligned)?;
        Some(self.page_at(run.address()))
    }

    /// Claims the lowest free run that fits. If it is not fully resident, frees cached runs and searches again. If the second run is not
    /// fully resident either, claims any other free run that is; for slabs, keeps the second run.
    fn claim_free(&self, run_use: RunUse, wanted: Wanted) -> Option<usize> {
        let (from, pages) = (self.first_of(run_use), wanted.n);
        let first_fit = || self.first_fit(run_use, from, wanted);
        let is_resident = |start: &usize| self.residency.resident(*start, pages) == pages;
        let release = |start| self.runs.release(start, pages);
        let mut found = first_fit();
        if !found.as_ref().is_some_and(is_resident) && self.release_some_cached(pages) {
            found.into_iter().for_each(release);
            found = first_fit();
        }
        if run_use == RunUse::Slab || found.as_ref().is_some_and(is_resident) {
            return found;
        }
        let elsewhere = self.claim_resident(run_use, wanted);
        if elsewhere.is_some() {
            found.into_iter().for_each(release);
        }
        elsewhere.or(found)
    }

    /// Claims the lowest run of free pages for a use, at or above `from`.
    fn first_fit(&self, run_use: RunUse, from: usize, wanted: Wanted) -> Option<usize> {
        let start = self.runs.claim_first_fit(from, wanted)?;
        let Some(behind) = self.first_behind_kept(run_use, start, wanted.n) else { return Some(start) };
        self.runs.release(start, wanted.n);
        self.runs.claim_first_fit(behind, wanted)
    }

    /// Returns the first page above the range that is kept from long runs, if this run is long and overlaps that range.
    fn first_behind_kept(&self, run_use: RunUse, start: usize, pages: usize) -> Option<usize> {
        let kept = layout::kept_from_long_runs(self.spec.small_region_bytes, self.capacity_bytes());
        let (from, until) = (self.pages(kept.start), self.pages(kept.end));
        (run_use == RunUse::LongRun && start < until && from < start + pages).then_some(until)
    }

    /// Returns the first page that a run of this use may occupy. Even if the system granted little address space, three quarters of it is
    /// open to all uses.
    fn first_of(&self, run_use: RunUse) -> usize {
        self.pages(layout::kept_from(run_use, self.spec.small_region_bytes)).min(self.runs.len() / 4)
    }

    /// Returns the number of pages of a run, the alignment in pages, and the zone's start modulo that alignment.
    fn wanted(&self, bytes: usize, align: usize) -> Wanted {
        let align = self.pages(self.spec.run_align(bytes, align)).next_power_of_two();
        let first = self.base.addr().get() >> self.spec.page_bytes.trailing_zeros();
        Wanted { n: self.pages(bytes), align, skew: first & (align - 1) }
    }

    /// Claims a run that is free and resident, in the shortest free run in which it fits.
    fn claim_resident(&self, run_use: RunUse, wanted: Wanted) -> Option<usize> {
        if accounts::free_bytes() < self.bytes(wanted.n) {
            return None;
        }
        // If the small-object region has shrunk, the resident memory of the first phase's long runs begins only at the region's former end,
        // so the search looks that far into each free run.
        let (from, beyond) = (self.first_of(RunUse::LongRun), self.pages(self.spec.small_region_bytes));
        let start = self.runs.claim_resident(from, self.residency.resident, wanted, beyond)?;
        if self.first_behind_kept(run_use, start, wanted.n).is_some() {
            self.runs.release(start, wanted.n);
            return None;
        }
        Some(start)
    }

    /// Frees the runs that `cached` takes out of thread caches, if caches hold runs of this zone. Returns whether any were freed.
    pub(crate) fn release_runs(&self, cached: impl Iterator<Item = Run>) -> bool {
        self.spec.is_cached && cached.map(|run| self.release_run(run)).count() > 0
    }

    /// Frees cached runs for a thread that needs `pages` pages of memory. With many threads, frees the runs of only some of them.
    fn release_some_cached(&self, pages: usize) -> bool {
        self.release_runs(front::take_some_runs(pages))
    }

    /// Frees a run that the caller took out of a cache.
    fn release_run(&self, run: Run) {
        self.release_pages(self.page_at(run.address()), self.pages(run.bytes()));
    }

    /// Frees pages that the caller owns, and subtracts them from the bytes in use.
    fn release_pages(&self, start: usize, pages: usize) {
        accounts::released(self.bytes(pages));
        self.free_pages(start, pages);
        gate::tick();
    }

    /// Frees pages that the caller owns. Purges them at once if more is resident than may stay, or if there are too many mappings.
    /// Otherwise, purges as much of a long run as [exceeds](accounts::bytes_beyond_reuse) the memory that the program uses again.
    fn free_pages(&self, start: usize, pages: usize) {
        let beyond_reuse = if layout::is_long_run(self.bytes(pages)) { accounts::bytes_beyond_reuse() } else { 0 };
        // SAFETY: the caller's pages were handed out, so they are committed, and their contents are no longer needed.
        let purge = |start, pages| unsafe { self.purge_and_free(start, pages, Purge::Now) };
        if accounts::is_beyond_retained() || self.moved.is_to_go(start, pages) {
            purge(start, pages);
            return;
        }
        let stays = pages.saturating_sub(self.pages(beyond_reuse));
        let is_beyond = layout::is_long_run(beyond_reuse) && !gate::is_any_phase_open();
        let resident = if is_beyond { self.residency.resident(start + stays, pages - stays) } else { 0 };
        if resident == 0 {
            return self.runs.release(start, pages);
        }
        self.runs.release(start, stays);
        match purge(start + stays, pages - stays) {
            // The kernel refused, as it does for locked memory, and would refuse again at each free.
            0 => accounts::keep_for_reuse(beyond_reuse),
            _ => accounts::returned_until_reuse(self.bytes(resident)),
        }
    }

    /// Counts the caller's pages as resident, and prefaults the huge pages at both ends of the run. The pages are committed. Returns how
    /// many of their bytes were not resident before. On failure, frees the pages.
    fn make_usable(&self, start: usize, pages: usize, limit: Limit) -> Result<usize, Shortage> {
        let fresh = self.account(start, pages, limit)?;
        if fresh > 0 {
            self.prefault_edges(start, pages);
        }
        Ok(fresh)
    }

    /// Like [`make_usable`](Self::make_usable), but prefaults nothing.
    fn account(&self, start: usize, pages: usize, limit: Limit) -> Result<usize, Shortage> {
        let Some(fresh) = self.residency.account(start, pages, limit) else {
            self.runs.release(start, pages);
            return Err(Shortage::OverBudget);
        };
        self.residency.allow(start..start + pages);
        gate::tick();
        Ok(fresh)
    }

    /// Frees a run. A short one may go into this thread's cache.
    ///
    /// # Safety
    /// `at` came from [`claim`](Self::claim) and is now `bytes` long. The run must not be used afterwards.
    #[inline]
    pub(crate) unsafe fn release(&self, at: NonNull<u8>, bytes: usize) {
        let pages = self.pages(bytes);
        if self.caches(bytes) && !accounts::is_beyond_retained() {
            if let Some(run) = Run::new(at.addr().get(), self.bytes(pages)) {
                if let Some(other) = front::put_run(run) {
                    self.release_run(other);
                }
                return;
            }
        }
        self.release_pages(self.index(at), pages);
    }

    /// Whether thread caches take runs of `bytes`. They take no long runs (docs/experiments/ablation.md).
    fn caches(&self, bytes: usize) -> bool {
        self.spec.is_cached && !layout::is_long_run(bytes)
    }

    /// Returns `bytes` rounded up to whole pages.
    pub(crate) fn run_bytes(&self, bytes: usize) -> usize {
        self.bytes(self.pages(bytes))
    }

    /// Returns the size of the zone's address space, in bytes.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes(self.runs.len())
    }

    /// Returns the zone's first address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the size of a page, in bytes.
    pub(crate) fn page_bytes(&self) -> usize {
        self.spec.page_bytes
    }

    /// Returns the index of the page that contains an address.
    pub(crate) fn index(&self, at: NonNull<u8>) -> usize {
        self.page_at(at.addr().get())
    }

    fn page_at(&self, address: usize) -> usize {
        (address - self.base.addr().get()) >> self.spec.page_bytes.trailing_zeros()
    }

    fn pages(&self, bytes: usize) -> usize {
        self.residency.pages(bytes)
    }

    fn bytes(&self, pages: usize) -> usize {
        self.residency.bytes(pages)
    }

    fn address(&self, page: usize) -> NonNull<u8> {
        self.residency.address(page)
    }

    /// Whether the zone has mapped memory at an address in its range. Where it has not, the range may contain foreign mappings.
    #[inline(always)]
    pub(crate) fn owns(&self, at: NonNull<u8>) -> bool {
        self.mapped.is_ready((at.addr().get() - self.base.addr().get()) / HUGE_PAGE_BYTES)
    }

    // Making the zone's address space accessible, block by block (see [`memory`](crate::arena::pages::memory)).

    /// Makes the caller's run accessible. If a foreign mapping or another thread is in the way, frees the caller's run, and claims the next
    /// run above it that can be made accessible. Returns the first page of the run that the caller now owns. On failure, the caller owns
    /// none.
    ///
    /// # Errors
    /// [`Shortage::Full`] if there is no such run, or if more than [`tuning::max_foreign_probes`] foreign mappings are in the way; the next
    /// request continues above them. [`Shortage::Refused`] if the kernel refuses memory.
    fn commit_or_move(&self, mut start: usize, run_use: RunUse, wanted: Wanted) -> Result<usize, Shortage> {
        let (pages, mut probes) = (wanted.n, 0);
        loop {
            match self.commit(start, pages) {
                Ok(()) => return Ok(start),
                Err(Obstacle::Refused) => {
                    self.runs.release(start, pages);
                    return Err(Shortage::Refused);
                }
                Err(Obstacle::Taken { behind, passed }) => {
                    self.give_up(start, pages);
                    probes += usize::from(!passed.is_empty());
                    if probes > tuning::max_foreign_probes() {
                        return Err(Shortage::Full);
                    }
                    // Each iteration moves further up, so the loop ends.
                    start = self.first_fit(run_use, behind * self.block_pages(), wanted).ok_or(Shortage::Full)?;
                }
            }
        }
    }

    /// Makes the caller's pages accessible.
    ///
    /// # Errors
    /// See [`Obstacle`].
    fn commit(&self, start: usize, pages: usize) -> Result<(), Obstacle> {
        // In the models of zones, all memory is committed from the start, because this code would add too many interleavings. `Mapped` has
        // models of its own.
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

    /// Frees pages that the caller owns and that could not be made accessible. Pages in foreign blocks stay used for good, so that no
    /// search finds them again.
    fn give_up(&self, start: usize, pages: usize) {
        let (block, end) = (self.block_pages(), start + pages);
        let mut from = start;
        for index in (start / block..end.div_ceil(block)).filter(|&index| self.mapped.is_foreign(index)) {
            let foreign = (index * block).clamp(start, end);
            self.runs.release(from, foreign - from);
            from = ((index + 1) * block).min(end);
        }
        self.runs.release(from, end - from);
    }

    /// Marks the free pages of foreign blocks as used for good. Other threads that own pages there at this moment [give them
    /// up](Self::give_up) themselves.
    fn take_out(&self, blocks: Range<usize>) {
        let (used, block) = (self.runs.used, self.block_pages());
        let mut first = blocks.start;
        while first < blocks.end {
            // Blocks that are ready, or that another thread is mapping, are not foreign.
            let end = (first..blocks.end).find(|&index| !self.mapped.is_foreign(index)).unwrap_or(blocks.end);
            let (mut at, last) = (first * block, (end * block).min(self.runs.len()));
            while let Some(clear) = used.next_clear_within(at, last) {
                at = used.next_set(clear, last).unwrap_or(last);
                // If another thread claimed the pages first, that thread finds the obstacle itself.
                self.runs.try_claim(clear, at - clear);
            }
            first = end + 1;
        }
    }

    /// Treats all of the zone as committed, for the loom models, which provide the memory themselves.
    #[cfg(loom)]
    pub(crate) fn assume_committed(&self) {
        self.residency.advise_committed(0..self.runs.len());
        let all = 0..self.runs.len().div_ceil(self.block_pages());
        self.mapped.reach(all, || 1, || 1, |_| Ok(())).expect("nothing is in the way");
    }

    /// Returns the number of bytes that were prefaulted and not handed out since.
    pub(crate) fn prefaulted_bytes(&self) -> usize {
        self.residency.clean_bytes(self.mapped_end())
    }

    /// Returns the number of bytes that are in memory, or `None` if the kernel does not report it.
    pub(crate) fn kernel_bytes(&self) -> Option<usize> {
        let block = self.block_pages();
        self.mapped.ready().map(|(start, len)| self.residency.bytes_in_memory(start * block, len * block)).sum()
    }

    /// Returns how many bytes of its address space the zone does not use because of foreign mappings.
    pub(crate) fn foreign_bytes(&self) -> usize {
        self.mapped.foreign() * HUGE_PAGE_BYTES
    }

    /// Returns the end of the mapped pages. No page at or above it is mapped.
    fn mapped_end(&self) -> usize {
        (self.mapped.end() * self.block_pages()).min(self.runs.len())
    }

    /// Returns the number of pages in a block, an aligned range that one huge page can back.
    fn block_pages(&self) -> usize {
        self.pages(HUGE_PAGE_BYTES)
    }

    /// Returns the number of blocks by which the zone grows at once.
    fn step_blocks(&self) -> usize {
        let half = self.bytes(self.mapped_end()) / 2;
        let bytes = half.clamp(tuning::min_commit_bytes(), tuning::max_commit_bytes()).next_power_of_two();
        bytes.div_ceil(HUGE_PAGE_BYTES)
    }

    /// Maps blocks that this thread claimed.
    fn map(&self, blocks: Range<usize>) -> Result<(), Errno> {
        let pages = blocks.start * self.block_pages()..blocks.end * self.block_pages();
        let (at, len) = (self.address(pages.start), self.bytes(pages.len()));
        accounts::system_call();
        // SAFETY: whole blocks of this zone, within its range.
        let mapped = unsafe { os::extend(at.as_ptr(), len) };
        match mapped {
            Ok(()) => self.residency.advise_committed(pages),
            Err(os::OCCUPIED) => {}
            Err(refused) => accounts::refused(refused, "commit memory", len),
        }
        mapped
    }

    // Prefaulting: if the first touch of a run or a slab would fault in a whole huge page, the zone faults the huge page in at once, and
    // counts all of it as resident. It does not prefault small pages (docs/experiments/ablation.md).

    /// Prefaults the first and the last block of the caller's run. The blocks between them are faulted in by the threads that touch them.
    fn prefault_edges(&self, start: usize, pages: usize) {
        let (last, end, block) = (start + pages - 1, start + pages, self.block_pages());
        self.prefault_around(start, start..end);
        if last / block > start / block {
            self.prefault_around(last, start..end);
        }
    }

    /// If the first touch of the caller's slab would fault in its whole block, counts the slab as resident and prefaults the block. Returns
    /// `false` if the slab would exceed the limit.
    fn prefault_slab(&self, start: usize, pages: usize, limit: Limit) -> bool {
        if self.residency.resident(start, pages) == pages || !self.faults_huge_page(start) {
            return true;
        }
        let accounted = self.residency.account(start, pages, limit);
        accounted.inspect(|_| self.prefault_around(start, start..start + pages)).is_some()
    }

    /// Prefaults the block that contains a page of the caller's run. Does nothing if the first touch would not fault in the whole block, or
    /// if all of the block is already counted as resident.
    fn prefault_around(&self, page: usize, run: Range<usize>) {
        let block = self.block_pages();
        let from = page / block * block;
        let until = from + block;
        if self.faults_huge_page(from) && self.residency.resident(from, until - from) < until - from {
            self.prefault_block(from..until, run.start.max(from)..run.end.min(until));
        }
    }

    /// Prefaults the caller's pages, `own`, together with the rest of their block. Claims the free pages of the rest meanwhile, because
    /// only the owner of a page may count it as resident.
    fn prefault_block(&self, block: Range<usize>, own: Range<usize>) {
        let mut paged = own.clone();
        let mut is_short = false;
        // If the claim fails, the page is in use, and its owner counts it as resident. (Or another thread's claim of the page is about to
        // fail; then the page is counted when it is handed out.)
        let mut claim = |&page: &usize| {
            let claimed = self.residency.resident(page, 1) == 0 && self.runs.try_claim(page, 1);
            // The kernel faults in the whole huge page whether it is counted or not, so only the cap applies here, and not [`Limit::Peak`].
            if claimed && self.residency.account(page, 1, Limit::Cap).is_none() {
                self.runs.release(page, 1);
                is_short = true;
                return false;
            }
            claimed
        };
        // Claimed pages adjacent to the caller's pages are prefaulted with them. The other pages become resident with the huge page.
        for page in (block.start..own.start).rev().chain(own.end..block.end).filter(&mut claim) {
            if page + 1 == paged.start {
                paged.start = page;
            } else if page == paged.end {
                paged.end = page + 1;
            } else {
                self.runs.release(page, 1);
            }
        }
        self.residency.allow(own.clone());
        // Do not rely on the first touch to fault in the huge page: the kernel may have no huge page, or may have split this one before.
        // Then some pages that are counted as resident would not be in memory. The claimed pages are freed only afterwards, so that no
        // other thread purges them first.
        self.residency.prefault(paged.clone());
        self.runs.release(paged.start, own.start - paged.start);
        self.runs.release(own.end, paged.end - own.end);
        // Purge the pages that the huge page brought into memory although they do not fit under the cap.
        if is_short {
            let calls = self.purge_unaccounted(self.address(block.start), self.bytes(block.len()));
            (0..calls).for_each(|_| accounts::system_call());
        }
    }

    /// Prefaults `bytes` of the zone's free memory on `threads` threads, for later requests, and counts it as resident. Returns how many
    /// bytes were counted: 0 if the zone or the cap has no room for them.
    pub(crate) fn populate(&self, run_use: RunUse, bytes: usize, threads: usize) -> usize {
        let pages = self.pages(bytes.min(self.capacity_bytes()));
        let wanted = Wanted::anywhere(pages);
        let Some(start) = self.first_fit(run_use, self.first_of(run_use), wanted) else { return 0 };
        let Ok(start) = self.commit_or_move(start, run_use, wanted) else { return 0 };
        if self.make_usable(start, pages, Limit::Cap).is_err() {
            return 0;
        }
        // `call` counts each refusal, and warns about the first one.
        // SAFETY: claimed and committed above, and not handed out.
        let _ = unsafe { self.prefault_on_threads(self.address(start), self.bytes(pages), threads) };
        self.runs.release(start, pages);
        self.bytes(pages)
    }

    /// Prefaults a run on `threads` threads. Only [`reserve`](crate::reserve) and [`Pinned`](crate::Pinned) do this: no request starts
    /// threads.
    ///
    /// # Errors
    /// The system's error for one of the parts. The other parts may be resident nevertheless.
    ///
    /// # Safety
    /// The caller owns the run at `at`, which is committed, and no other thread accesses it.
    pub(crate) unsafe fn prefault_on_threads(
        &self,
        at: NonNull<u8>,
        bytes: usize,
        threads: usize,
    ) -> Result<(), Errno> {
        let (start, pages, refused) = (self.index(at), self.pages(bytes), OnceLock::new());
        let (end, share) = (start + pages, pages.div_ceil(threads.max(1)).max(1));
        let prefault = |from: usize| {
            // SAFETY: upheld by the caller.
            let populated = unsafe { self.residency.call(from..end.min(from + share), "prefault", os::populate) };
            populated.unwrap_or_else(|error| _ = refused.set(error));
        };
        let prefault = &prefault;
        thread::scope(|scope| {
            let mut parts = (start..end).step_by(share);
            let own = parts.next();
            for from in parts {
                let helper = thread::Builder::new().stack_size(HELPER_STACK_BYTES);
                if helper.spawn_scoped(scope, move || prefault(from)).is_err() {
                    prefault(from);
                }
            }
            own.into_iter().for_each(prefault);
        });
        refused.into_inner().map_or(Ok(()), Err)
    }

    // Where the first touch faults in a huge page.

    /// Whether the first touch of a page faults in a huge page.
    fn faults_huge_page(&self, page: usize) -> bool {
        self.residency.asks_for_huge(self.bytes(page)) && !self.residency.is_forbidden(page)
    }

    // Changing the length of a run, in place or elsewhere.

    /// Hands out a run of at least `bytes` bytes, to hold the contents of another run of `len` bytes. Also returns whether the contents
    /// must be copied instead of moved: if the first `len` bytes of the new run are all resident, if the kernel refuses to purge resident
    /// pages there, or if there are too many mappings. The caller counts the request.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn claim_to_move(
        &self,
        bytes: usize,
        align: usize,
        len: usize,
    ) -> Result<(NonNull<u8>, bool), Shortage> {
        let wanted = self.wanted(bytes, align);
        let start = self.claim_to_grow_on(bytes, align).ok_or(Shortage::Full)?;
        let start = self.commit_or_move(start, RunUse::of_run(bytes), wanted)?;
        let (pages, moved) = (wanted.n, self.pages(len));
        let resident = self.residency.resident(start, moved);
        let fresh = self.account(start, pages, Limit::Cap)?;
        // A move would replace resident pages of the new run. If all pages that would be replaced are resident, the contents are copied,
        // which keeps the pages. Otherwise these pages are purged before the move.
        let is_copied = resident == moved
            || !moved::may_move()
            // SAFETY: claimed and committed above; its contents are not needed.
            || resident > 0 && !unsafe { self.residency.advise_gone(start, moved, Purge::Now) };
        if fresh > 0 && moved < pages {
            self.prefault_edges(start + moved, pages - moved);
        }
        // Pages that are moved here cause no page faults, so they do not count as fresh.
        let moved_bytes = if is_copied { 0 } else { self.bytes(moved - resident) };
        self.count(self.bytes(pages), fresh.saturating_sub(moved_bytes));
        self.residency.mark_dirty(start, pages);
        Ok((self.address(start), is_copied))
    }

    /// Counts a request that was served with a run: in this thread's cache if the thread can use the cache now, otherwise in the accounts
    /// of the process.
    pub(crate) fn count_request(&self, bytes: usize) {
        if !front::count_run(bytes) {
            accounts::requested(bytes);
        }
    }

    /// Claims a run with free addresses above it, so that it can grow in place. If addresses are scarce, or if a run without that room has
    /// more resident pages, claims a run without the room.
    fn claim_to_grow_on(&self, bytes: usize, align: usize) -> Option<usize> {
        let pages = self.pages(bytes);
        let resident = |start: usize| self.residency.resident(start, pages);
        let with_room = self.claim_with_room(bytes, align);
        if with_room.is_some_and(|start| resident(start) == pages) {
            return with_room;
        }
        let without = self.claim_free(RunUse::of_run(bytes), self.wanted(bytes, align));
        let (Some(one), Some(other)) = (with_room, without) else { return with_room.or(without) };
        let (better, worse) = if resident(other) > resident(one) { (other, one) } else { (one, other) };
        self.runs.release(worse, pages);
        Some(better)
    }

    /// Claims a run at a multiple of [`ZoneSpec::growth_room`] times its length. Returns `None` if addresses are scarce.
    fn claim_with_room(&self, bytes: usize, align: usize) -> Option<usize> {
        let (room, pages) = (self.spec.growth_room, self.pages(bytes));
        // The zone begins at a multiple of the huge page size, and so does each such place.
        if room == 1 || align > HUGE_PAGE_BYTES {
            return None;
        }
        let room = pages.checked_mul(room)?.checked_next_power_of_two()?;
        let start = self.claim_free(RunUse::of_run(bytes), Wanted { n: pages, align: room, skew: 0 })?;
        // Addresses are not scarce if all pages up to the end of the run are mapped, or if the process's limits (`RLIMIT_AS`,
        // `RLIMIT_DATA`, `vm.overcommit_memory=2`) leave room for `tuning::address_headroom_factor` times the missing bytes.
        let missing = self.bytes((start + pages).saturating_sub(self.mapped_end()));
        if missing == 0 || missing.checked_mul(tuning::address_headroom_factor()).is_some_and(os::may_map_sparsely) {
            return Some(start);
        }
        self.runs.release(start, pages);
        None
    }

    /// Changes the length of a run in place. Returns `false` if the run can't grow in place. Shrinking never fails.
    ///
    /// # Safety
    /// `at` came from [`claim`](Self::claim) and is now `old_bytes` long. If the run shrinks, the part that is cut off must not be used
    /// afterwards.
    pub(crate) unsafe fn resize(&self, at: NonNull<u8>, old_bytes: usize, new_bytes: usize) -> bool {
        let (old, new) = (self.pages(old_bytes), self.pages(new_bytes));
        let start = self.index(at);
        if new > old {
            let (more_at, more) = (start + old, new - old);
            let claim = || self.runs.try_claim(more_at, more);
            let claimed = claim() || self.release_some_cached(more) && claim();
            if !claimed {
                return false;
            }
            if self.commit(more_at, more).is_err() {
                self.give_up(more_at, more);
                return false;
            }
            let Ok(fresh) = self.make_usable(more_at, more, Limit::Cap) else { return false };
            self.residency.mark_dirty(more_at, more);
            self.count(self.bytes(more), fresh);
        } else if new < old {
            self.release_pages(start + new, old - new);
        }
        true
    }

    /// Frees a run whose pages were moved elsewhere.
    ///
    /// # Safety
    /// Same as for [`release`](Self::release); the kernel has moved all pages of the run away.
    pub(crate) unsafe fn release_moved(&self, at: NonNull<u8>, bytes: usize) {
        let (start, pages) = (self.index(at), self.pages(bytes));
        self.residency.forbid_around(start..start + pages);
        self.residency.moved_away(start, pages);
        if self.moved.is_better_renewed(start, pages) {
            // The pages are gone, so a fresh mapping costs only the system call.
            // SAFETY: the caller owns the pages, and does not need their contents.
            let renewed = unsafe { self.renew(start, pages) };
            if renewed.is_err_and(|refused| !refused.is_target_whole) {
                return accounts::released(self.bytes(pages));
            }
        }
        self.release_pages(start, pages);
    }

    /// Records that `len` bytes were moved from `from`, an address in the zone `old`, to the caller's run.
    pub(crate) fn moved_here(&self, to: NonNull<u8>, len: usize, old: &Self, from: NonNull<u8>) {
        let (start, pages) = (self.index(to), self.pages(len));
        let inner = old.moved.inner_edges(old.index(from), old.pages(len)).map(|page| self.pages(old.bytes(page)));
        self.moved.moved_here(start, pages, inner);
    }

    /// Leaves the caller's run marked as used for good, because another mapping may occupy a gap in it.
    pub(crate) fn abandon(&self, at: NonNull<u8>, bytes: usize) {
        let (start, pages) = (self.index(at), self.pages(bytes));
        self.residency.moved_away(start, pages);
        accounts::released(self.bytes(pages));
    }

    /// See [`Residency::make_one_mapping`].
    pub(crate) fn make_one_mapping(&self, at: NonNull<u8>, bytes: usize) {
        let start = self.index(at);
        self.residency.make_one_mapping(start..start + self.pages(bytes));
    }

    // Purging a zone's free memory.

    /// Purges free memory, from the top address down, until the allowance is spent or no free memory is resident. Returns how many bytes
    /// were purged. If the allowance of words runs out, the next trim continues where this one stopped.
    pub(crate) fn trim(&self, allowance: &mut Allowance, how: Purge) -> usize {
        let resident = self.residency.resident;
        let top = self.mapped_end();
        let begun = take_place(&self.trimmed_to, top);
        let mut gone = 0;
        // First the pages below the place where the last trim stopped, then the rest.
        for Range { start: lowest, mut end } in [0..begun, begun..top] {
            while end > lowest && !allowance.is_spent() {
                let from = end.saturating_sub(allowance.words.saturating_mul(WORD_BITS)).max(lowest);
                let found = resident.last_run_without(self.runs.used, from, end, self.pages(allowance.bytes));
                if let Some((start, len)) = found {
                    let went = self.trim_run(start, len, how);
                    allowance.spend(went, 1, (end - start) / WORD_BITS);
                    (gone, end) = (gone + went, start);
                    continue;
                }
                allowance.spend(0, 0, (end - from) / WORD_BITS + 1);
                if from > lowest {
                    // This trim has read all the words that it may, so it ends.
                    self.trimmed_to.store(from, Ordering::Relaxed);
                }
                end = from;
            }
        }
        // Few processes move pages. Without this check, each trim would search the zone for nothing.
        if how == Purge::Now && moved::is_any_moved() {
            self.renew_purged(allowance);
        }
        gone
    }

    /// Returns how many bytes are counted as resident although the kernel has no pages for them. Asks only about resident runs of a huge
    /// page or more. Stops after finding about `left` bytes in memory; the next call continues there.
    pub(crate) fn untouched_bytes(&self, left: &mut usize) -> usize {
        let end = self.mapped_end();
        let begun = self.asked_to.swap(0, Ordering::Relaxed).min(end);
        let mut untouched = 0;
        for (start, len) in self.residency.resident.set_runs(begun, end - begun) {
            if *left == 0 {
                self.asked_to.store(start, Ordering::Relaxed);
                break;
            }
            // This thread need not own these pages, because the answer is only an estimate.
            if self.bytes(len) >= HUGE_PAGE_BYTES {
                let Some(in_memory) = self.residency.bytes_in_memory(start, len) else { break };
                untouched += self.bytes(len) - in_memory.min(self.bytes(len));
                // The query takes time even if nothing is in memory.
                *left = left.saturating_sub(in_memory.max(self.bytes(len) / 16));
            }
        }
        untouched
    }

    /// Replaces the mappings of free runs of moved pages, if all pages of the run are purged. Makes a bounded number of system calls; the
    /// next call continues at lower addresses.
    fn renew_purged(&self, allowance: &mut Allowance) {
        let top = self.mapped_end();
        let mut end = take_place(&self.renewed_to, top);
        for _ in 0..tuning::renewed_at_once() {
            if allowance.is_spent() {
                break;
            }
            let from = end.saturating_sub(allowance.words.saturating_mul(WORD_BITS));
            let Some((start, len)) = self.moved.last_free(self.runs.used, from..end) else {
                allowance.spend(0, 0, (end - from) / WORD_BITS + 1);
                end = from;
                break;
            };
            allowance.spend(0, 1, (end - start) / WORD_BITS + 1);
            end = start;
            if self.runs.try_claim(start, len) {
                let is_purged = self.residency.resident(start, len) == 0;
                if is_purged && self.moved.is_better_renewed(start, len) {
                    // SAFETY: this thread has owned the run since the claim above. The run is committed, as all moved pages are.
                    unsafe { self.purge_and_free(start, len, Purge::Now) };
                } else {
                    self.runs.release(start, len);
                }
            }
        }
        self.renewed_to.store(end, Ordering::Relaxed);
    }

    /// Purges the free pages of `[start, start + len)`, in one call if all of them are free.
    fn trim_run(&self, start: usize, len: usize, how: Purge) -> usize {
        let mut gone = 0;
        // SAFETY: this thread owns the part, which is committed, because it was resident.
        self.claim_parts(start, len, 1, &mut |start, len| gone += unsafe { self.purge_and_free(start, len, how) });
        gone
    }

    /// Claims those parts of a run that are free and have at least `min_pages` pages, and calls `claimed` with each part, which the caller
    /// owns from then on.
    fn claim_parts(&self, start: usize, len: usize, min_pages: usize, claimed: &mut impl FnMut(usize, usize)) {
        if len < min_pages {
            return;
        }
        if self.runs.try_claim(start, len) {
            claimed(start, len);
        } else if len > 1 {
            let half = len / 2;
            self.claim_parts(start, half, min_pages, claimed);
            self.claim_parts(start + half, len - half, min_pages, claimed);
        }
    }

    /// Purges the caller's pages, and frees them. With [`Purge::Now`], replaces the mappings of moved pages with a fresh one, if that does
    /// not increase the number of mappings. Returns how many bytes were purged.
    ///
    /// # Safety
    /// Same as for [`Residency::purge`].
    unsafe fn purge_and_free(&self, start: usize, pages: usize, how: Purge) -> usize {
        if how == Purge::Now && self.moved.is_better_renewed(start, pages) {
            self.residency.forbid_around(start..start + pages);
            // SAFETY: upheld by the caller.
            match unsafe { self.renew(start, pages) } {
                Ok(()) => {
                    self.runs.release(start, pages);
                    return self.bytes(pages);
                }
                // These pages stay used for good, because another mapping may be among them.
                Err(NotMoved { is_target_whole: false, .. }) => return self.bytes(pages),
                Err(_) => {}
            }
        }
        // SAFETY: upheld by the caller.
        let gone = unsafe { self.purge(start, pages, how) };
        self.runs.release(start, pages);
        gone
    }

    /// Replaces the mappings of the caller's pages with a fresh one, and repeats the advice for these addresses.
    ///
    /// # Errors
    /// See [`os::renew`].
    ///
    /// # Safety
    /// Same as for [`Residency::purge`].
    unsafe fn renew(&self, start: usize, pages: usize) -> Result<(), NotMoved> {
        // SAFETY: upheld by the caller.
        let renewed = unsafe { self.residency.renew(start, pages) };
        if renewed.is_ok() {
            self.moved.renewed(start, pages);
        }
        if renewed.is_ok() || renewed.is_err_and(|refused| refused.is_target_whole) {
            self.residency.advise_again(start..start + pages);
        }
        renewed
    }

    /// Purges pages. With [`Purge::Now`], first forbids huge pages in the blocks that they only partly cover. Returns how many bytes were
    /// purged.
    ///
    /// # Safety
    /// Same as for [`Residency::purge`].
    unsafe fn purge(&self, start: usize, pages: usize, how: Purge) -> usize {
        if how == Purge::Now {
            self.residency.forbid_around(start..start + pages);
        }
        // SAFETY: upheld by the caller.
        unsafe { self.residency.purge(start, pages, how) }
    }

    /// Purges the free memory of `[at, at + bytes)` that is not counted as resident, but that the kernel may have brought into memory.
    /// Returns the number of system calls, so that callers on a thread of the program can count them.
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
                    self.residency.forbid_around(page..page + 1);
                    // SAFETY: this thread has owned the page since the claim above. The page was free before, and is committed, as the
                    // caller's memory is. If the kernel refuses, the page stays as it is.
                    let _ = unsafe { os::discard(self.address(page).as_ptr(), self.spec.page_bytes) };
                    calls += 1;
                }
                self.runs.release(page, 1);
            }
        }
        calls
    }
}

/// Takes the page below which a search continues: `top`, or the page at which the last search stopped.
fn take_place(place: &AtomicUsize, top: usize) -> usize {
    Some(place.swap(0, Ordering::Relaxed)).filter(|&page| page > 0 && page < top).unwrap_or(top)
}

/// Withholding free memory from a forked child.
#[cfg(unix)]
impl Zone {
    /// Calls `visit` with each run of free resident pages that has at least `min_bytes`, from the top address down.
    pub(crate) fn free_runs(&self, min_bytes: usize, mut visit: impl FnMut(Range<usize>)) {
        let resident = self.residency.resident;
        let mut end = self.mapped_end();
        while let Some((start, len)) = resident.last_run_without(self.runs.used, 0, end, usize::MAX) {
            end = start;
            let run = self.without_split_blocks(start..start + len);
            if self.bytes(run.len()) >= min_bytes.max(1) {
                visit(run);
            }
        }
    }

    /// Returns the part of a run that can be withheld without splitting a huge page.
    fn without_split_blocks(&self, run: Range<usize>) -> Range<usize> {
        if !self.residency.asks_for_huge(self.bytes(run.start)) {
            return run;
        }
        let block = self.block_pages();
        let start = run.start.next_multiple_of(block);
        start..(run.end / block * block).max(start)
    }

    /// Claims those parts of a run that are free and have at least `min_bytes`, and calls `claimed` with each part, which the caller owns
    /// from then on.
    pub(crate) fn claim_to_withhold(
        &self,
        run: Range<usize>,
        min_bytes: usize,
        claimed: &mut impl FnMut(NonNull<u8>, usize),
    ) {
        let mut claimed = |start: usize, len: usize| claimed(self.address(start), self.bytes(len));
        self.claim_parts(run.start, run.len(), self.pages(min_bytes.max(1)), &mut claimed);
    }

    /// Makes a forked child read zeroes in a range instead of inheriting it.
    ///
    /// # Errors
    /// The system's error. After `ENOMEM`, a part of the range may be withheld.
    ///
    /// # Safety
    /// The caller owns the range, and does not need its contents. The caller calls [`stop_withholding`](Self::stop_withholding) afterwards,
    /// even after `ENOMEM`.
    pub(crate) unsafe fn withhold(&self, at: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
        accounts::system_call();
        // SAFETY: upheld by the caller.
        unsafe { os::wipe_on_fork(at.as_ptr(), bytes) }
    }

    /// Frees a range that was claimed, but not withheld.
    ///
    /// # Safety
    /// The caller owns the range, and does not need its contents.
    pub(crate) unsafe fn release_claimed(&self, at: NonNull<u8>, bytes: usize) {
        self.runs.release(self.index(at), self.pages(bytes));
    }

    /// Frees a range that was withheld from a child; in the child, purges it.
    ///
    /// # Safety
    /// The caller owns the range, and does not need its contents.
    pub(crate) unsafe fn stop_withholding(&self, at: NonNull<u8>, bytes: usize, is_in_child: bool) {
        let (start, pages, what) = (self.index(at), self.pages(bytes), "let children inherit memory");
        // SAFETY: upheld by the caller.
        match unsafe { self.residency.call(start..start + pages, what, os::keep_on_fork) } {
            // If another thread was just withholding the range when the process forked, the child may have inherited a part of it.
            // SAFETY: upheld by the caller; the range is committed, because it was free and resident.
            Ok(()) if is_in_child => _ = unsafe { self.purge_and_free(start, pages, Purge::Now) },
            Ok(()) => self.runs.release(start, pages),
            // The range stays used for good, because later children would not inherit its contents.
            // SAFETY: as above.
            Err(_) => _ = unsafe { self.purge(start, pages, Purge::Now) },
        }
    }
}
