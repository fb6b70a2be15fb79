//! One thread's cache.
//!
//! The owner accesses the blocks of its cache with plain loads and stores, guarded by an asymmetric fence: it sets its owner flag, then
//! checks for a remote claim. Other threads must claim the cache to take its blocks. Any thread may take the runs without a claim.
#![allow(
    unsafe_code,
    reason = "hands out memory, reads a table that outlives all threads, and thread-local memory that lasts as long as its thread"
)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::ops::{Add, Deref};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use crate::classes::{self, Class};
use crate::observe::sampler;
#[cfg(thread_blocks)]
use crate::os;
use crate::sync::{AtomicU8, AtomicU64, Ordering, compiler_fence};
use crate::tuning;

/// The addresses of a thread's cached blocks, class by class.
pub(crate) type Blocks = [AtomicU64; classes::PLACES];

// A page run that a thread caches, in one word.

/// A run of 4 KiB pages: the number of its first page and, in the lowest bits, the number of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run(NonZeroU64);

const PAGE_SHIFT: u32 = 12;
/// Leaves 45 bits for the number of the page, which suffices for 57-bit addresses.
const LENGTH_BITS: u32 = 19;

impl Run {
    /// Packs a run into a word. Returns `None` if the run does not consist of whole pages, or is too long.
    pub(crate) fn new(address: usize, bytes: usize) -> Option<Self> {
        const PAGE_BYTES: usize = 1 << PAGE_SHIFT;
        let (page, pages) = (address as u64 >> PAGE_SHIFT, bytes as u64 >> PAGE_SHIFT);
        let fits = address % PAGE_BYTES == 0 && bytes % PAGE_BYTES == 0;
        if fits && pages < 1 << LENGTH_BITS { Self::of(page << LENGTH_BITS | pages) } else { None }
    }

    pub(crate) fn of(word: u64) -> Option<Self> {
        NonZeroU64::new(word).map(Self)
    }

    pub(crate) const fn word(self) -> u64 {
        self.0.get()
    }

    pub(crate) const fn address(self) -> usize {
        (self.0.get() >> LENGTH_BITS << PAGE_SHIFT) as usize
    }

    pub(crate) const fn bytes(self) -> usize {
        ((self.0.get() & ((1 << LENGTH_BITS) - 1)) << PAGE_SHIFT) as usize
    }
}

/// The maximum number of runs that a thread caches; a power of two.
const RUNS: usize = if cfg!(loom) { 1 } else { 4 };

/// Returns how many runs a thread caches at most.
#[inline(always)]
fn places() -> usize {
    tuning::caches_runs().clamp(1, RUNS)
}

/// The number of most recently cached blocks that a freed block is compared with, to detect a double free.
#[cfg(feature = "c-api")]
const LAST: usize = 3;

/// The cache of one thread. An all-zero value is a cache that never had an owner.
#[repr(C, align(128))]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct Cache {
    /// 1 while the cache has an owner.
    owned: AtomicU8,
    /// 1 while the owner uses the cache. Only the owner writes it.
    owner_flag: AtomicU8,
    /// The process generation of the thread that claims the cache; 0 if none does.
    remote_claim: AtomicU64,
    /// The number of cached blocks, by class.
    counts: [AtomicU8; classes::TABLE],
    /// The size of the next refill's batch in blocks, minus one, by class. It grows with each refill, so a thread that needs one block does
    /// not get sixteen.
    batch_sizes: [AtomicU8; classes::TABLE],
    /// The addresses of the cached blocks; null before the cache's first owner.
    pub(super) blocks: AtomicPtr<Blocks>,
    /// The cached runs; 0 stands for none.
    runs: [AtomicU64; RUNS],
    /// The index in `runs` at which the next run is put. Putting a run in advances it by one; taking a run out sets it to the index of that
    /// run.
    next_run: AtomicU8,
    /// The number of runs and of blocks that were handed to the owner, and their bytes. Only the owner writes these counters.
    run_allocations: AtomicU64,
    run_bytes: AtomicU64,
    block_allocations: AtomicU64,
    block_bytes: AtomicU64,
    /// The total size of the blocks that the owner freed, in bytes. Other threads may have allocated these blocks.
    returned_bytes: AtomicU64,
    /// The index of this cache among all caches.
    pub(super) index: AtomicUsize,
    /// The number by which `block_allocations` exceeds the number of requests (see [`Cache::tick_within`]).
    jumped_allocations: AtomicU64,
    /// The cache that the claimant claimed just before this one: a link in its list of claimed caches. Only the claimant uses this field.
    pub(super) claimed_before: AtomicPtr<Cache>,
}

/// A cache that its owner has entered. Dropping this value leaves the cache.
pub(crate) struct Entered<'a>(&'a Cache);

impl Deref for Entered<'_> {
    type Target = Cache;

    #[inline(always)]
    fn deref(&self) -> &Cache {
        self.0
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Pairs with the Acquire of `is_in_use`: a claimant sees everything that is cached.
        self.0.owner_flag.store(0, Ordering::Release);
    }
}

/// A number of allocations, and their total bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
}

impl Totals {
    fn of(allocations: &AtomicU64, bytes: &AtomicU64) -> Self {
        Self { allocations: allocations.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) }
    }
}

impl Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { allocations: self.allocations + other.allocations, bytes: self.bytes + other.bytes }
    }
}

/// Adds to a sum that only the calling thread writes, so a load and a store suffice.
#[inline(always)]
fn add(sum: &AtomicU64, more: u64) {
    sum.store(sum.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Cache {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        // SAFETY: all fields are integers or pointers, for which zero is a valid value.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// Creates the cache of a model, with room for blocks and without an owner.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { blocks: AtomicPtr::new(Box::into_raw(Box::default())), ..Self::default() }
    }

    /// Makes the calling thread the owner. Returns `false` if another thread owns the cache.
    pub(crate) fn try_acquire(&self) -> bool {
        // Acquire pairs with the Release of `disown`: this thread sees what the last owner left in the cache.
        self.owned.load(Ordering::Relaxed) == 0
            && self.owned.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cfg(not(loom))]
    pub(crate) fn is_owned(&self) -> bool {
        self.owned.load(Ordering::SeqCst) != 0
    }

    /// Ends the ownership. SeqCst includes Release. It also orders two threads: one disowns a cache, then sets its hint; the other clears
    /// that hint, then checks whether the cache has an owner. At least one of them must see the other's change.
    pub(crate) fn disown(&self) {
        self.owned.store(0, Ordering::SeqCst);
    }

    /// Releases the cache of an exiting owner: calls `empty` with it, then `forget`, and only then `give_up`, after which another thread
    /// may acquire it. If another thread claims the cache at this moment, or if a signal interrupted the owner while it used the cache, the
    /// contents stay for the next owner.
    pub(crate) fn release(&self, empty: impl FnOnce(&Self), forget: impl FnOnce(), give_up: impl FnOnce(&Self)) {
        if let Some(entered) = self.enter() {
            empty(&entered);
        }
        forget();
        give_up(self);
    }

    /// Enters the cache. Only the owner may call this. Returns `None` if a signal interrupted the owner while it used the cache, or if
    /// another thread has claimed the cache.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        if self.owner_flag.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.owner_flag.store(1, Ordering::Relaxed);
        // The other half of this fence is `os::fence_other_threads`.
        compiler_fence(Ordering::SeqCst);
        let entered = Entered(self);
        // Acquire pairs with the Release of `unclaim`: the owner sees that the blocks are gone.
        if self.remote_claim.load(Ordering::Acquire) == 0 { Some(entered) } else { None }
    }

    /// Claims the cache: keeps other claimants out, and the owner too from its next attempt to enter. Returns `false` if another thread has
    /// claimed the cache. `by` is the generation of the process.
    pub(crate) fn claim(&self, by: u64) -> bool {
        self.remote_claim.compare_exchange(0, by, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn unclaim(&self) {
        self.remote_claim.store(0, Ordering::Release);
    }

    /// Drops a claim that was held when this process was forked: the claimant exists only in the parent. A vforked child has its parent's
    /// generation, so it respects the claims of living threads.
    pub(crate) fn drop_claim_of_parent(&self, generation: impl FnOnce() -> u64) {
        let by = self.remote_claim.load(Ordering::Relaxed);
        if by != 0 && by != generation() {
            let _ = self.remote_claim.compare_exchange(by, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether the owner may be using the cache without having seen the claim. Call this after the fence.
    pub(crate) fn is_in_use(&self) -> bool {
        self.owner_flag.load(Ordering::Acquire) != 0
    }

    #[inline(always)]
    fn place(&self, class: Class, index: usize) -> &AtomicU64 {
        // SAFETY: `blocks` is set before the first owner enters the cache, to a table that is never unmapped. Callers have entered the
        // cache, or claimed it because it holds blocks.
        let blocks = unsafe { &*self.blocks.load(Ordering::Relaxed) };
        // The remainder saves a bounds check. It changes no valid index.
        &blocks[(class.first_place() + index) % classes::PLACES]
    }

    #[inline(always)]
    fn count(&self, class: Class) -> &AtomicU8 {
        &self.counts[class.index()]
    }

    /// Whether the next request for a block takes the slow path even if the cache has a block. The slow path also runs a decay tick if one
    /// is due.
    #[inline(always)]
    pub(crate) fn is_to_tick(&self) -> bool {
        let every = tuning::tick_requests().max(1) as u64;
        self.block_allocations.load(Ordering::Relaxed) % every == every - 1
    }

    /// Makes one of the next `requests` requests for blocks take the slow path. To do so, moves the count of requests to just below a
    /// multiple of [`tuning::tick_requests`]. [`block_totals`](Self::block_totals) subtracts these jumps. Comparing the count with a
    /// separate limit would cost more than a nanosecond for each pair of an allocation and a free.
    pub(crate) fn tick_within(&self, requests: usize) {
        let every = tuning::tick_requests().max(1) as u64;
        let last = every.saturating_sub(1 + requests as u64);
        let jump = last.saturating_sub(self.block_allocations.load(Ordering::Relaxed) % every);
        add(&self.jumped_allocations, jump);
        add(&self.block_allocations, jump);
    }

    /// Takes out the block that was cached last. Only a thread that entered or claimed the cache may call this, or any other method that
    /// moves blocks.
    #[inline(always)]
    pub(crate) fn pop(&self, class: Class) -> Option<u64> {
        let left = self.count(class).load(Ordering::Relaxed).checked_sub(1)?;
        let block = self.place(class, left as usize).load(Ordering::Relaxed);
        self.count(class).store(left, Ordering::Relaxed);
        Some(block)
    }

    /// Caches a block. Returns `false` if there is no room.
    #[inline(always)]
    pub(crate) fn push(&self, class: Class, block: u64) -> bool {
        let count = self.count(class).load(Ordering::Relaxed);
        let has_room = (count as usize) < class.capacity();
        if has_room {
            self.place(class, count as usize).store(block, Ordering::Relaxed);
            self.count(class).store(count + 1, Ordering::Relaxed);
        }
        has_room
    }

    /// Caches a block. Returns `false` if there is no room, or if the block may be among the last [`LAST`] that were cached. If fewer
    /// blocks are cached, the comparison also reads the places of another class, so `false` may be a false alarm.
    #[cfg(feature = "c-api")]
    #[inline(always)]
    pub(crate) fn push_unless_last(&self, class: Class, block: u64) -> bool {
        // SAFETY: as in `place`. All places share one reference, because the compiler would reload an atomic pointer for each.
        let blocks = unsafe { &*self.blocks.load(Ordering::Relaxed) };
        let count = self.count(class).load(Ordering::Relaxed) as usize;
        let end = class.first_place() + count;
        let place = |index: usize| &blocks[index % classes::PLACES];
        let is_last = (1..=LAST).any(|back| place(end.wrapping_sub(back)).load(Ordering::Relaxed) == block);
        let is_kept = !is_last && count < class.capacity();
        if is_kept {
            place(end).store(block, Ordering::Relaxed);
            self.count(class).store(count as u8 + 1, Ordering::Relaxed);
        }
        is_kept
    }

    /// Whether a block is among the last [`LAST`] that were cached.
    #[cfg(feature = "c-api")]
    pub(crate) fn is_among_last(&self, class: Class, block: u64) -> bool {
        let count = self.count(class).load(Ordering::Relaxed) as usize;
        (count.saturating_sub(LAST)..count).any(|index| self.place(class, index).load(Ordering::Relaxed) == block)
    }

    pub(crate) fn has_blocks(&self) -> bool {
        self.counts.iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }

    pub(crate) fn holds(&self, class: Class) -> bool {
        self.count(class).load(Ordering::Relaxed) > 0
    }

    /// Takes out the oldest blocks, all but the newest `keep`. While the caller iterates, their addresses stay in the table, after those of
    /// the kept blocks.
    pub(crate) fn take_first(&self, class: Class, keep: usize) -> impl Iterator<Item = usize> {
        let count = self.count(class).load(Ordering::Relaxed) as usize;
        let left = keep.min(count);
        let gone = count - left;
        for index in 0..if gone == 0 { 0 } else { left } {
            let (first, last) = (self.place(class, index), self.place(class, index + gone));
            let block = first.load(Ordering::Relaxed);
            first.store(last.load(Ordering::Relaxed), Ordering::Relaxed);
            last.store(block, Ordering::Relaxed);
        }
        // The count changes before the caller frees the blocks: a thread that dies halfway, as a vforked child may, must not leave freed
        // blocks in the cache.
        self.count(class).store(left as u8, Ordering::Relaxed);
        (left..count).map(move |index| self.place(class, index).load(Ordering::Relaxed) as usize)
    }

    /// Returns how many blocks to fetch in this refill: twice as many as in the last one, up to `most`.
    pub(crate) fn next_batch(&self, class: Class, most: usize) -> usize {
        let batch_size = &self.batch_sizes[class.index()];
        let now = batch_size.load(Ordering::Relaxed) as usize + 1;
        batch_size.store((2 * now).min(most).max(1) as u8 - 1, Ordering::Relaxed);
        now.min(most)
    }

    #[inline(always)]
    pub(crate) fn handed_out(&self, class: Class) {
        add(&self.block_allocations, 1);
        add(&self.block_bytes, class.block_bytes() as u64);
    }

    #[inline(always)]
    pub(crate) fn taken_back(&self, class: Class) {
        add(&self.returned_bytes, class.block_bytes() as u64);
    }

    #[inline(always)]
    pub(crate) fn run_handed_out(&self, bytes: usize) {
        add(&self.run_allocations, 1);
        add(&self.run_bytes, bytes as u64);
    }

    pub(crate) fn run_totals(&self) -> Totals {
        Totals::of(&self.run_allocations, &self.run_bytes)
    }

    pub(crate) fn block_totals(&self) -> Totals {
        // `tick_within` changes this counter first, then the count of requests, without any ordering. So another thread may briefly count a
        // jump as requests, or subtract it too early.
        let jumped = self.jumped_allocations.load(Ordering::Relaxed);
        let Totals { allocations, bytes } = Totals::of(&self.block_allocations, &self.block_bytes);
        Totals { allocations: allocations.saturating_sub(jumped), bytes }
    }

    pub(crate) fn returned_bytes(&self) -> u64 {
        self.returned_bytes.load(Ordering::Relaxed)
    }

    /// Sets the counts to zero. The owner calls this after adding its counts elsewhere.
    pub(crate) fn forget_counts(&self) {
        let counts =
            [&self.run_allocations, &self.run_bytes, &self.block_allocations, &self.block_bytes, &self.returned_bytes];
        self.jumped_allocations.store(0, Ordering::Relaxed);
        counts.into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Takes out the newest cached run that has this length and for which `fits` returns `true`. Only the owner may call this.
    #[inline(always)]
    pub(crate) fn take_run_if(&self, bytes: usize, fits: impl Fn(Run) -> bool) -> Option<Run> {
        let next = self.next_run.load(Ordering::Relaxed) as usize;
        for back in 1..=places() {
            let at = (next + places() - back) % places();
            let Some(run) = Run::of(self.runs[at].load(Ordering::Relaxed)) else { continue };
            // Only the owner puts runs in. Another thread may have taken this one out.
            let is_taken = run.bytes() == bytes
                && fits(run)
                && self.runs[at].compare_exchange(run.word(), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if is_taken {
                self.next_run.store(at as u8, Ordering::Relaxed);
                return Some(run);
            }
        }
        None
    }

    /// Caches a run. Returns the run that it displaces. Only the owner may call this.
    #[inline(always)]
    pub(crate) fn put_run(&self, run: Run) -> Option<Run> {
        let at = self.next_run.load(Ordering::Relaxed) as usize % places();
        self.next_run.store((at + 1) as u8, Ordering::Relaxed);
        let place = &self.runs[at];
        if place.load(Ordering::Relaxed) == 0 {
            // The place stays zero until this thread puts a run in. Release pairs with the Acquire of `take_runs`: this thread's accesses
            // to the memory happen before those of the thread that takes the run.
            place.store(run.word(), Ordering::Release);
            return None;
        }
        Run::of(place.swap(run.word(), Ordering::Release))
    }

    pub(crate) fn cached_run_bytes(&self) -> usize {
        self.runs.iter().filter_map(|run| Run::of(run.load(Ordering::Relaxed))).map(Run::bytes).sum()
    }

    /// Takes out all runs. Any thread may call this, without a claim.
    pub(crate) fn take_runs(&self) -> impl Iterator<Item = Run> {
        self.runs.iter().filter_map(|run| match run.load(Ordering::Relaxed) {
            0 => None,
            _ => Run::of(run.swap(0, Ordering::Acquire)),
        })
    }
}

// How a thread finds its cache.

/// The state of a thread: its cache, and whether the thread may use it. The type has no `Drop`, so an access costs no check and no
/// registration.
pub(crate) struct Local {
    pub(crate) cache: Cell<Option<&'static Cache>>,
    /// Whether the thread must not acquire a cache: it is acquiring one (only a signal handler that interrupts it sees this), it has one,
    /// or it is exiting and has released its cache. Otherwise it has no cache yet, or all caches were taken.
    pub(crate) acquires_none: Cell<bool>,
    /// The number of requests since the thread last found all caches taken.
    pub(crate) waited: Cell<u16>,
    /// The requests that no cache counts, because the thread had no cache or could not enter it.
    pub(crate) past_cache: Cell<Totals>,
    pub(crate) sampler: sampler::Local,
}

#[cfg(not(thread_blocks))]
thread_local! {
    // SAFETY: all zeroes is a `Local` that has no cache yet, and samples nothing now.
    static LOCAL: Local = const { unsafe { MaybeUninit::zeroed().assume_init() } };
}

/// Returns the thread's [`Local`]. Avoids `LOCAL.with(f)`, which would not be inlined.
#[cfg(not(thread_blocks))]
#[inline(always)]
pub(crate) fn local() -> &'static Local {
    // SAFETY: this never fails: a thread local without a destructor lasts as long as its thread. The reference does not leave the thread.
    unsafe { &*LOCAL.try_with(std::ptr::from_ref).unwrap_unchecked() }
}

/// Returns the thread's [`Local`]. The compiler's thread locals would call `malloc`, which this library may implement.
#[cfg(thread_blocks)]
#[inline(always)]
pub(crate) fn local() -> &'static Local {
    const _: () = assert!(size_of::<Local>() <= os::THREAD_BLOCK_BYTES && align_of::<Local>() <= 16);
    // SAFETY: this thread's block has no other use, is long enough, and lasts as long as the thread. All zeroes is a `Local` that has no
    // cache yet, and samples nothing now. The reference does not leave this thread.
    unsafe { os::thread_block().cast::<Local>().as_ref() }
}

/// Whether this thread has a cache.
#[inline(always)]
pub(crate) fn is_joined() -> bool {
    local().cache.get().is_some()
}

/// Enters this thread's cache. Returns `None` if the thread has none, or can't use it now.
#[inline(always)]
pub(crate) fn enter() -> Option<Entered<'static>> {
    local().cache.get()?.enter()
}

/// Takes a block from this thread's cache.
#[inline(always)]
pub(crate) fn alloc(class: Class) -> Option<NonNull<u8>> {
    let cache = enter()?;
    if cache.is_to_tick() { None } else { take(&cache, class) }
}

/// Like [`alloc`], for a thread that has entered the cache.
#[inline(always)]
pub(crate) fn take(cache: &Cache, class: Class) -> Option<NonNull<u8>> {
    let block = cache.pop(class)?;
    cache.handed_out(class);
    Some(block_at(block as usize))
}

/// Returns a pointer to the block at an address. Caches and slabs store only addresses.
#[inline(always)]
pub(crate) fn block_at(address: usize) -> NonNull<u8> {
    // The address is within the region, whose provenance was exposed by `Region::find_at`.
    let at = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the address came from `SlabTable::take`, or was passed to `Cache::push`. It is that of a block, in a slab of the region.
    unsafe { NonNull::new_unchecked(at) }
}

/// Frees a block into this thread's cache. Returns `false`, and does nothing, if the cache is full or can't be used now.
///
/// # Safety
/// `at` is a block of this class from a slab. The block must not be used afterwards.
#[inline(always)]
pub(crate) unsafe fn put(class: Class, at: NonNull<u8>) -> bool {
    let Some(cache) = enter() else { return false };
    let is_cached = cache.push(class, at.addr().get() as u64);
    if is_cached {
        cache.taken_back(class);
    }
    is_cached
}

// The calling thread's runs and requests.

/// Takes a run of `run_bytes` for which `fits` returns `true` out of this thread's cache, to serve a request of `bytes`.
#[inline(always)]
pub(crate) fn take_run_if(run_bytes: usize, bytes: usize, fits: impl Fn(Run) -> bool) -> Option<Run> {
    let cache = enter()?;
    let run = cache.take_run_if(run_bytes, fits)?;
    cache.run_handed_out(bytes);
    Some(run)
}

/// Counts a run that this thread was handed for a request of `bytes`. Returns `false` if the thread can't use its cache now; then
/// [`Cache::run_totals`] does not count the request.
pub(crate) fn count_run(bytes: usize) -> bool {
    let is_cached = enter().map(|cache| cache.run_handed_out(bytes)).is_some();
    if !is_cached {
        count_past_cache(bytes);
    }
    is_cached
}

/// Counts a request of this thread that its cache does not count.
#[cold]
pub(crate) fn count_past_cache(bytes: usize) {
    let past_cache = &local().past_cache;
    past_cache.set(past_cache.get() + Totals { allocations: 1, bytes: bytes as u64 });
}

/// Returns the number of requests of this thread, and their bytes.
pub(crate) fn thread_totals() -> Totals {
    let local = local();
    let cached = local.cache.get().map(|cache| cache.block_totals() + cache.run_totals());
    local.past_cache.get() + cached.unwrap_or_default()
}

/// Caches a run for this thread. Returns the run that it displaces, or `run` itself if the thread can't use its cache.
#[inline(always)]
pub(crate) fn put_run(run: Run) -> Option<Run> {
    enter().map_or(Some(run), |cache| cache.put_run(run))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A block that is taken out but still cached would be handed out twice. A block that is neither would be lost.
    #[test]
    fn the_oldest_blocks_are_taken_out_and_the_newest_stay_in_order() {
        let blocks: Blocks = [const { AtomicU64::new(0) }; classes::PLACES];
        let class = Class::of(100, 8);
        for (count, keep) in [(8, 4), (9, 4), (7, 5), (6, 0), (3, 8), (0, 2)] {
            let cache = Cache::new();
            cache.blocks.store(std::ptr::from_ref(&blocks).cast_mut(), Ordering::Relaxed);
            (1..=count).for_each(|block| assert!(cache.push(class, block)));
            let mut gone: Vec<_> = cache.take_first(class, keep).collect();
            gone.sort_unstable();
            let split = (count as usize).saturating_sub(keep);
            assert_eq!(gone, (1..=split).collect::<Vec<_>>(), "{count} blocks, {keep} to keep");
            let left = std::iter::from_fn(|| cache.pop(class)).collect::<Vec<_>>();
            assert_eq!(left, (split as u64 + 1..=count).rev().collect::<Vec<_>>(), "{count} blocks, {keep} to keep");
        }
    }
}
