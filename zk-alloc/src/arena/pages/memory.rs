//! The memory behind a zone's pages: which blocks are mapped, which pages are resident, and where huge pages may be.
//!
//! A *resident* page is counted in the process's [accounts](crate::accounts): the kernel backs it with memory, or will do so at the first
//! touch. A *dirty* page may hold something other than zeroes; all other pages are *clean*. A prefaulted block is resident and clean.
//! Lazily purged memory (`MADV_FREE`) is resident and dirty.
//!
//! Each page has a resident bit and a dirty bit. Only the page's owner changes them, so they are exact. The thread that set a page's bit in
//! the zone's bitmap of used pages owns the page. The blocks in a page of a slab may have different owners: each of them may set the page's
//! bits, but only a thread that owns all of the blocks may clear them.
//!
//! # Which blocks are mapped
//! A block is an aligned range that one huge page can back. It becomes *ready* when it is mapped for the zone, and stays ready. The arena
//! hands out, advises on and purges memory only in ready blocks.
//!
//! The kernel refuses to map addresses that are mapped already. A thread must not mistake another thread's mapping for a foreign one. So a
//! thread claims a block before it maps the block: only one thread changes the block's claim word from 0, and only that thread maps the
//! block. If the kernel then finds something mapped there, that mapping is foreign, and the block is never ready.
//!
//! No thread waits for the thread that holds a claim: a signal handler that waited might have interrupted that very thread. A thread that
//! finds a block claimed takes memory elsewhere. A claim holds the [generation](crate::os::process_generation) of its process. So a forked
//! child recognises the claims of threads that exist only in its parent, and claims these blocks itself. If such a thread had mapped a
//! block before the fork but had not yet made it ready, the child treats the block as foreign. This costs the child addresses, but no
//! memory.
#![allow(unsafe_code, reason = "prefaults memory, clears it and purges it, advises the kernel")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{self, AtomicU16, AtomicUsize};

use crate::accounts::{self, Limit};
use crate::arena::pages::bitmap::{Bitmap, WORD_BITS, each_run};
use crate::arena::pages::layout::{HugeAdvice, ZoneSpec};
use crate::os::{self, Errno, HUGE_PAGE_BYTES, NotMoved, OCCUPIED};
use crate::sync::{AtomicU64, Ordering};
use crate::tuning;

/// When the kernel takes back the memory of pages that [`Residency::purge`] purges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purge {
    /// Immediately. Afterwards, the memory reads as zeroes.
    Now,
    /// When the kernel runs short of memory. Until then, the memory can be used again without a fault.
    Lazily,
}

/// The work that a purge may still do. A request's allowance depends on the size of the request, not on the amount of free memory. Later
/// requests purge the rest.
pub(crate) struct Allowance {
    pub(crate) bytes: usize,
    /// The number of page ranges to purge. Each takes at most three system calls.
    pub(crate) ranges: usize,
    /// The number of bitmap words to read.
    pub(crate) words: usize,
}

impl Allowance {
    /// Creates an allowance that limits only the number of bytes, for callers that are not serving a request.
    pub(crate) fn unlimited(bytes: usize) -> Self {
        Self { bytes, ranges: usize::MAX, words: usize::MAX }
    }

    /// Returns the allowance of a request for `request_bytes`, which purges at most `bytes`.
    pub(crate) fn of_request(request_bytes: usize, bytes: usize) -> Self {
        let most_bytes = tuning::request_purge_bytes().max(request_bytes.saturating_add(tuning::purge_ahead_bytes()));
        Self {
            bytes: bytes.min(most_bytes),
            ranges: tuning::request_purge_ranges() + request_bytes / tuning::long_run_bytes().max(1),
            words: tuning::request_scan_words(),
        }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.bytes == 0 || self.ranges == 0 || self.words == 0
    }

    /// Subtracts the work of a purge: the bytes that it freed (0 if it failed), the ranges that it tried, and the words that it read.
    pub(crate) fn spend(&mut self, gone_bytes: usize, ranges: usize, words: usize) {
        self.bytes = self.bytes.saturating_sub(gone_bytes);
        self.ranges = self.ranges.saturating_sub(ranges);
        self.words = self.words.saturating_sub(words);
    }
}

/// A system call on a range of memory.
type Call = unsafe fn(*mut u8, usize) -> Result<(), Errno>;

/// Which pages are resident, which are dirty, and where the kernel may create huge pages.
pub(crate) struct Residency {
    base: NonNull<u8>,
    spec: ZoneSpec,
    pub(crate) resident: Bitmap<'static>,
    dirty: Bitmap<'static>,
    /// A bit for each block: set while huge pages are forbidden in the block.
    forbidden: Bitmap<'static>,
    forbidden_blocks: AtomicUsize,
    /// Predicts whether dirty memory to be zeroed was densely used.
    zeroed: Density,
}

impl Residency {
    /// Creates the state of a zone without resident pages. All bitmaps must be clear; `forbidden` has one bit per block.
    pub(crate) fn new(
        base: NonNull<u8>,
        spec: ZoneSpec,
        resident: Bitmap<'static>,
        dirty: Bitmap<'static>,
        forbidden: Bitmap<'static>,
    ) -> Self {
        let (forbidden_blocks, zeroed) = (AtomicUsize::new(0), Density::new());
        Self { base, spec, resident, dirty, forbidden, forbidden_blocks, zeroed }
    }

    /// Returns the binary logarithm of the page size in bytes.
    fn page_shift(&self) -> u32 {
        self.spec.page_bytes.trailing_zeros()
    }

    pub(crate) fn bytes(&self, pages: usize) -> usize {
        pages << self.page_shift()
    }

    pub(crate) fn pages(&self, bytes: usize) -> usize {
        // Not rounded up before the shift, because the sum would overflow for the largest sizes.
        (bytes >> self.page_shift()) + usize::from(bytes & (self.spec.page_bytes - 1) != 0)
    }

    pub(crate) fn address(&self, page: usize) -> NonNull<u8> {
        // SAFETY: `page` is a page of the zone, so the offset stays inside the reservation.
        unsafe { self.base.add(self.bytes(page)) }
    }

    /// Returns the number of resident pages in `[start, start + len)`.
    pub(crate) fn resident(&self, start: usize, len: usize) -> usize {
        self.resident.count(start, len)
    }

    /// Returns the total size, in bytes, of the pages in `[0, len)` that are resident and clean.
    pub(crate) fn clean_bytes(&self, len: usize) -> usize {
        let clean = |(start, len)| len - self.dirty.count(start, len);
        self.bytes(self.resident.set_runs(0, len).map(clean).sum())
    }

    /// Returns how many bytes of these pages the kernel backs with memory, or `None` if the kernel does not report it. The number of bytes
    /// counted as resident may be higher, because some pages may never have been touched.
    pub(crate) fn bytes_in_memory(&self, start: usize, len: usize) -> Option<usize> {
        accounts::system_call();
        // SAFETY: only queries pages of the zone, and changes nothing.
        unsafe { os::count_resident(self.address(start).as_ptr(), self.bytes(len)) }
    }

    /// Counts the caller's pages as resident, and returns how many of their bytes were not resident before. If these would exceed the
    /// limit, counts nothing and returns `None`.
    pub(crate) fn account(&self, start: usize, len: usize, limit: Limit) -> Option<usize> {
        let fresh = self.bytes(len - self.resident.count(start, len));
        if fresh > 0 {
            if !accounts::admit(fresh, limit) {
                return None;
            }
            self.resident.set(start, len);
        }
        Some(fresh)
    }

    /// Marks the caller's pages as dirty, because they will be written to.
    pub(crate) fn mark_dirty(&self, start: usize, len: usize) {
        self.dirty.set(start, len);
    }

    /// Marks the resident pages among the caller's pages as dirty.
    pub(crate) fn mark_resident_dirty(&self, start: usize, len: usize) {
        self.resident.set_runs(start, len).for_each(|(start, len)| self.mark_dirty(start, len));
    }

    /// Records that the kernel moved the memory of the caller's pages elsewhere.
    pub(crate) fn moved_away(&self, start: usize, len: usize) {
        accounts::unaccount(self.forget(start, len));
    }

    /// Marks the caller's pages as neither resident nor dirty. Returns how many of their bytes were counted as resident.
    fn forget(&self, start: usize, len: usize) -> usize {
        self.dirty.clear(start, len);
        self.bytes(self.resident.clear(start, len))
    }

    /// Returns which pages of a slab are resident, as a bit mask (lowest page first). The bits of a slab's pages are in one word of the
    /// bitmap.
    pub(crate) fn slab_pages(&self, start: usize, len: usize) -> u64 {
        self.resident.bits(start, len)
    }

    /// Like [`account`](Self::account), for `pages` (a bit mask) of the slab at page `start`. The caller owns a block in each of these
    /// pages. Also marks them as dirty.
    pub(crate) fn account_slab(&self, start: usize, pages: u64, limit: Limit) -> Option<usize> {
        let missing = pages & !self.slab_pages(start, WORD_BITS - start % WORD_BITS);
        let missing_bytes = self.bytes(missing.count_ones() as usize);
        if missing == 0 || !accounts::admit(missing_bytes, limit) {
            return (missing == 0).then_some(0);
        }
        let mut fresh = 0;
        for (first, len) in each_run(missing) {
            fresh += self.resident.set(start + first, len);
            self.dirty.set(start + first, len);
        }
        // Since this thread read the bits, another thread that owns a block in one of these pages may have counted the page.
        let fresh_bytes = self.bytes(fresh);
        accounts::unaccount(missing_bytes - fresh_bytes);
        Some(fresh_bytes)
    }

    /// Has the kernel prefault those of `pages` that are not in memory. The contents of the pages do not change, so the caller need not own
    /// them.
    pub(crate) fn prefault(&self, pages: Range<usize>) {
        // SAFETY: committed pages of this zone.
        let _ = unsafe { self.call(pages, "prefault", os::prefault) };
    }

    /// Makes a system call on pages, and counts it. If the kernel refuses, also counts the refusal; a warning about it names `what`.
    ///
    /// # Errors
    /// The system's error.
    ///
    /// # Safety
    /// Same as for the function `call`, with these pages.
    pub(crate) unsafe fn call(&self, pages: Range<usize>, what: &str, call: Call) -> Result<(), Errno> {
        let (at, bytes) = (self.address(pages.start), self.bytes(pages.len()));
        accounts::system_call();
        // SAFETY: upheld by the caller.
        let result = unsafe { call(at.as_ptr(), bytes) };
        result.inspect_err(|&refused| accounts::refused(refused, what, bytes))
    }

    /// Purges pages. Returns the number of bytes purged, or 0 if the kernel refuses.
    ///
    /// # Safety
    /// The caller owns the pages `[start, start + len)`, which are committed, and does not need their contents.
    pub(crate) unsafe fn purge(&self, start: usize, len: usize, how: Purge) -> usize {
        // SAFETY: upheld by the caller.
        if !unsafe { self.advise_gone(start, len, how) } {
            return 0;
        }
        // Lazily purged memory stays resident until the kernel runs short, and may keep its contents.
        if how == Purge::Now {
            accounts::returned(self.forget(start, len));
        }
        self.bytes(len)
    }

    /// Purges pages by replacing their mapping with a fresh one. Earlier advice (`madvise`) does not apply to the new mapping.
    ///
    /// # Errors
    /// See [`os::renew`]. If the old mapping may be lost, the pages are no longer counted as resident.
    ///
    /// # Safety
    /// Same as for [`purge`](Self::purge).
    pub(crate) unsafe fn renew(&self, start: usize, len: usize) -> Result<(), NotMoved> {
        let bytes = self.bytes(len);
        accounts::system_call();
        // SAFETY: upheld by the caller.
        let renewed = unsafe { os::renew(self.address(start).as_ptr(), bytes) };
        if renewed.is_ok() || renewed.is_err_and(|refused| !refused.is_target_whole) {
            accounts::returned(self.forget(start, len));
        }
        renewed.inspect_err(|refused| accounts::refused(refused.errno, "map fresh memory", bytes))
    }

    /// Like [`purge`](Self::purge), but still counts the pages as resident. Returns `false` if the kernel refuses.
    ///
    /// # Safety
    /// Same as for [`purge`](Self::purge).
    pub(crate) unsafe fn advise_gone(&self, start: usize, len: usize, how: Purge) -> bool {
        let purge: Call = match how {
            Purge::Now => os::discard,
            Purge::Lazily => os::purge_lazily,
        };
        // SAFETY: upheld by the caller.
        unsafe { self.call(start..start + len, "purge memory", purge) }.is_ok()
    }

    /// Zeroes the dirty pages in the first `bytes` of the run at page `start`. The caller owns the run, and has counted it as resident.
    pub(crate) fn zero(&self, start: usize, bytes: usize) {
        let end_bytes = self.bytes(start) + bytes;
        for (run, len) in self.dirty.set_runs(start, self.pages(bytes)) {
            let at = self.bytes(run);
            let dirty_bytes = self.bytes(len).min(end_bytes - at);
            // SAFETY: the caller owns these pages and does not need their contents. Dirty pages are committed.
            if self.is_zeroed_by_a_purge(run, len) && unsafe { self.advise_gone(run, len, Purge::Now) } {
                accounts::will_fault(dirty_bytes);
                continue;
            }
            // SAFETY: as above.
            unsafe { self.address(run).write_bytes(0, dirty_bytes) };
        }
    }

    /// Whether to zero dirty pages by purging them. Runs of [`ZoneSpec::lazy_zero_bytes`] or more are always purged. Shorter runs are
    /// purged if few of their pages were touched since they were last zeroed (a table with few entries). Otherwise this thread clears them.
    fn is_zeroed_by_a_purge(&self, start: usize, len: usize) -> bool {
        let bytes = self.bytes(len);
        let is_sparse = || {
            let in_memory = self.bytes_in_memory(start, len);
            in_memory.is_some_and(|in_memory| in_memory < bytes / tuning::sparse_part())
        };
        bytes >= self.spec.lazy_zero_bytes
            || bytes >= tuning::sparse_min_bytes() && self.zeroed.is_sparse(bytes, tuning::max_trust(), is_sparse)
    }

    // Huge pages: where the arena asks for them, and where it forbids them.
    //
    // Where the arena asks for huge pages, khugepaged also creates them on its own. By default, it collapses each block that has at least
    // one page in memory into a huge page. Purged pages of the block are then in memory again, although the arena does not count them as
    // resident. Within minutes, the process is as large as before the purge.
    //
    // So the arena forbids a huge page in a block before it purges a part of the block. It allows a huge page there again when the whole
    // block is counted as resident.

    /// Whether the arena asks for huge pages at an offset of `at_bytes` into the zone.
    pub(crate) fn asks_for_huge(&self, at_bytes: usize) -> bool {
        self.spec.huge == HugeAdvice::Ask && at_bytes >= self.spec.small_pages_bytes
    }

    /// Advises the kernel on pages that were just committed.
    pub(crate) fn advise_committed(&self, committed: Range<usize>) {
        match self.spec.huge {
            HugeAdvice::Ask => {
                let border = self.pages(self.spec.small_pages_bytes).clamp(committed.start, committed.end);
                // Some hosts create huge pages without being asked, and the arena would not count that memory as resident.
                self.advise(committed.start..border, os::forbid_huge);
                self.advise(border..committed.end, os::advise_huge);
            }
            HugeAdvice::Forbid => _ = self.advise(committed, os::forbid_huge),
            HugeAdvice::Leave => {}
        }
    }

    /// Repeats the arena's huge-page advice after the caller's pages were mapped anew.
    pub(crate) fn advise_again(&self, pages: Range<usize>) {
        self.advise_committed(pages.clone());
        let block = self.pages(HUGE_PAGE_BYTES);
        for (index, len) in self.forbidden_around(&pages) {
            self.advise(pages.start.max(index * block)..pages.end.min((index + len) * block), os::forbid_huge);
        }
    }

    /// Whether a huge page is forbidden in the block that contains a page.
    pub(crate) fn is_forbidden(&self, page: usize) -> bool {
        self.forbidden.has(page / self.pages(HUGE_PAGE_BYTES))
    }

    /// Returns the runs of forbidden blocks that overlap `pages`, as `(start, length)`.
    #[inline]
    fn forbidden_around(&self, pages: &Range<usize>) -> impl Iterator<Item = (usize, usize)> + use<> {
        let block = self.pages(HUGE_PAGE_BYTES);
        let (first, end) = (pages.start / block, pages.end.div_ceil(block));
        let is_any = self.forbidden_blocks.load(Ordering::Relaxed) > 0;
        self.forbidden.set_runs(first, if is_any { end - first } else { 0 })
    }

    /// Forbids huge pages in the blocks that `pages` only partly covers. The caller owns `pages`, and is about to purge them.
    pub(crate) fn forbid_around(&self, pages: Range<usize>) {
        if self.spec.huge != HugeAdvice::Ask {
            return;
        }
        let block = self.pages(HUGE_PAGE_BYTES);
        let (first, last) = (pages.start / block, (pages.end - 1) / block);
        let is_filled = |index: usize| pages.start <= index * block && (index + 1) * block <= pages.end;
        let ends = [Some(first), Some(last).filter(|&last| last != first)];
        for index in ends.into_iter().flatten().filter(|&index| !is_filled(index)) {
            let is_needed = self.asks_for_huge(self.bytes(index * block)) && !self.forbidden.has(index);
            if is_needed && self.forbidden_blocks.load(Ordering::Relaxed) < tuning::max_forbidden() {
                let all = index * block..(index + 1) * block;
                // The bit is set only after the system call: `allow` skips blocks whose bit is clear, so it can't allow this block at the
                // same time. The counter is incremented before the bit is set. If the process forks between the two steps, the child's
                // counter is one too high, but never drops below zero.
                if self.advise(all, os::forbid_huge) {
                    self.forbidden_blocks.fetch_add(1, Ordering::Relaxed);
                    self.forbidden_blocks.fetch_sub(1 - self.forbidden.set(index, 1), Ordering::Relaxed);
                }
            }
        }
    }

    /// Allows a huge page again in each block that overlaps `pages`, if the whole block is counted as resident.
    pub(crate) fn allow(&self, pages: Range<usize>) {
        let block = self.pages(HUGE_PAGE_BYTES);
        for (index, len) in self.forbidden_around(&pages) {
            if self.resident(index * block, len * block) == len * block {
                self.allow_accounted(index, len);
            } else {
                (index..index + len)
                    .filter(|&index| self.resident(index * block, block) == block)
                    .for_each(|index| self.allow_accounted(index, 1));
            }
        }
    }

    /// Allows huge pages again (`MADV_HUGEPAGE`) in blocks whose pages are all counted as resident.
    fn allow_accounted(&self, index: usize, len: usize) {
        let block = self.pages(HUGE_PAGE_BYTES);
        // The bit is cleared only after the system call. If another thread tries to forbid the block before that, it finds the bit set and
        // does nothing, so the kernel may create a huge page there.
        if self.advise(index * block..(index + len) * block, os::advise_huge) {
            self.forbidden_blocks.fetch_sub(self.forbidden.clear(index, len), Ordering::Relaxed);
        }
    }

    /// Prepares a run for a move: gives the same advice on all of it (except where the arena does not ask for huge pages), so that the
    /// kernel merges its mappings. Before Linux 6.17, the kernel moves only one mapping at a time. Later kernels move several, but a
    /// forbidden part would stay forbidden at its new place.
    pub(crate) fn make_one_mapping(&self, pages: Range<usize>) {
        if self.forbidden_around(&pages).next().is_some() {
            let border = self.pages(self.spec.small_pages_bytes);
            // Only blocks that the run covers partly are still forbidden, and the kernel can't create a huge page in a part of a block.
            self.advise(border.max(pages.start)..pages.end, os::advise_huge);
        }
    }

    /// Gives the kernel advice on huge pages for a range of pages. Returns `false` if the kernel refuses.
    fn advise(&self, pages: Range<usize>, advice: Call) -> bool {
        // SAFETY: the zone commits whole blocks, so these pages are committed. Advice does not change their contents.
        pages.is_empty() || unsafe { self.call(pages, "advise on huge pages for", advice) }.is_ok()
    }
}

// How densely memory is used.

/// Decides when to check whether buffers of one length class were densely used: for every buffer while they are sparse, and less and less
/// often while they are dense. Threads that race here may check once too often, or skip a check.
struct DensityPredictor {
    /// The number of buffers that are assumed to be dense before the next check.
    left: AtomicU16,
    /// The value of `left` after the last check.
    granted: AtomicU16,
}

/// The number of length classes: one for each binary logarithm.
const KINDS: usize = 48;

/// Predicts whether a buffer was densely used, from the last buffers of its length class.
pub(crate) struct Density([DensityPredictor; KINDS]);

impl Density {
    pub(crate) const fn new() -> Self {
        Self([const { DensityPredictor { left: AtomicU16::new(0), granted: AtomicU16::new(0) } }; KINDS])
    }

    /// Whether a buffer of `bytes` was sparsely used. `look` checks the buffer. At most `most` buffers of a class in a row are assumed to
    /// be dense without a check.
    pub(crate) fn is_sparse(&self, bytes: usize, most: usize, look: impl FnOnce() -> bool) -> bool {
        let DensityPredictor { left, granted } = &self.0[(bytes.ilog2() as usize).min(KINDS - 1)];
        let before = left.load(Ordering::Relaxed);
        left.store(before.saturating_sub(1), Ordering::Relaxed);
        if before > 0 {
            return false;
        }
        let is_sparse = look();
        let next = if is_sparse { 0 } else { (8 * granted.load(Ordering::Relaxed) + 7).min(most as u16) };
        granted.store(next, Ordering::Relaxed);
        left.store(next, Ordering::Relaxed);
        is_sparse
    }
}

// Which blocks are mapped.

/// The blocks of a zone that are mapped.
pub(crate) struct Mapped {
    ready: Bitmap<'static>,
    /// The claim word of each block: 0, the generation of the process whose thread claimed the block last, or [`NEVER`].
    claims: &'static [AtomicU64],
    /// The end of the ready blocks: no block at or above this index is ready.
    end: AtomicUsize,
    /// The number of blocks that the last call of `pass` passed over. The last of them is just below `passed_until`.
    passed: AtomicUsize,
    passed_until: AtomicUsize,
    /// The total number of blocks that were passed over.
    foreign: AtomicUsize,
}

/// The claim word of a block that is foreign, or was passed over. Such a block never becomes ready.
const NEVER: u64 = u64::MAX;

/// The maximum number of blocks that a search above an obstacle examines.
const MAX_PROBES: usize = 64;

/// Why blocks are not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Another thread is mapping one of the blocks, or one is foreign. Blocks from `behind` on may be free. `passed` contains the foreign
    /// block that this call found, and the blocks that it passed over with that block.
    Taken { behind: usize, passed: Range<usize> },
    /// The kernel refuses memory.
    Refused,
}

impl Mapped {
    /// Creates the state of a zone without ready blocks. `ready` and `claims` must be clear, with an entry for each block.
    pub(crate) const fn new(ready: Bitmap<'static>, claims: &'static [AtomicU64]) -> Self {
        Self {
            ready,
            claims,
            end: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
            passed_until: AtomicUsize::new(0),
            foreign: AtomicUsize::new(0),
        }
    }

    /// Returns the end of the ready blocks. No block at or above this index is ready; those below may or may not be.
    pub(crate) fn end(&self) -> usize {
        self.end.load(atomic::Ordering::Acquire)
    }

    /// Returns the number of blocks that are foreign, or were passed over along with foreign ones.
    pub(crate) fn foreign(&self) -> usize {
        self.foreign.load(atomic::Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn is_ready(&self, block: usize) -> bool {
        self.ready.has(block)
    }

    /// Returns the ready blocks, as runs: `(start, length)`.
    pub(crate) fn ready(&self) -> impl Iterator<Item = (usize, usize)> {
        self.ready.set_runs(0, self.end())
    }

    /// Whether a block is foreign, or was passed over.
    pub(crate) fn is_foreign(&self, block: usize) -> bool {
        self.claims[block].load(Ordering::SeqCst) == NEVER
    }

    /// Makes the `wanted` blocks ready, and perhaps some after them, up to a multiple of `step`. `map` maps blocks, and returns
    /// [`OCCUPIED`] if something is mapped there already.
    ///
    /// # Errors
    /// See [`Obstacle`]. Even after an error, some of the blocks may be ready.
    pub(crate) fn reach(
        &self,
        wanted: Range<usize>,
        step: impl FnOnce() -> usize,
        generation: impl FnOnce() -> u64,
        map: impl Fn(Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Obstacle> {
        if self.ready.next_clear_within(wanted.start, wanted.end).is_none() {
            return Ok(());
        }
        self.grow(wanted, step(), generation(), map)
    }

    #[cold]
    fn grow(
        &self,
        wanted: Range<usize>,
        step: usize,
        generation: u64,
        map: impl Fn(Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Obstacle> {
        while let Some(first) = self.ready.next_clear_within(wanted.start, wanted.end) {
            let end = self.ready.next_set(first, wanted.end).unwrap_or(wanted.end);
            if end == first {
                // Another thread mapped the block between the two searches.
                continue;
            }
            let claimed = self.claim(first..end, generation);
            if claimed < end {
                self.unclaim(first..claimed);
                // The thread that had claimed the block may have mapped it since the first search.
                if self.is_ready_by_now(claimed) {
                    continue;
                }
                return Err(Obstacle::Taken { behind: self.behind(claimed, generation), passed: 0..0 });
            }
            let generous = end.next_multiple_of(step.max(1)).min(self.claims.len());
            let until = self.claim(end..generous, generation);
            if until > end {
                if map(first..until).is_ok() {
                    self.publish(first..until);
                    continue;
                }
                self.unclaim(end..until);
            }
            match map(first..end) {
                Ok(()) => self.publish(first..end),
                Err(OCCUPIED) => return Err(self.pass_first(first..end, map)),
                Err(_) => {
                    self.unclaim(first..end);
                    return Err(Obstacle::Refused);
                }
            }
        }
        Ok(())
    }

    /// Claims blocks in ascending order, up to the first that is already claimed or ready. Returns the end of the claimed blocks.
    pub(crate) fn claim(&self, blocks: Range<usize>, generation: u64) -> usize {
        let claim = |&block: &usize| {
            let claim = &self.claims[block];
            let found = claim.load(Ordering::SeqCst);
            let is_free = found == 0 || (found != generation && found != NEVER);
            // Readiness is checked after the claim is read: a ready block keeps its claim, so a claim from an ancestor process does not
            // show whether the block is ready. Of the threads that see the same claim, only one replaces it.
            is_free
                && !self.is_ready_by_now(block)
                && claim.compare_exchange(found, generation, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let claimed = blocks.clone().take_while(claim).count();
        blocks.start + claimed
    }

    /// Withdraws the caller's claims.
    fn unclaim(&self, blocks: Range<usize>) {
        blocks.for_each(|block| self.claims[block].store(0, Ordering::SeqCst));
    }

    /// Makes blocks ready that the caller claimed and mapped.
    fn publish(&self, blocks: Range<usize>) {
        let is_first = self.ready.try_claim(blocks.start, blocks.len()).is_ok();
        debug_assert!(is_first, "a block was mapped twice");
        self.end.fetch_max(blocks.end, atomic::Ordering::AcqRel);
    }

    fn is_ready_by_now(&self, block: usize) -> bool {
        self.ready.next_clear_within(block, block + 1).is_none()
    }

    /// Returns the first block above `taken` that is ready or not claimed, or the end of the search range if there is none.
    fn behind(&self, taken: usize, generation: u64) -> usize {
        let end = self.claims.len().min(taken + MAX_PROBES);
        let is_taken = |&block: &usize| {
            let claim = self.claims[block].load(Ordering::SeqCst);
            (claim == NEVER || claim == generation) && !self.is_ready_by_now(block)
        };
        (taken + 1..end).find(|block| !is_taken(block)).unwrap_or(end)
    }

    /// Finds the first foreign block among blocks that the caller claimed. Makes the blocks before it ready, and passes over the foreign
    /// block.
    fn pass_first(&self, blocks: Range<usize>, map: impl Fn(Range<usize>) -> Result<(), Errno>) -> Obstacle {
        // `from..until` is claimed, and contains a foreign block.
        let Range { start: mut from, end: mut until } = blocks;
        while until - from > 1 {
            let middle = from + (until - from) / 2;
            match map(from..middle) {
                Ok(()) => {
                    self.publish(from..middle);
                    from = middle;
                }
                Err(OCCUPIED) => {
                    self.unclaim(middle..until);
                    until = middle;
                }
                Err(_) => {
                    self.unclaim(from..until);
                    return Obstacle::Refused;
                }
            }
        }
        let passed = self.pass(from);
        Obstacle::Taken { behind: passed.end, passed }
    }

    /// Passes over a foreign block that the caller claimed. If the last call of `pass` ended at this block, passes over twice as many
    /// blocks as that call, but at most half of the zone's remaining blocks. So passing over a foreign mapping of any length takes only a
    /// few calls, and wastes at most as many addresses above the mapping as it is long.
    fn pass(&self, block: usize) -> Range<usize> {
        let continues = self.passed_until.load(atomic::Ordering::Relaxed) == block;
        let len = if continues { 2 * self.passed.load(atomic::Ordering::Relaxed) } else { 1 };
        let until = block + len.clamp(1, (self.claims.len() - block).div_ceil(2));
        self.claims[block].store(NEVER, Ordering::SeqCst);
        // Blocks that are ready, or that another thread is mapping, stay as they are.
        let is_free =
            |&block: &usize| self.claims[block].compare_exchange(0, NEVER, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let others = (block + 1..until).filter(is_free).count();
        self.foreign.fetch_add(1 + others, atomic::Ordering::Relaxed);
        self.passed.store(until - block, atomic::Ordering::Relaxed);
        self.passed_until.store(until, atomic::Ordering::Relaxed);
        block..until
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const OURS: u8 = 1;
    const FOREIGN: u8 = 2;

    /// A fake kernel: records who mapped each block of a zone.
    struct Kernel(Mutex<Vec<u8>>);

    impl Kernel {
        fn new(blocks: usize, foreign: &[Range<usize>]) -> Self {
            let mut map = vec![0; blocks];
            foreign.iter().cloned().for_each(|range| map[range].fill(FOREIGN));
            Self(Mutex::new(map))
        }

        fn map(&self, blocks: Range<usize>) -> Result<(), Errno> {
            let mut map = self.0.lock().unwrap();
            if map[blocks.clone()].iter().any(|&owner| owner != 0) {
                return Err(OCCUPIED);
            }
            map[blocks].fill(OURS);
            Ok(())
        }
    }

    fn mapped(blocks: usize) -> Mapped {
        let words = |len: usize| -> &'static [AtomicU64] { Box::leak((0..len).map(|_| AtomicU64::new(0)).collect()) };
        Mapped::new(Bitmap::new(words(Bitmap::words_for(blocks))), words(blocks))
    }

    /// Makes `len` consecutive blocks ready, at or above `from`, as a zone does. Returns the first block, and how many calls found an
    /// obstacle.
    fn place(mapped: &Mapped, kernel: &Kernel, len: usize, mut from: usize) -> Option<(usize, usize)> {
        for obstacles in 0.. {
            if from + len > mapped.claims.len() {
                return None;
            }
            match mapped.reach(from..from + len, || 1, || 7, |blocks| kernel.map(blocks)) {
                Ok(()) => return Some((from, obstacles)),
                Err(Obstacle::Taken { behind, .. }) => from = behind,
                Err(Obstacle::Refused) => return None,
            }
        }
        None
    }

    /// Each request makes only a few calls, no matter how long the foreign mapping is. The blocks before, between and after foreign
    /// mappings are used.
    #[test]
    fn foreign_mappings_are_passed_in_a_few_calls_and_all_other_blocks_become_ready() {
        for len in [3, 50] {
            let (mapped, kernel) = (mapped(4096), Kernel::new(4096, &[10..11, 40..3000, 3500..3501]));
            let mut from = 0;
            while let Some((start, obstacles)) = place(&mapped, &kernel, len, from) {
                assert!(obstacles <= 14, "{obstacles} calls found no place for {len} blocks from {from} on");
                from = start + len;
            }
            let map = kernel.0.lock().unwrap();
            (0..4096).for_each(|block| assert_eq!(mapped.is_ready(block), map[block] == OURS, "{block}"));
            let used = [0..10, 11..40, 3200..3500, 3501..4096 - len];
            assert!(used.into_iter().flatten().all(|block| mapped.is_ready(block)));
            assert_eq!(mapped.foreign(), (0..4096).filter(|&block| mapped.is_foreign(block)).count());
        }
    }

    /// A child inherits the claims of its parent's threads, but not the threads, which may have mapped the blocks already.
    #[test]
    fn a_forked_child_replaces_the_claims_of_its_parents_threads() {
        for is_mapped in [false, true] {
            let (mapped, kernel) = (mapped(64), Kernel::new(64, &[]));
            assert_eq!(mapped.claim(0..4, 6), 4);
            if is_mapped {
                kernel.map(0..4).unwrap();
            }
            let (start, obstacles) = place(&mapped, &kernel, 2, 0).expect("a place");
            assert!(if is_mapped { start >= 4 && obstacles <= 3 } else { (start, obstacles) == (0, 0) });
            assert_eq!(mapped.is_foreign(0), is_mapped);
        }
    }

    #[test]
    fn blocks_that_the_kernel_refused_can_be_mapped_by_a_later_request() {
        let (mapped, kernel) = (mapped(64), Kernel::new(64, &[]));
        assert_eq!(mapped.reach(0..4, || 16, || 7, |_| Err(Errno(12))), Err(Obstacle::Refused));
        let small = |blocks: Range<usize>| if blocks.len() > 4 { Err(Errno(12)) } else { kernel.map(blocks) };
        assert_eq!(mapped.reach(0..4, || 16, || 7, small), Ok(()));
        assert_eq!((mapped.end(), place(&mapped, &kernel, 1, 4)), (4, Some((4, 0))));
    }
}
