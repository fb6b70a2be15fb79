//! A zone: a part of the region, cut into granules of one size, handed out in runs.
//!
//! Three facts are kept for each granule, each with one owner: whether it is *used* (owned by an allocation), whether it
//! is *dirty* (may hold something else than zeroes, and is resident), and whether it is *committed* (readable and
//! writable; a prefix of the zone, which only grows). A run is used from before its address is returned until after the
//! address was given back; that is the invariant of the crate.
#![allow(unsafe_code, reason = "hands out memory")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::bitmap::Bitmap;
use super::budget;
use crate::config::HugePages;
use crate::counters::ZoneCounters;
use crate::kept::{self, Run};
use crate::os;

/// A zone commits in steps of this many bytes, so that it rarely asks the kernel.
const COMMIT_STEP_BYTES: usize = 32 << 20;

/// What a new allocation must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Whatever was there.
    Any,
    /// Zeroes.
    Zeroed,
}

/// What a zone asks of the kernel about huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugeAdvice {
    /// `MADV_HUGEPAGE`.
    Ask,
    /// `MADV_NOHUGEPAGE`.
    Forbid,
    /// The host's setting as it is.
    Leave,
}

impl HugeAdvice {
    pub(crate) fn of(setting: HugePages) -> Self {
        match setting {
            HugePages::Auto | HugePages::Always => Self::Ask,
            HugePages::Avoided | HugePages::Never => Self::Forbid,
            HugePages::Unavailable => Self::Leave,
        }
    }
}

/// Why a zone has no memory for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The zone's address space is full, or the kernel refuses memory.
    Full,
    /// The memory would be resident beyond the cap, unless something else is given back first.
    OverBudget,
}

/// Whom a zone serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenant {
    /// A thread's slab. Few of them live long, so that the lowest place is theirs.
    Slab,
    /// A run of pages.
    Run,
}

/// What [`Zone::trim`] and its like do with free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveBack {
    /// At once; it reads as zeroes from now on.
    Now,
    /// When the kernel runs short; until then it may be taken back without a fault.
    WhenShort,
}

/// What a zone is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZoneSpec {
    /// A power of two, at most a huge page.
    pub(crate) granule_bytes: usize,
    pub(crate) huge: HugeAdvice,
    /// So many bytes at the zone's start are for slabs only.
    pub(crate) slabs_only_bytes: usize,
    /// Memory in small pages is paged in by blocks of so many bytes, a power of two: the next phase's runs lie a little
    /// elsewhere, and find it resident. 0 leaves each page to whoever touches it.
    pub(crate) block_bytes: usize,
    /// So many bytes at the zone's start are in small pages, paged in one by one: whoever uses little does not pay for whole
    /// huge pages, or blocks.
    pub(crate) small_pages_bytes: usize,
    /// From so many bytes on, dirty memory is zeroed by giving its pages back: the kernel then clears them on the threads
    /// that touch them, instead of all of it here on one.
    pub(crate) lazy_zero_bytes: usize,
    /// Where each thread keeps the run that it freed last, if it does.
    pub(crate) kept: Option<kept::Place>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Zone {
    base: NonNull<u8>,
    /// The binary logarithm of a granule's bytes.
    granule_shift: u32,
    used: Bitmap<'static>,
    dirty: Bitmap<'static>,
    /// Granules, from the zone's start, that are committed. Only grows.
    committed: AtomicUsize,
    spec: ZoneSpec,
    pub(crate) counters: ZoneCounters,
}

// SAFETY: `base` is an address that never changes; everything mutable is atomic, and the memory behind `base` is only
// reached through granules that the caller owns.
unsafe impl Send for Zone {}
// SAFETY: as above.
unsafe impl Sync for Zone {}

impl Zone {
    /// A zone over reserved memory at `base`, which is a multiple of a granule.
    ///
    /// # Safety
    /// The memory that the bitmaps describe lies within one reservation, which nobody else uses and which is never
    /// unmapped. Both bitmaps are clear.
    pub(crate) unsafe fn new(base: NonNull<u8>, spec: ZoneSpec, used: Bitmap<'static>, dirty: Bitmap<'static>) -> Self {
        let granule_bytes = spec.granule_bytes;
        debug_assert!(granule_bytes.is_power_of_two() && base.addr().get().is_multiple_of(granule_bytes));
        Self {
            base,
            granule_shift: granule_bytes.trailing_zeros(),
            used,
            dirty,
            committed: AtomicUsize::new(0),
            spec,
            counters: ZoneCounters::new(),
        }
    }

    /// Hands out a run of at least `bytes` bytes.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn claim(&self, bytes: usize, align: usize, contents: Contents) -> Result<NonNull<u8>, Shortage> {
        if let Some(start) = self.take_kept(bytes, align) {
            if contents == Contents::Zeroed {
                self.zero(start, bytes);
            }
            return Ok(self.address(start));
        }
        let granules = self.granules(bytes);
        let start = self.claim_usable(Tenant::Run, granules, align)?;
        if contents == Contents::Zeroed {
            self.zero(start, bytes);
        }
        self.dirty.set(start, granules);
        self.counters.requested(bytes);
        Ok(self.address(start))
    }

    /// Hands out a slab, which is as long as it is aligned. What it holds is anything.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn claim_slab(&self, bytes: usize) -> Result<NonNull<u8>, Shortage> {
        let granules = self.granules(bytes);
        let start = self.claim_usable(Tenant::Slab, granules, bytes)?;
        self.dirty.set(start, granules);
        Ok(self.address(start))
    }

    /// Takes back a slab.
    ///
    /// # Safety
    /// `at` came from [`claim_slab`](Self::claim_slab) with these `bytes`; nobody uses it any more.
    pub(crate) unsafe fn release_slab(&self, at: NonNull<u8>, bytes: usize) {
        self.release_granules(self.index(at), self.granules(bytes));
    }

    /// Claims granules, makes them usable and counts them. Which of them are dirty is as it was.
    fn claim_usable(&self, tenant: Tenant, granules: usize, align: usize) -> Result<usize, Shortage> {
        let start = self.claim_free(tenant, granules, align).ok_or(Shortage::Full)?;
        let fresh_bytes = self.make_usable(start, granules).inspect_err(|_| self.used.release(start, granules))?;
        self.counters.grown(self.bytes(granules), fresh_bytes);
        Ok(start)
    }

    /// The first granule of what this thread keeps, if that is a run for `bytes`. It is dirty, and booked.
    #[inline(always)]
    fn take_kept(&self, bytes: usize, align: usize) -> Option<usize> {
        let run_bytes = self.bytes(self.granules(bytes));
        let fits = |run: Run| run.bytes() == run_bytes && run.address() & (align - 1) == 0;
        kept::take_if(self.spec.kept?, bytes, fits).map(|run| self.granule_at(run.address()))
    }

    /// Claims the lowest run of free granules; before it hands out what is not resident, what threads keep is free too.
    fn claim_free(&self, tenant: Tenant, granules: usize, align: usize) -> Option<usize> {
        let align = self.granules(align).next_power_of_two();
        let skew = (self.base.addr().get() >> self.granule_shift) & (align - 1);
        let first_fit = || self.used.claim_first_fit(self.lowest(tenant), granules, align, skew);
        let found = first_fit();
        let is_resident = |start| self.dirty.count(start, granules) == granules;
        if found.is_some_and(is_resident) || !self.release_kept() {
            return found;
        }
        if let Some(start) = found {
            self.used.release(start, granules);
        }
        first_fit()
    }

    /// The first granule that may be a tenant's.
    fn lowest(&self, tenant: Tenant) -> usize {
        match tenant {
            Tenant::Slab => 0,
            // However little address space the system granted, most of it is for both.
            Tenant::Run => self.granules(self.spec.slabs_only_bytes).min(self.used.len() / 4),
        }
    }

    /// Frees what threads keep of this zone; `false` if they keep nothing.
    pub(crate) fn release_kept(&self) -> bool {
        let Some(place) = self.spec.kept else { return false };
        kept::take_all(place).map(|run| self.release_run(run)).count() > 0
    }

    /// Frees a run that was kept, and is the caller's now.
    fn release_run(&self, run: Run) {
        self.release_granules(self.granule_at(run.address()), self.granules(run.bytes()));
    }

    fn release_granules(&self, start: usize, granules: usize) {
        self.counters.released(self.bytes(granules));
        self.used.release(start, granules);
    }

    /// Commits and books granules that the caller owns, and returns how many bytes of them are not resident yet.
    fn make_usable(&self, start: usize, granules: usize) -> Result<usize, Shortage> {
        if !self.commit_to(start + granules) {
            return Err(Shortage::Full);
        }
        let fresh = self.bytes(granules - self.dirty.count(start, granules));
        if fresh > 0 {
            if !budget::admit(fresh) {
                return Err(Shortage::OverBudget);
            }
            self.page_in_blocks(start, start + granules);
        }
        Ok(fresh)
    }

    /// Pages in the blocks that granules `start..end` begin and end in. Those that they fill, whoever touches them pages in,
    /// or does not.
    fn page_in_blocks(&self, start: usize, end: usize) {
        let block = self.granules(self.spec.block_bytes);
        if block == 0 {
            return;
        }
        let (first, last) = (start / block * block, (end - 1) / block * block);
        self.page_in_block(first, start, end);
        if last != first {
            self.page_in_block(last, start, end);
        }
    }

    /// Pages in the block at granule `block` if nothing of it was used since it was last given back, and `start..end` do not
    /// fill it. What it holds stays as it is, so that it does not matter whose it is.
    fn page_in_block(&self, block: usize, start: usize, end: usize) {
        let until = (block + self.granules(self.spec.block_bytes)).min(self.committed.load(Ordering::Acquire));
        let is_filled = start <= block && until <= end;
        let is_small = self.bytes(block) < self.spec.small_pages_bytes;
        if is_filled || is_small || self.dirty.count(block, until - block) > 0 {
            return;
        }
        let (at, len) = (self.address(block), self.bytes(until - block));
        self.counters.system_call();
        // SAFETY: committed granules of this zone.
        if let Err(refused) = unsafe { os::page_in(at.as_ptr(), len) } {
            self.counters.refused(refused, "page in", len);
        }
    }

    /// Takes back a run.
    ///
    /// # Safety
    /// `at` came from [`claim`](Self::claim) and is `bytes` long by now; nobody uses it any more.
    pub(crate) unsafe fn release(&self, at: NonNull<u8>, bytes: usize) {
        let granules = self.granules(bytes);
        if let (Some(place), Some(run)) = (self.spec.kept, Run::new(at.addr().get(), self.bytes(granules))) {
            if let Some(other) = kept::put(place, run) {
                self.release_run(other);
            }
            return;
        }
        self.release_granules(self.index(at), granules);
    }

    /// Changes the length of a run where it stands; `false` if what follows it is taken.
    ///
    /// # Safety
    /// `at` came from [`claim`](Self::claim) and is `old_bytes` long by now. When shrunk, nobody uses the end.
    pub(crate) unsafe fn resize(&self, at: NonNull<u8>, old_bytes: usize, new_bytes: usize) -> bool {
        let (old, new) = (self.granules(old_bytes), self.granules(new_bytes));
        let start = self.index(at);
        if new > old {
            let (more_at, more) = (start + old, new - old);
            let claim = || self.used.try_claim(more_at, more).is_ok();
            let claimed = claim() || self.release_kept() && claim();
            if !claimed {
                return false;
            }
            let Ok(fresh) = self.make_usable(more_at, more) else {
                self.used.release(more_at, more);
                return false;
            };
            self.dirty.set(more_at, more);
            self.counters.grown(self.bytes(more), fresh);
        } else if new < old {
            self.release_granules(start + new, old - new);
        }
        true
    }

    /// Gives free memory back to the kernel, from the top address down, until at least `wanted_bytes` are back or nothing
    /// free is resident. Returns how many bytes went.
    pub(crate) fn trim(&self, wanted_bytes: usize, how: GiveBack) -> usize {
        self.release_kept();
        let mut gone = 0;
        let mut end = self.committed.load(Ordering::Acquire);
        while end > 0 && gone < wanted_bytes {
            let start = (end - 1) / 64 * 64;
            for (run, len) in self.dirty.set_runs(start, end - start) {
                gone += self.trim_run(run, len, how);
            }
            end = start;
        }
        gone
    }

    /// Gives back what is free of `[start, start + len)`, in one piece if all of it is.
    fn trim_run(&self, start: usize, len: usize, how: GiveBack) -> usize {
        if self.used.try_claim(start, len).is_err() {
            if len == 1 {
                return 0;
            }
            let half = len / 2;
            return self.trim_run(start, half, how) + self.trim_run(start + half, len - half, how);
        }
        // SAFETY: the run is ours since the claim above, and committed, since it was dirty.
        let gone = unsafe { self.give_back(start, len, how) };
        if gone && how == GiveBack::Now {
            budget::returned(self.bytes(self.dirty.clear(start, len)));
        }
        self.used.release(start, len);
        if gone { self.bytes(len) } else { 0 }
    }

    /// Pages in `bytes` of the zone's free memory, so that whoever is handed it finds it resident. Returns how many bytes
    /// were; fewer if the zone or the kernel has no more.
    pub(crate) fn populate(&self, tenant: Tenant, bytes: usize, threads: usize) -> usize {
        let granules = self.granules(bytes.min(self.capacity_bytes()));
        let Some(start) = self.used.claim_first_fit(self.lowest(tenant), granules, 1, 0) else { return 0 };
        let usable = self.make_usable(start, granules).is_ok();
        if usable {
            self.dirty.set(start, granules);
            let share = granules.div_ceil(threads.max(1));
            std::thread::scope(|scope| {
                for from in (start..start + granules).step_by(share) {
                    let len = share.min(start + granules - from);
                    let page_in = move || {
                        self.counters.system_call();
                        // SAFETY: granules claimed above, committed, which nobody else knows of.
                        if let Err(refused) = unsafe { os::populate(self.address(from).as_ptr(), self.bytes(len)) } {
                            self.counters.refused(refused, "page in", self.bytes(len));
                        }
                    };
                    // Without another thread, this one does it.
                    if std::thread::Builder::new().spawn_scoped(scope, page_in).is_err() {
                        page_in();
                    }
                }
            });
        }
        self.used.release(start, granules);
        if usable { self.bytes(granules) } else { 0 }
    }

    /// Bytes of address space.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes(self.used.len())
    }

    /// The zone's first address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Which granule an address lies in.
    pub(crate) fn index(&self, at: NonNull<u8>) -> usize {
        self.granule_at(at.addr().get())
    }

    fn granule_at(&self, address: usize) -> usize {
        (address - self.base.addr().get()) >> self.granule_shift
    }

    fn granules(&self, bytes: usize) -> usize {
        // Not rounded up before the shift: sums with the largest sizes overflow.
        (bytes >> self.granule_shift) + usize::from(bytes & ((1 << self.granule_shift) - 1) != 0)
    }

    fn bytes(&self, granules: usize) -> usize {
        granules << self.granule_shift
    }

    fn address(&self, granule: usize) -> NonNull<u8> {
        // SAFETY: a granule of the zone: the offset stays inside the reservation.
        unsafe { self.base.add(self.bytes(granule)) }
    }

    /// Makes the first `granules` of the zone accessible; `false` if the kernel refuses. Safe to race: the kernel's call
    /// may be repeated, and `committed` only grows.
    fn commit_to(&self, granules: usize) -> bool {
        let before = self.committed.load(Ordering::Acquire);
        if granules <= before {
            return true;
        }
        let step = self.granules(COMMIT_STEP_BYTES);
        let generous = granules.next_multiple_of(step).min(self.used.len());
        for target in [generous, granules] {
            let (at, len) = (self.address(before), self.bytes(target - before));
            self.counters.system_call();
            // SAFETY: granules `before..target` of this zone, within the reservation.
            match unsafe { os::commit(at.as_ptr(), len) } {
                Ok(()) => {
                    self.advise(before, target);
                    self.committed.fetch_max(target, Ordering::AcqRel);
                    return true;
                }
                Err(refused) => self.counters.refused(refused, "commit memory", len),
            }
        }
        false
    }

    /// Advises the kernel on granules `from..to`, which were just committed.
    fn advise(&self, from: usize, to: usize) {
        let (advise, from): (unsafe fn(*mut u8, usize) -> _, _) = match self.spec.huge {
            HugeAdvice::Ask => (os::advise_huge, from.max(self.granules(self.spec.small_pages_bytes))),
            HugeAdvice::Forbid => (os::forbid_huge, from),
            HugeAdvice::Leave => return,
        };
        if from >= to {
            return;
        }
        let (at, len) = (self.address(from), self.bytes(to - from));
        self.counters.system_call();
        // SAFETY: memory of this zone that was just committed.
        if let Err(refused) = unsafe { advise(at.as_ptr(), len) } {
            self.counters.refused(refused, "advise on huge pages for", len);
        }
    }

    /// Clears the first `bytes` of the run at granule `start`, which the caller owns: only what is dirty needs it.
    fn zero(&self, start: usize, bytes: usize) {
        let end_bytes = self.bytes(start) + bytes;
        for (run, len) in self.dirty.set_runs(start, self.granules(bytes)) {
            let at = self.bytes(run);
            let dirty_bytes = self.bytes(len).min(end_bytes - at);
            let lazily = dirty_bytes >= self.spec.lazy_zero_bytes;
            // SAFETY: granules that the caller owns; they are dirty, hence committed.
            if lazily && unsafe { self.give_back(run, len, GiveBack::Now) } {
                self.counters.will_fault(dirty_bytes);
                continue;
            }
            // SAFETY: as above.
            unsafe { self.address(run).write_bytes(0, dirty_bytes) };
        }
    }

    /// Gives the pages of granules back to the kernel; `false` if it refuses.
    ///
    /// # Safety
    /// The caller owns `[start, start + len)`, all committed, and needs none of its contents.
    unsafe fn give_back(&self, start: usize, len: usize, how: GiveBack) -> bool {
        self.counters.system_call();
        let (at, bytes) = (self.address(start).as_ptr(), self.bytes(len));
        let result = match how {
            // SAFETY: the caller's.
            GiveBack::Now => unsafe { os::discard(at, bytes) },
            // SAFETY: the caller's.
            GiveBack::WhenShort => unsafe { os::soften(at, bytes) },
        };
        match result {
            Ok(()) => true,
            Err(refused) => {
                self.counters.refused(refused, "give back memory", bytes);
                false
            }
        }
    }
}
