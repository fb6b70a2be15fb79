//! A zone: a part of the region, cut into granules of one size, handed out in runs.
//!
//! A granule is *used* (owned by whoever turned its bit), or free; it is *committed* (readable and writable) if it lies in the
//! prefix that the zone has [`Mapped`]; what is known of the memory behind it is [`Residency`]'s. A run is used from before
//! its address is returned until after the address was given back; that is the invariant of the crate.
#![allow(unsafe_code, reason = "hands out memory")]

use std::ops::Range;
use std::ptr::NonNull;

use super::bitmap::Bitmap;
use super::budget::{self, Limit};
use super::decay;
use super::huge::HugePages;
use super::layout::{self, Ahead, Zeroing, ZoneSpec};
use super::mapped::Mapped;
use super::residency::{GiveBack, Residency};
use super::runs::{Runs, Tenant};
use super::thread_cache::{self, Run};
use crate::counters::{self, ZoneCounters};
use crate::os::{self, Errno, HUGE_PAGE_BYTES};

/// The bounds of a step in which a zone commits memory, in bytes. Between them, a step is half of what the zone has committed. Large
/// steps save system calls; small ones leave a limit on address space or data to the program.
const LEAST_COMMIT_BYTES: usize = HUGE_PAGE_BYTES;
const MOST_COMMIT_BYTES: usize = 32 << 20;

/// A zone looks for resident memory in this many holes before it hands out fresh memory. That takes a few microseconds, as the page
/// faults of the shortest run do.
const LOOK_HOLES: usize = 64;

/// What a new allocation must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Whatever was there.
    Any,
    /// Zeroes.
    Zeroed,
}

/// Why a zone has no memory for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The zone's address space is full, or the kernel refuses memory.
    Full,
    /// The memory would be resident beyond the cap, unless something else is given back first.
    OverBudget,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Zone {
    base: NonNull<u8>,
    runs: Runs,
    residency: Residency,
    ahead: Ahead,
    committed: Mapped,
    huge: HugePages,
    spec: ZoneSpec,
}

// SAFETY: `base` is an address that never changes; everything mutable is atomic, and the memory behind `base` is only
// reached through granules that the caller owns.
unsafe impl Send for Zone {}
// SAFETY: as above.
unsafe impl Sync for Zone {}

impl Zone {
    /// A zone at `base`, which is a multiple of a granule.
    ///
    /// # Safety
    /// The addresses that the bitmaps describe lie within one [`Room`](os::Room), and are no other zone's. The bitmaps, three of
    /// granules and one of blocks for huge pages, are clear.
    pub(crate) unsafe fn new(
        base: NonNull<u8>,
        spec: ZoneSpec,
        bits: [Bitmap<'static>; 3],
        blocks: Bitmap<'static>,
    ) -> Result<Self, Errno> {
        let granule_bytes = spec.granule_bytes;
        debug_assert!(granule_bytes.is_power_of_two() && base.addr().get() % granule_bytes == 0);
        let [used, resident, dirty] = bits;
        // However little address space the system granted, most of it is for both.
        let apart = spec.small_only_bytes.div_ceil(granule_bytes).min(used.len() / 4);
        let residency = Residency::new(base, granule_bytes.trailing_zeros(), resident, dirty, Zeroing::new(&spec));
        #[cfg(not(loom))]
        let runs = Runs::new(used, apart)?;
        #[cfg(loom)]
        let runs = Runs::without_holes(used, apart)?;
        Ok(Self {
            base,
            runs,
            residency,
            ahead: Ahead::new(),
            committed: Mapped::new(),
            huge: HugePages::new(&spec, blocks),
            spec,
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
        let Some(start) = self.take_kept(bytes, align) else {
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
        let granules = self.granules(bytes);
        let found = self.claim_free(Tenant::of_run(bytes), bytes, align);
        if found.is_none_or(|start| self.residency.resident(start, granules) < granules) {
            if let Some(at) = elsewhere() {
                found.into_iter().for_each(|start| self.runs.release(start, granules));
                return Ok(at);
            }
        }
        self.hand_out(found.ok_or(Shortage::Full)?, bytes, align, contents, limit)
    }

    /// Hands out a run that is free and resident, for a request whose own zone has none.
    pub(crate) fn claim_for_other_zone(&self, bytes: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        let (align, skew) = self.align_and_skew(bytes, align);
        let start = self.claim_resident(self.granules(bytes), align, skew)?;
        self.hand_out(start, bytes, self.bytes(align), contents, Limit::Peak).ok()
    }

    /// Makes a run of the caller's ready for its new owner. Where that can't be, it is free again.
    fn hand_out(
        &self,
        start: usize,
        bytes: usize,
        align: usize,
        contents: Contents,
        limit: Limit,
    ) -> Result<NonNull<u8>, Shortage> {
        let granules = self.granules(bytes);
        // Zeroed memory that is fresh stays out of memory until it is touched, as it may be touched sparsely; and between
        // requests that are aligned to more than they ask for, most memory stays unused.
        let is_sparse = contents == Contents::Zeroed || align > self.bytes(granules);
        let fresh = self.make_usable(start, granules, limit, is_sparse)?;
        self.grown(granules, fresh);
        self.counters().requested(bytes);
        if contents == Contents::Zeroed {
            self.residency.zero(start, bytes);
        }
        self.residency.soil(start, granules);
        Ok(self.address(start))
    }

    /// Hands out a run of at least `bytes` bytes for the contents of another, which is `len` bytes long, and says whether that has to be
    /// copied: its first `len` bytes are resident, all of them, or do not read as zeroes.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn claim_to_move(
        &self,
        bytes: usize,
        align: usize,
        len: usize,
    ) -> Result<(NonNull<u8>, bool), Shortage> {
        let granules = self.granules(bytes);
        let start = self.claim_free(Tenant::of_run(bytes), bytes, align).ok_or(Shortage::Full)?;
        let moved = self.granules(len);
        let resident = self.residency.resident(start, moved);
        let fresh = self.commit_and_book(start, granules, Limit::Cap)?;
        // What is resident would be lost where pages move to.
        // SAFETY: claimed and committed above; nobody needs what it holds.
        let is_copied = resident == moved || resident > 0 && !unsafe { self.residency.empty(start, moved) };
        if fresh > 0 && moved < granules {
            self.page_in_edges(start + moved, granules - moved, true);
        }
        self.grown(granules, fresh);
        self.counters().requested(bytes);
        self.residency.soil(start, granules);
        Ok((self.address(start), is_copied))
    }

    /// Hands out a slab, which is as long as it is aligned, and which of its granules are resident, as bits. What it holds is
    /// anything. What is booked for it is the slab's from now on.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn claim_slab(&self, bytes: usize, limit: Limit) -> Result<(NonNull<u8>, u64), Shortage> {
        let granules = self.granules(bytes);
        let start = self.claim_free(Tenant::Slab, bytes, bytes).ok_or(Shortage::Full)?;
        let is_committed = self.commit_to(start + granules);
        if !is_committed || !self.page_in_around_slab(start, granules, limit) {
            self.runs.release(start, granules);
            return Err(if is_committed { Shortage::OverBudget } else { Shortage::Full });
        }
        Ok((self.address(start), self.residency.hand_over(start, granules)))
    }

    /// Takes back a slab, of whose granules those in `resident` are booked.
    ///
    /// # Safety
    /// `at` came from [`claim_slab`](Self::claim_slab) with these `bytes`; nobody uses it any more.
    pub(crate) unsafe fn release_slab(&self, at: NonNull<u8>, bytes: usize, resident: u64) {
        let start = self.index(at);
        self.residency.take_back(start, resident);
        self.free_granules(start, self.granules(bytes));
    }

    fn grown(&self, granules: usize, fresh_bytes: usize) {
        self.count(self.bytes(granules), fresh_bytes);
    }

    /// Counts bytes that are in use from now on, of which some were not resident.
    pub(super) fn count(&self, bytes: usize, fresh_bytes: usize) {
        self.counters().grown(bytes, fresh_bytes, thread_cache::kept_run_bytes);
    }

    /// The first granule of what this thread keeps, if that is a run for `bytes`. It is booked, and dirty.
    #[inline(always)]
    fn take_kept(&self, bytes: usize, align: usize) -> Option<usize> {
        if !self.spec.is_kept {
            return None;
        }
        let is_aligned = |run: Run| run.address() & (align - 1) == 0;
        let run = thread_cache::take_run_if(self.run_bytes(bytes), bytes, is_aligned)?;
        Some(self.granule_at(run.address()))
    }

    /// Claims the lowest run of free granules. Before it hands out what is not resident, what threads keep is free too, and any
    /// other place is taken that is.
    fn claim_free(&self, tenant: Tenant, bytes: usize, align: usize) -> Option<usize> {
        let granules = self.granules(bytes);
        let (align, skew) = self.align_and_skew(bytes, align);
        let first_fit = || self.runs.claim_first_fit(tenant, granules, align, skew);
        let is_resident = |start: &usize| self.residency.resident(*start, granules) == granules;
        let release = |start| self.runs.release(start, granules);
        let mut found = first_fit();
        if !found.as_ref().is_some_and(is_resident) && self.release_kept() {
            found.into_iter().for_each(release);
            found = first_fit();
        }
        if tenant == Tenant::Slab || found.as_ref().is_some_and(is_resident) {
            return found;
        }
        let elsewhere = self.claim_resident(granules, align, skew);
        if elsewhere.is_some() {
            found.into_iter().for_each(release);
        }
        elsewhere.or(found)
    }

    /// The alignment of a run in granules, and how far the zone's start lies behind a multiple of it.
    fn align_and_skew(&self, bytes: usize, align: usize) -> (usize, usize) {
        let align = self.granules(self.spec.run_align(bytes, align)).next_power_of_two();
        let first = self.base.addr().get() >> self.spec.granule_bytes.trailing_zeros();
        (align, first & (align - 1))
    }

    /// Claims a run that is free and resident, in the shortest hole that it fits.
    fn claim_resident(&self, granules: usize, align: usize, skew: usize) -> Option<usize> {
        let free_bytes = budget::resident_bytes().saturating_sub(counters::used_bytes());
        if free_bytes < self.bytes(granules) {
            return None;
        }
        self.runs.claim_resident(self.residency.resident_bits(), granules, align, skew, LOOK_HOLES)
    }

    /// Frees what threads keep of this zone; `false` if they keep nothing.
    pub(crate) fn release_kept(&self) -> bool {
        self.spec.is_kept && thread_cache::take_all_runs().map(|run| self.release_run(run)).count() > 0
    }

    /// Frees a run that was kept, and is the caller's now.
    fn release_run(&self, run: Run) {
        self.release_granules(self.granule_at(run.address()), self.granules(run.bytes()));
    }

    /// Frees granules that the caller owns, and counts them no more.
    fn release_granules(&self, start: usize, granules: usize) {
        self.counters().released(self.bytes(granules));
        self.free_granules(start, granules);
        decay::tick();
    }

    /// Frees granules that the caller owns; beyond what may stay resident, their pages go at once.
    fn free_granules(&self, start: usize, granules: usize) {
        if budget::is_beyond_kept() {
            // SAFETY: the caller's granules, which were handed out and hence committed, and are needed by nobody.
            unsafe { self.give_back(start, granules, GiveBack::Now) };
        }
        self.runs.release(start, granules);
    }

    /// Commits and books granules that the caller claimed, pages in their edges, and returns how many bytes of them were not
    /// resident. Where that can't be, they are free again.
    fn make_usable(&self, start: usize, granules: usize, limit: Limit, is_sparse: bool) -> Result<usize, Shortage> {
        let fresh = self.commit_and_book(start, granules, limit)?;
        if fresh > 0 {
            self.page_in_edges(start, granules, is_sparse);
        }
        Ok(fresh)
    }

    /// As [`make_usable`](Self::make_usable), and pages nothing in.
    fn commit_and_book(&self, start: usize, granules: usize, limit: Limit) -> Result<usize, Shortage> {
        let booked = if self.commit_to(start + granules) {
            self.residency.book(start, granules, limit).ok_or(Shortage::OverBudget)
        } else {
            Err(Shortage::Full)
        };
        let fresh = booked.inspect_err(|_| self.runs.release(start, granules))?;
        self.allow_huge(start..start + granules);
        decay::tick();
        Ok(fresh)
    }

    /// In pieces of how many granules the zone pages in edges at a granule.
    fn piece(&self, granule: usize) -> usize {
        let resident_bytes = budget::resident_bytes();
        self.granules(layout::page_in_bytes(&self.spec, self.bytes(granule), resident_bytes))
    }

    /// Pages in the pieces that the caller's run begins and ends in. Those that it fills, the threads that touch them page in, or
    /// do not. If it `is_sparse`, only those are that come as a huge page at the first touch anyhow.
    fn page_in_edges(&self, start: usize, granules: usize, is_sparse: bool) {
        let (last, end) = (start + granules - 1, start + granules);
        let (from, len) = self.page_in_piece_of(start, start, end, is_sparse);
        if last / len * len > from {
            self.page_in_piece_of(last, start, end, is_sparse);
        }
    }

    /// Pages in the piece that holds a granule of the caller's run, and returns where it begins and its length.
    fn page_in_piece_of(&self, granule: usize, start: usize, end: usize, is_sparse: bool) -> (usize, usize) {
        let len = self.piece(granule);
        let from = granule / len * len;
        if !is_sparse || self.comes_whole(from) {
            if let Some(rest) =
                self.fresh_rest(from, len, start, end).filter(|_| self.pays_ahead(from, len, start..end))
            {
                self.page_in_piece(rest, start.max(from)..end.min(from + len));
            }
        }
        (from, len)
    }

    /// As [`page_in_edges`](Self::page_in_edges), for a slab: it is paged in with its neighbours where pieces are longer than
    /// it, and otherwise as its blocks are touched; but not in huge pages, of which the first touch would bring all of it. `false`
    /// where that is beyond the limit.
    fn page_in_around_slab(&self, start: usize, granules: usize, limit: Limit) -> bool {
        let len = self.piece(start);
        let (from, end) = (start / len * len, start + granules);
        let resident = self.residency.resident(start, granules);
        if resident == granules || len <= granules {
            return true;
        }
        let rest = if resident == 0 { self.fresh_rest(from, len, start, end) } else { None };
        let rest = rest.filter(|_| self.pays_ahead(from, len, start..end));
        let comes_whole = self.comes_whole(start);
        let limit = if comes_whole { limit } else { Limit::Peak };
        if (rest.is_some() || comes_whole) && self.residency.book(start, granules, limit).is_some() {
            self.page_in_piece(rest.unwrap_or_default(), start..end);
            return true;
        }
        !comes_whole
    }

    /// Whether the first touch of a granule pages in a huge page.
    fn comes_whole(&self, granule: usize) -> bool {
        self.huge.are_asked(self.bytes(granule)) && !self.huge.is_forbidden(&self.residency, granule)
    }

    /// See [`HugePages::allow`].
    fn allow_huge(&self, granules: Range<usize>) {
        self.huge.allow(&self.residency, granules, self.committed.granules());
    }

    /// See [`HugePages::forbid_around`].
    fn forbid_huge_around(&self, granules: Range<usize>) {
        self.huge.forbid_around(&self.residency, granules, self.committed.granules());
    }

    /// Pages of the caller's slabs are about to go back.
    pub(crate) fn forbid_huge_at(&self, at: *mut u8, bytes: usize) {
        let start = self.granule_at(at.addr());
        self.forbid_huge_around(start..start + self.granules(bytes));
    }

    /// Has the kernel see one mapping in a run, whose pages are to move.
    pub(crate) fn make_one_mapping(&self, at: NonNull<u8>, bytes: usize) {
        let start = self.index(at);
        self.huge.make_one_mapping(&self.residency, start..start + self.granules(bytes));
    }

    /// Whether to page in the piece of `len` granules at `from` ahead, for what the caller takes.
    fn pays_ahead(&self, from: usize, len: usize, taken: Range<usize>) -> bool {
        let is_dense = |sample| self.is_densely_used(sample);
        self.comes_whole(from) || self.ahead.pays(from..from + len, &taken, is_dense)
    }

    /// Whether more than half of what was handed out of a piece is in memory, as far as the system says; `None` where that was
    /// little.
    fn is_densely_used(&self, piece: Range<usize>) -> Option<bool> {
        let (start, len) = (piece.start, piece.end.min(self.runs.len()) - piece.start);
        // What is booked was handed out, and may be free again; and slabs are in use, whose pages the zone does not book.
        let was_handed_out =
            |&granule: &usize| self.residency.resident(granule, 1) + self.runs.used().count(granule, 1) > 0;
        let handed_out = (start..start + len).filter(was_handed_out).count();
        if 16 * handed_out < len {
            return None;
        }
        let in_memory = self.residency.bytes_in_memory(start, len);
        in_memory.map_or(Some(true), |in_memory| Some(in_memory > self.bytes(handed_out) / 2))
    }

    /// What the piece of `len` granules at `from` has before and behind `start..end`, as places and lengths; `None` if some of it
    /// is resident already, or there is nothing.
    fn fresh_rest(&self, from: usize, len: usize, start: usize, end: usize) -> Option<[(usize, usize); 2]> {
        let until = (from + len).min(self.committed.granules());
        let rest = [(from, start.clamp(from, until)), (end.clamp(from, until), until)];
        let rest = rest.map(|(from, until)| (from, until - from));
        let is_fresh = rest.iter().all(|&(from, len)| self.residency.resident(from, len) == 0);
        (is_fresh && rest.iter().any(|&(_, len)| len > 0)).then_some(rest)
    }

    /// Pages in `own` granules of the caller's together with the rest of their piece, which is claimed for that time: what is
    /// booked must be owned.
    fn page_in_piece(&self, rest: [(usize, usize); 2], own: Range<usize>) {
        let comes_whole = self.comes_whole(own.start);
        let mut paged = own.clone();
        let mut is_short = false;
        // A huge page comes whether it is booked or not.
        let limit = if comes_whole { Limit::Cap } else { Limit::Peak };
        // Where it fails, another thread has the granule, and books it, or a slab has.
        let mut claim = |granule| {
            let claimed = self.runs.try_claim(granule, 1);
            if claimed && self.residency.book(granule, 1, limit).is_none() {
                self.runs.release(granule, 1);
                is_short = true;
                return false;
            }
            claimed
        };
        let [before, behind] = rest.map(|(at, len)| at..at + len);
        let piece = before.start.min(own.start)..behind.end.max(own.end);
        // Paged in is what joins the caller's granules. A huge page comes with all of it.
        for granule in before.rev() {
            match granule + 1 == paged.start {
                true if claim(granule) => paged.start = granule,
                false if comes_whole && claim(granule) => self.runs.release(granule, 1),
                _ => {}
            }
        }
        for granule in behind {
            match granule == paged.end {
                true if claim(granule) => paged.end = granule + 1,
                false if comes_whole && claim(granule) => self.runs.release(granule, 1),
                _ => {}
            }
        }
        self.allow_huge(own.clone());
        // Also a huge page, which would come at the first touch: where the kernel has none, or has split this one before, it
        // would not come, and what is booked would not be there. Free only afterwards: another thread that gave it back
        // meanwhile would say that it is not there.
        self.residency.page_in(paged.start, paged.len());
        self.runs.release(paged.start, own.start - paged.start);
        self.runs.release(own.end, paged.end - own.end);
        // What the cap had no room for came all the same.
        if is_short && comes_whole {
            let calls = self.give_back_unbooked(self.address(piece.start), self.bytes(piece.len()));
            (0..calls).for_each(|_| self.counters().system_call());
        }
    }

    /// Takes back a run.
    ///
    /// # Safety
    /// `at` came from [`claim`](Self::claim) and is `bytes` long by now; nobody uses it any more.
    #[inline]
    pub(crate) unsafe fn release(&self, at: NonNull<u8>, bytes: usize) {
        let granules = self.granules(bytes);
        if self.spec.is_kept && !budget::is_beyond_kept() {
            if let Some(run) = Run::new(at.addr().get(), self.bytes(granules)) {
                if let Some(other) = thread_cache::put_run(run) {
                    self.release_run(other);
                }
                return;
            }
        }
        self.release_granules(self.index(at), granules);
    }

    /// Takes back a run whose pages were moved elsewhere.
    ///
    /// # Safety
    /// As for [`release`](Self::release); the kernel has taken all pages of the run.
    pub(crate) unsafe fn release_moved(&self, at: NonNull<u8>, bytes: usize) {
        let (start, granules) = (self.index(at), self.granules(bytes));
        self.forbid_huge_around(start..start + granules);
        self.residency.forget(start, granules);
        self.release_granules(start, granules);
    }

    /// Leaves a run of the caller's unused for ever: it may have a hole in which another mapping lies.
    pub(crate) fn abandon(&self, at: NonNull<u8>, bytes: usize) {
        let (start, granules) = (self.index(at), self.granules(bytes));
        self.residency.forget(start, granules);
        self.counters().released(self.bytes(granules));
    }

    /// The length of a run of `bytes`, in whole granules.
    pub(crate) fn run_bytes(&self, bytes: usize) -> usize {
        self.bytes(self.granules(bytes))
    }

    /// Changes the length of a run where it stands; `false` if what follows it is taken. Shrinking never fails.
    ///
    /// # Safety
    /// `at` came from [`claim`](Self::claim) and is `old_bytes` long by now. When shrunk, nobody uses the end.
    pub(crate) unsafe fn resize(&self, at: NonNull<u8>, old_bytes: usize, new_bytes: usize) -> bool {
        let (old, new) = (self.granules(old_bytes), self.granules(new_bytes));
        let start = self.index(at);
        if new > old {
            let (more_at, more) = (start + old, new - old);
            let claim = || self.runs.try_claim(more_at, more);
            let claimed = claim() || self.release_kept() && claim();
            if !claimed {
                return false;
            }
            let Ok(fresh) = self.make_usable(more_at, more, Limit::Cap, true) else { return false };
            self.residency.soil(more_at, more);
            self.grown(more, fresh);
        } else if new < old {
            self.release_granules(start + new, old - new);
        }
        true
    }

    /// Gives free memory back to the kernel, from the top address down, until at least `wanted_bytes` are back or nothing
    /// free is resident. Returns how many bytes went.
    pub(crate) fn trim(&self, wanted_bytes: usize, how: GiveBack) -> usize {
        self.release_kept();
        let resident = self.residency.resident_bits();
        let mut gone = 0;
        let mut end = self.committed.granules();
        while gone < wanted_bytes {
            let Some((start, len)) = resident.last_run_without(self.runs.used(), 0, end) else { break };
            let wanted = self.granules(wanted_bytes - gone).min(len);
            gone += self.trim_run(start + len - wanted, wanted, how);
            end = start + len - wanted;
        }
        gone
    }

    /// Gives back what is free of `[start, start + len)`, in one piece if all of it is.
    fn trim_run(&self, start: usize, len: usize, how: GiveBack) -> usize {
        if !self.runs.try_claim(start, len) {
            if len == 1 {
                return 0;
            }
            let half = len / 2;
            return self.trim_run(start, half, how) + self.trim_run(start + half, len - half, how);
        }
        // SAFETY: the run is ours since the claim above, and committed, as all is that the callers look at.
        let gone = unsafe { self.give_back(start, len, how) };
        self.runs.release(start, len);
        gone
    }

    /// Gives the pages of granules back to the kernel, for good if that is to be now, and returns how many bytes went.
    ///
    /// # Safety
    /// As for [`Residency::give_back`].
    unsafe fn give_back(&self, start: usize, granules: usize, how: GiveBack) -> usize {
        if how == GiveBack::Now {
            self.forbid_huge_around(start..start + granules);
        }
        // SAFETY: the caller's.
        unsafe { self.residency.give_back(start, granules, how) }
    }

    /// Gives back what is free of `[at, at + bytes)`, and not known to be resident: the kernel may have brought it into memory.
    /// Returns the number of system calls, which are counted where a thread of the program makes them.
    pub(super) fn give_back_unbooked(&self, at: NonNull<u8>, bytes: usize) -> usize {
        let (start, granules) = (self.index(at), self.granules(bytes));
        if self.residency.resident(start, granules) == granules {
            return 0;
        }
        let mut calls = 0;
        let is_unbooked = |&granule: &usize| self.residency.resident(granule, 1) == 0;
        for granule in (start..start + granules).filter(is_unbooked) {
            if self.runs.try_claim(granule, 1) {
                if is_unbooked(&granule) {
                    self.forbid_huge_around(granule..granule + 1);
                    // SAFETY: the granule is ours since the claim above, free before, and committed, as the caller's memory is.
                    // Where the kernel refuses, it stays as it is.
                    let _ = unsafe { os::discard(self.address(granule).as_ptr(), self.spec.granule_bytes) };
                    calls += 1;
                }
                self.runs.release(granule, 1);
            }
        }
        calls
    }

    /// Books `bytes` of the zone's free memory, so that whoever is handed it finds it resident, and has `page_in` bring it in.
    /// Returns how many bytes were; 0 if the zone or the cap has no room for them.
    pub(crate) fn populate(&self, tenant: Tenant, bytes: usize, page_in: impl FnOnce(Populate<'_>)) -> usize {
        let granules = self.granules(bytes.min(self.capacity_bytes()));
        let Some(start) = self.runs.claim_first_fit(tenant, granules, 1, 0) else { return 0 };
        if self.make_usable(start, granules, Limit::Cap, true).is_err() {
            return 0;
        }
        page_in(Populate { zone: self, start, granules });
        self.runs.release(start, granules);
        self.bytes(granules)
    }

    /// Bytes of address space.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes(self.runs.len())
    }

    /// What is committed: where it begins, and its length in bytes.
    pub(super) fn committed_memory(&self) -> (NonNull<u8>, usize) {
        (self.base, self.bytes(self.committed.granules()))
    }

    /// The zone's first address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The size of a granule, in bytes.
    pub(crate) fn granule_bytes(&self) -> usize {
        self.spec.granule_bytes
    }

    /// What the zone counts.
    pub(crate) fn counters(&self) -> &ZoneCounters {
        &self.residency.counters
    }

    /// Which granule an address lies in.
    pub(super) fn index(&self, at: NonNull<u8>) -> usize {
        self.granule_at(at.addr().get())
    }

    fn granule_at(&self, address: usize) -> usize {
        (address - self.base.addr().get()) >> self.spec.granule_bytes.trailing_zeros()
    }

    fn granules(&self, bytes: usize) -> usize {
        self.residency.granules(bytes)
    }

    fn bytes(&self, granules: usize) -> usize {
        self.residency.bytes(granules)
    }

    fn address(&self, granule: usize) -> NonNull<u8> {
        self.residency.address(granule)
    }

    /// Whether an address of the zone's room is the zone's: what lies beyond what is committed may be a stranger's mapping.
    #[inline(always)]
    pub(crate) fn owns(&self, at: NonNull<u8>) -> bool {
        self.index(at) < self.committed.granules()
    }

    /// Makes the first `granules` of the zone accessible; `false` if the kernel refuses.
    fn commit_to(&self, granules: usize) -> bool {
        self.committed.reach(granules, |before| self.commit_from(before, granules))
    }

    /// Takes all of the zone for committed: the models of loom bring memory of their own.
    #[cfg(loom)]
    pub(crate) fn assume_committed(&self) {
        self.huge.advise(&self.residency, 0..self.runs.len());
        self.committed.reach(self.runs.len(), |_| Some(self.runs.len()));
    }

    fn commit_from(&self, before: usize, granules: usize) -> Option<usize> {
        let step = (self.bytes(before) / 2).clamp(LEAST_COMMIT_BYTES, MOST_COMMIT_BYTES).next_power_of_two();
        let generous = granules.next_multiple_of(self.granules(step)).min(self.runs.len());
        [generous, granules].into_iter().find(|&target| {
            let (at, len) = (self.address(before), self.bytes(target - before));
            self.counters().system_call();
            // SAFETY: granules `before..target` of this zone, within the room.
            let extended = unsafe { os::extend(at.as_ptr(), len) };
            match extended {
                Ok(()) => self.huge.advise(&self.residency, before..target),
                Err(refused) => self.counters().refused(refused, "commit memory", len),
            }
            extended.is_ok()
        })
    }
}

/// Memory to page in, which [`Zone::populate`] claimed for that time.
#[derive(Debug)]
pub(crate) struct Populate<'a> {
    zone: &'a Zone,
    start: usize,
    granules: usize,
}

impl Populate<'_> {
    /// Pages in one of `parts` equal parts.
    pub(crate) fn part(&self, index: usize, parts: usize) {
        let share = self.granules.div_ceil(parts.max(1));
        let from = self.granules.min(index * share);
        let len = share.min(self.granules - from);
        if len > 0 {
            let (at, bytes) = (self.zone.address(self.start + from), self.zone.bytes(len));
            self.zone.counters().system_call();
            // SAFETY: granules that `populate` claimed, committed, which nobody else knows of.
            if let Err(refused) = unsafe { os::populate(at.as_ptr(), bytes) } {
                self.zone.counters().refused(refused, "page in", bytes);
            }
        }
    }
}
