//! A zone: a part of the region, cut into pages of one size, handed out in runs. A zone's page is as large as the kernel's. Only huge runs
//! consist of larger ones.
//!
//! A page is *used* (the thread that set its bit owns it) or free. It is *committed* (readable and writable) if the zone has [`Mapped`] its
//! block. [`Residency`] knows the state of the memory behind it. A run is used from before its address is returned until after the address
//! was freed. That is the invariant of the crate.
#![allow(unsafe_code, reason = "hands out memory")]

mod commit;
#[cfg(unix)]
mod fork;
mod growth;
mod huge_advice;
mod prefault;
mod purge;

use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

use super::bitmap::Bitmap;
use super::budget::{self, Limit};
use super::decay;
use super::huge::HugePages;
use super::layout::{Zeroing, ZoneSpec};
use super::mapped::Mapped;
use super::moved::Moved;
use super::residency::{Purge, Residency};
use super::room::{self, RunUse};
use super::runs::Runs;
use super::thread_cache::{self, Cache, Run};
use crate::counters::{self, ZoneCounters};
use crate::os::{Errno, HUGE_PAGE_BYTES};
use crate::route;
use crate::sync::AtomicU64;

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
    /// The memory would be resident beyond the cap, unless something else is purged first.
    OverBudget,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Zone {
    base: NonNull<u8>,
    runs: Runs,
    residency: Residency,
    mapped: Mapped,
    moved: Moved,
    huge: HugePages,
    spec: ZoneSpec,
    /// The page below which the next trim continues; 0 to begin at the top.
    trimmed_to: AtomicUsize,
    /// The page at which the next question for untouched memory continues.
    asked_to: AtomicUsize,
}

// SAFETY: `base` is an address that never changes; everything mutable is atomic, and the memory behind `base` is only
// reached through pages that the caller owns.
unsafe impl Send for Zone {}
// SAFETY: as above.
unsafe impl Sync for Zone {}

impl Zone {
    /// A zone at `base`, which is a multiple of a page.
    ///
    /// # Safety
    /// The addresses that the bitmaps describe lie within one [`AddressRange`](crate::os::AddressRange), and are no other zone's. The bitmaps, five of
    /// pages and two of blocks, are clear, and so are the words in `claims`, one for each block.
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
        let residency = Residency::new(base, page_bytes.trailing_zeros(), resident, dirty, Zeroing::new(&spec));
        #[cfg(not(loom))]
        let runs = Runs::new(used)?;
        #[cfg(loom)]
        let runs = Runs::without_index(used)?;
        let [forbidden, ready] = block_bits;
        Ok(Self {
            base,
            runs,
            residency,
            mapped: Mapped::new(ready, claims),
            moved: Moved::new(moved, edges),
            huge: HugePages::new(&spec, forbidden),
            spec,
            trimmed_to: AtomicUsize::new(0),
            asked_to: AtomicUsize::new(0),
        })
    }

    /// Hands out a run of at least `bytes` bytes. Before it hands out what is not resident, it asks whether there is memory
    /// `elsewhere`.
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
        let pages = self.pages(bytes);
        let run_use = RunUse::of_run(bytes);
        let found = self.claim_free(run_use, bytes, align);
        if found.is_none_or(|start| self.residency.resident(start, pages) < pages) {
            if let Some(at) = elsewhere() {
                found.into_iter().for_each(|start| self.runs.release(start, pages));
                return Ok(at);
            }
        }
        let (align, skew) = self.align_and_skew(bytes, align);
        let start = self.commit_or_move(found.ok_or(Shortage::Full)?, pages, run_use, align, skew)?;
        self.hand_out(start, bytes, contents, limit)
    }

    /// Hands out a run that is free and resident, for a request whose own zone has none.
    pub(crate) fn claim_for_other_zone(&self, bytes: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        let (align, skew) = self.align_and_skew(bytes, align);
        // Resident pages are committed.
        let start = self.claim_resident(RunUse::of_run(bytes), self.pages(bytes), align, skew)?;
        self.hand_out(start, bytes, contents, Limit::Peak).ok()
    }

    /// Makes a committed run of the caller's ready for its new owner. Where that can't be, it is free again.
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

    /// Hands out a slab, which is as long as it is aligned, with anything in it. Also returns the resident ones of its pages, as bits:
    /// the slab accounts for them from now on.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn claim_slab(&self, bytes: usize, limit: Limit) -> Result<(NonNull<u8>, u64), Shortage> {
        let pages = self.pages(bytes);
        let start = self.claim_free(RunUse::Slab, bytes, bytes).ok_or(Shortage::Full)?;
        let (align, skew) = self.align_and_skew(bytes, bytes);
        let start = self.commit_or_move(start, pages, RunUse::Slab, align, skew)?;
        if !self.prefault_slab(start, pages, limit) {
            self.runs.release(start, pages);
            return Err(Shortage::OverBudget);
        }
        Ok((self.address(start), self.residency.hand_over(start, pages)))
    }

    /// Takes back a slab, of whose pages those in `resident` are accounted.
    ///
    /// # Safety
    /// `at` came from [`claim_slab`](Self::claim_slab) with these `bytes`; nobody uses it any more.
    pub(crate) unsafe fn release_slab(&self, at: NonNull<u8>, bytes: usize, resident: u64) {
        let start = self.index(at);
        self.residency.take_back(start, resident);
        self.free_pages(start, self.pages(bytes));
    }

    /// Counts bytes that are in use from now on, of which some were not resident.
    pub(super) fn count(&self, bytes: usize, fresh_bytes: usize) {
        let pages = bytes / self.spec.page_bytes;
        self.counters().grown(bytes, fresh_bytes, || thread_cache::cached_run_bytes_for(pages));
    }

    /// The first page of the run that this thread caches, if it is one for `bytes`. It is accounted, and dirty.
    #[inline(always)]
    fn take_cached(&self, bytes: usize, align: usize) -> Option<usize> {
        if !self.caches(bytes) {
            return None;
        }
        let is_aligned = |run: Run| run.address() & (align - 1) == 0;
        let run = thread_cache::take_run_if(self.run_bytes(bytes), bytes, is_aligned)?;
        Some(self.page_at(run.address()))
    }

    /// Claims the lowest run of free pages. Before it hands out what is not resident, it frees the cached runs, and takes any
    /// other place that is.
    fn claim_free(&self, run_use: RunUse, bytes: usize, align: usize) -> Option<usize> {
        let (align, skew) = self.align_and_skew(bytes, align);
        self.claim_aligned(run_use, self.pages(bytes), align, skew)
    }

    /// As [`claim_free`](Self::claim_free): a run that begins at an `i` with `(i + skew) % align == 0`.
    fn claim_aligned(&self, run_use: RunUse, pages: usize, align: usize, skew: usize) -> Option<usize> {
        let from = self.first_of(run_use);
        let first_fit = || self.first_fit(run_use, from, pages, align, skew);
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
        let elsewhere = self.claim_resident(run_use, pages, align, skew);
        if elsewhere.is_some() {
            found.into_iter().for_each(release);
        }
        elsewhere.or(found)
    }

    /// Claims the lowest run of free pages for a use, at or above `from`.
    fn first_fit(&self, run_use: RunUse, from: usize, pages: usize, align: usize, skew: usize) -> Option<usize> {
        let start = self.runs.claim_first_fit(from, pages, align, skew)?;
        let Some(behind) = self.first_behind_kept(run_use, start, pages) else { return Some(start) };
        self.runs.release(start, pages);
        self.runs.claim_first_fit(behind, pages, align, skew)
    }

    /// If a run lies where a run of its use must not: the first page behind these addresses.
    fn first_behind_kept(&self, run_use: RunUse, start: usize, pages: usize) -> Option<usize> {
        let kept = room::kept_from_long_runs(self.spec.small_region_bytes, self.capacity_bytes());
        let (from, until) = (self.pages(kept.start), self.pages(kept.end));
        (run_use == RunUse::LongRun && start < until && from < start + pages).then_some(until)
    }

    /// The first page that a run of this use may have. However little address space the system granted, most of it is for all.
    fn first_of(&self, run_use: RunUse) -> usize {
        self.pages(room::kept_from(run_use, self.spec.small_region_bytes)).min(self.runs.len() / 4)
    }

    /// The alignment of a run in pages, and how far the zone's start lies behind a multiple of it.
    fn align_and_skew(&self, bytes: usize, align: usize) -> (usize, usize) {
        let align = self.pages(self.spec.run_align(bytes, align)).next_power_of_two();
        let first = self.base.addr().get() >> self.spec.page_bytes.trailing_zeros();
        (align, first & (align - 1))
    }

    /// Claims a run that is free and resident, in the shortest free run that it fits.
    fn claim_resident(&self, run_use: RunUse, pages: usize, align: usize, skew: usize) -> Option<usize> {
        let free_bytes = budget::resident_bytes().saturating_sub(counters::used_bytes());
        if free_bytes < self.bytes(pages) {
            return None;
        }
        // Behind a small-object region that shrank, the memory of the first phase's long runs begins where the region ended.
        let (from, beyond) = (self.first_of(RunUse::LongRun), self.pages(self.spec.small_region_bytes));
        let start = self.runs.claim_resident(from, self.residency.resident_bits(), pages, align, skew, beyond)?;
        if self.first_behind_kept(run_use, start, pages).is_some() {
            self.runs.release(start, pages);
            return None;
        }
        Some(start)
    }

    /// Frees the runs of this zone that threads cache; `false` if there are none.
    pub(crate) fn release_cached(&self) -> bool {
        self.spec.is_cached && thread_cache::take_all_runs().map(|run| self.release_run(run)).count() > 0
    }

    /// As [`release_cached`](Self::release_cached), for a thread that needs memory of `pages` pages; with many threads, the runs of some.
    fn release_some_cached(&self, pages: usize) -> bool {
        self.spec.is_cached && thread_cache::take_some_runs(pages).map(|run| self.release_run(run)).count() > 0
    }

    /// Frees the run in an exiting thread's cache, if this is its zone.
    pub(crate) fn release_cached_of(&self, cache: &Cache) {
        if self.spec.is_cached {
            cache.take_run().into_iter().for_each(|run| self.release_run(run));
        }
    }

    /// Frees a run that the caller took out of a cache.
    fn release_run(&self, run: Run) {
        self.release_pages(self.page_at(run.address()), self.pages(run.bytes()));
    }

    /// Frees pages that the caller owns, and counts them no more.
    fn release_pages(&self, start: usize, pages: usize) {
        self.counters().released(self.bytes(pages));
        self.free_pages(start, pages);
        decay::tick();
    }

    /// Frees pages that the caller owns. They are purged at once beyond what may stay resident, and if there are too many mappings.
    fn free_pages(&self, start: usize, pages: usize) {
        if budget::is_beyond_retained() || self.moved.is_to_go(start, pages) {
            // SAFETY: the caller's pages were handed out, so they are committed, and nobody needs their contents.
            unsafe { self.purge_and_free(start, pages, Purge::Now) };
        } else {
            self.runs.release(start, pages);
        }
    }

    /// Accounts for committed pages of the caller's, prefaults the huge pages at their edges, and returns how many bytes of them were not
    /// resident. Where that can't be, they are free again.
    fn make_usable(&self, start: usize, pages: usize, limit: Limit) -> Result<usize, Shortage> {
        let fresh = self.account(start, pages, limit)?;
        if fresh > 0 {
            self.prefault_edges(start, pages);
        }
        Ok(fresh)
    }

    /// As [`make_usable`](Self::make_usable), and pages nothing in.
    fn account(&self, start: usize, pages: usize, limit: Limit) -> Result<usize, Shortage> {
        let Some(fresh) = self.residency.account(start, pages, limit) else {
            self.runs.release(start, pages);
            return Err(Shortage::OverBudget);
        };
        self.allow_huge(start..start + pages);
        decay::tick();
        Ok(fresh)
    }

    /// Takes back a run.
    ///
    /// # Safety
    /// `at` came from [`claim`](Self::claim) and is `bytes` long by now; nobody uses it any more.
    #[inline]
    pub(crate) unsafe fn release(&self, at: NonNull<u8>, bytes: usize) {
        let pages = self.pages(bytes);
        if self.caches(bytes) && !budget::is_beyond_retained() {
            if let Some(run) = Run::new(at.addr().get(), self.bytes(pages)) {
                if let Some(other) = thread_cache::put_run(run) {
                    self.release_run(other);
                }
                return;
            }
        }
        self.release_pages(self.index(at), pages);
    }

    /// Whether thread caches take runs of `bytes`. They take no long ones (docs/experiments/ablation.md).
    fn caches(&self, bytes: usize) -> bool {
        self.spec.is_cached && !route::is_long_run(bytes)
    }

    /// The length of a run of `bytes`, in whole pages.
    pub(crate) fn run_bytes(&self, bytes: usize) -> usize {
        self.bytes(self.pages(bytes))
    }

    /// Bytes of address space.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes(self.runs.len())
    }

    /// The zone's first address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The size of a page, in bytes.
    pub(crate) fn page_bytes(&self) -> usize {
        self.spec.page_bytes
    }

    /// The zone's counters.
    pub(crate) fn counters(&self) -> &ZoneCounters {
        &self.residency.counters
    }

    /// Which page an address lies in.
    pub(super) fn index(&self, at: NonNull<u8>) -> usize {
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

    /// Whether an address in the zone's range is the zone's. Where it has not mapped memory, other mappings may lie.
    #[inline(always)]
    pub(crate) fn owns(&self, at: NonNull<u8>) -> bool {
        self.mapped.is_ready((at.addr().get() - self.base.addr().get()) / HUGE_PAGE_BYTES)
    }
}

/// Memory to prefault, which [`Zone::populate`] claimed for that time.
#[derive(Debug)]
pub(crate) struct Populate<'a> {
    zone: &'a Zone,
    start: usize,
    pages: usize,
}
