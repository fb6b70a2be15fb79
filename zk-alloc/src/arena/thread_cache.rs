//! What each thread keeps of what it freed, for its next requests: blocks of each size class, the last freed on top, and the
//! last page runs. Neither a bitmap nor a counter that threads share is touched then.
//!
//! A block or a run that is kept stays *used* in its slab or zone; the cache that holds its address owns it. The caches are
//! known to all threads. Only its own thread uses a cache's blocks, by plain loads and stores behind a *gate*: it says "busy",
//! and looks whether another thread has claimed the cache. A thread that wants what idle threads keep claims their caches, has
//! the kernel put a fence into every thread of the process ([`os::fence_other_threads`]), and then takes what it finds in
//! each cache whose thread is not busy: that thread sees the claim before it touches the cache again. So the fence costs the
//! threads that allocate nothing, and nobody waits for anybody.
#![allow(unsafe_code, reason = "a thread local without a destructor lasts as long as its thread")]

use std::cell::Cell;
use std::ffi::c_void;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use crate::classes::{self, Class};
use crate::os;
use crate::route;
use crate::sync::{AtomicU8, AtomicU64, Ordering, compiler_fence};

/// Threads beyond that many at once keep nothing.
#[cfg(not(loom))]
const THREADS: usize = 2048;
#[cfg(loom)]
const THREADS: usize = 0;

/// One block in this number takes the slow path even if the cache has it: a thread that lives on its cache would never see time pass.
/// The detour takes some 15 ns. At 256, a service that asks for fifty blocks a second looks too rarely.
const TICK_REQUESTS: u64 = 128;

/// A thread keeps a short run and a long one, so that neither puts out the other.
const RUNS: usize = 2;

/// Which of a thread's runs.
const fn run_place(run_bytes: usize) -> usize {
    route::is_long_run(run_bytes) as usize
}

/// A run of pages: the number of its first page, and in the lowest bits how many pages it has, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run(NonZeroU64);

const PAGE_SHIFT: u32 = 12;
/// Leaves 45 bits for the page, which are those of addresses of 57 bits.
const LENGTH_BITS: u32 = 19;

impl Run {
    /// `None` for what is no whole number of pages, or too long.
    pub(crate) const fn new(address: usize, bytes: usize) -> Option<Self> {
        const PAGE_BYTES: usize = 1 << PAGE_SHIFT;
        let (page, pages) = (address as u64 >> PAGE_SHIFT, bytes as u64 >> PAGE_SHIFT);
        let fits = address % PAGE_BYTES == 0 && bytes % PAGE_BYTES == 0;
        if fits && pages < 1 << LENGTH_BITS { Self::of(page << LENGTH_BITS | pages) } else { None }
    }

    const fn of(word: u64) -> Option<Self> {
        match NonZeroU64::new(word) {
            Some(word) => Some(Self(word)),
            None => None,
        }
    }

    pub(crate) const fn address(self) -> usize {
        (self.0.get() >> LENGTH_BITS << PAGE_SHIFT) as usize
    }

    pub(crate) const fn bytes(self) -> usize {
        ((self.0.get() & ((1 << LENGTH_BITS) - 1)) << PAGE_SHIFT) as usize
    }
}

/// Where the addresses of a thread's blocks lie, class by class.
type Blocks = [AtomicU64; classes::PLACES];

/// What one thread keeps. All zeroes is a cache that never had a thread.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Cache {
    /// 1 while it belongs to a thread.
    owned: AtomicU8,
    /// 1 while its thread is at it. Written by its thread only.
    busy: AtomicU8,
    /// Not 0 while another thread claims it.
    claimed: AtomicU64,
    /// Blocks kept, by class.
    counts: [AtomicU8; classes::TABLE],
    /// Blocks that the next refill asks for, by class, less one. Grows with each, so that a thread that needs one block does not
    /// hold sixteen.
    appetites: [AtomicU8; classes::TABLE],
    blocks: AtomicPtr<Blocks>,
    /// Zero is none.
    runs: [AtomicU64; RUNS],
    /// Requests served from here, and their bytes, since the process started. Written by the cache's thread only.
    run_allocations: AtomicU64,
    run_bytes: AtomicU64,
    block_allocations: AtomicU64,
    block_bytes: AtomicU64,
    /// Bytes of blocks handed out less those taken back, which other threads may have handed out: only the sum over all threads
    /// means something.
    live_block_bytes: AtomicU64,
}

/// The cache's own thread is in there until this is dropped.
#[derive(Debug)]
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
        // Pairs with the Acquire of `is_busy`: a claimant sees all that was kept.
        self.0.busy.store(0, Ordering::Release);
    }
}

/// How many, and of how many bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
}

/// Only one thread writes, so that a load and a store make an exact sum.
#[inline(always)]
fn add(sum: &AtomicU64, more: u64) {
    sum.store(sum.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Cache {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Self {
            owned: AtomicU8::new(0),
            busy: AtomicU8::new(0),
            claimed: AtomicU64::new(0),
            counts: [const { AtomicU8::new(0) }; classes::TABLE],
            appetites: [const { AtomicU8::new(0) }; classes::TABLE],
            blocks: AtomicPtr::new(std::ptr::null_mut()),
            runs: [const { AtomicU64::new(0) }; RUNS],
            run_allocations: AtomicU64::new(0),
            run_bytes: AtomicU64::new(0),
            block_allocations: AtomicU64::new(0),
            block_bytes: AtomicU64::new(0),
            live_block_bytes: AtomicU64::new(0),
        }
    }

    /// A cache of a model, which has no thread yet, but room for blocks.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        let blocks: Box<Blocks> = Box::new(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            owned: AtomicU8::new(0),
            busy: AtomicU8::new(0),
            claimed: AtomicU64::new(0),
            counts: std::array::from_fn(|_| AtomicU8::new(0)),
            appetites: std::array::from_fn(|_| AtomicU8::new(0)),
            blocks: AtomicPtr::new(Box::into_raw(blocks)),
            runs: std::array::from_fn(|_| AtomicU64::new(0)),
            run_allocations: AtomicU64::new(0),
            run_bytes: AtomicU64::new(0),
            block_allocations: AtomicU64::new(0),
            block_bytes: AtomicU64::new(0),
            live_block_bytes: AtomicU64::new(0),
        }
    }

    /// Makes it the calling thread's; `false` if it is another's.
    pub(crate) fn own(&self) -> bool {
        // Acquire pairs with the Release of `disown`: what its last thread left in there is there.
        self.owned.load(Ordering::Relaxed) == 0
            && self.owned.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn disown(&self) {
        self.owned.store(0, Ordering::Release);
    }

    /// Leaves the cache to the next thread: hands it to `empty` to take out all that it can, and has the calling thread `forget`
    /// it. What another thread has claimed at this moment, or a signal left behind, stays for the next.
    pub(crate) fn hand_on(&self, empty: impl FnOnce(&Self), forget: impl FnOnce()) {
        if let Some(entered) = self.enter() {
            empty(&entered);
        }
        forget();
        self.disown();
    }

    /// Lets the cache's own thread in; not where a signal interrupted that thread in here, nor while another thread has claimed
    /// the cache.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        if self.busy.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.busy.store(1, Ordering::Relaxed);
        // The other half of this fence is `os::fence_other_threads`.
        compiler_fence(Ordering::SeqCst);
        let entered = Entered(self);
        // Acquire pairs with the Release of `unclaim`: what a claimant took is gone.
        if self.claimed.load(Ordering::Acquire) == 0 { Some(entered) } else { None }
    }

    /// Keeps others out, and the cache's own thread from its next entry on. `false` if another thread did so first.
    pub(super) fn claim(&self, by: u64) -> bool {
        self.claimed.compare_exchange(0, by, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn unclaim(&self) {
        self.claimed.store(0, Ordering::Release);
    }

    /// Whether the cache's thread may still be in there, not having seen the claim. Ask after the fence.
    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) != 0
    }

    #[inline(always)]
    fn place(&self, class: Class, index: usize) -> &AtomicU64 {
        // SAFETY: set before the cache got its first thread, to a table that lasts for ever; what enters or claims a cache
        // knows that it has a thread.
        let blocks = unsafe { &*self.blocks.load(Ordering::Relaxed) };
        // The remainder saves a check, and changes nothing.
        &blocks[(class.first_place() + index) % classes::PLACES]
    }

    #[inline(always)]
    fn count(&self, class: Class) -> &AtomicU8 {
        &self.counts[class.index()]
    }

    /// Whether the next block takes the slow path, where the thread looks at the time, even if the cache has it.
    #[inline(always)]
    pub(crate) fn is_to_tick(&self) -> bool {
        self.block_allocations.load(Ordering::Relaxed) % TICK_REQUESTS == TICK_REQUESTS - 1
    }

    /// Takes out the block that came last. For whoever is in the cache, as with all that follows.
    #[inline(always)]
    pub(crate) fn pop(&self, class: Class) -> Option<u64> {
        let left = self.count(class).load(Ordering::Relaxed).checked_sub(1)?;
        let block = self.place(class, left as usize).load(Ordering::Relaxed);
        self.count(class).store(left, Ordering::Relaxed);
        Some(block)
    }

    /// Keeps a block; `false` where there is no room.
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

    pub(crate) fn keeps(&self, class: Class) -> bool {
        self.count(class).load(Ordering::Relaxed) > 0
    }

    /// Takes out the blocks that came first, all but `keep`. Their addresses stay in the table, behind the kept ones, while the caller
    /// iterates.
    pub(crate) fn take_first(&self, class: Class, keep: usize) -> impl Iterator<Item = usize> {
        let count = self.count(class).load(Ordering::Relaxed) as usize;
        let kept = keep.min(count);
        let gone = count - kept;
        for index in 0..if gone == 0 { 0 } else { kept } {
            let (first, last) = (self.place(class, index), self.place(class, index + gone));
            let block = first.load(Ordering::Relaxed);
            first.store(last.load(Ordering::Relaxed), Ordering::Relaxed);
            last.store(block, Ordering::Relaxed);
        }
        // Before the caller frees them: a thread that dies halfway, as a vforked child may, must not leave freed blocks here.
        self.count(class).store(kept as u8, Ordering::Relaxed);
        (kept..count).map(move |index| self.place(class, index).load(Ordering::Relaxed) as usize)
    }

    /// How many blocks to fetch now that there is none: twice as many as the last time, up to `most`.
    pub(crate) fn appetite(&self, class: Class, most: usize) -> usize {
        let appetite = &self.appetites[class.index()];
        let now = appetite.load(Ordering::Relaxed) as usize + 1;
        appetite.store((2 * now).min(most).max(1) as u8 - 1, Ordering::Relaxed);
        now.min(most)
    }

    #[inline(always)]
    pub(crate) fn handed_out(&self, class: Class, bytes: usize) {
        add(&self.block_allocations, 1);
        add(&self.block_bytes, bytes as u64);
        add(&self.live_block_bytes, class.block_bytes() as u64);
    }

    #[inline(always)]
    pub(crate) fn taken_back(&self, class: Class) {
        add(&self.live_block_bytes, (class.block_bytes() as u64).wrapping_neg());
    }

    /// Takes out a run of so many bytes, if it is `fits`. For the cache's thread.
    #[inline(always)]
    pub(crate) fn take_run_if(&self, bytes: usize, fits: impl FnOnce(Run) -> bool) -> Option<Run> {
        let kept = &self.runs[run_place(bytes)];
        let run = Run::of(kept.load(Ordering::Relaxed))?;
        // What this thread put in, it may use; nobody else puts anything in. Another may have taken it out meanwhile.
        let taken = run.bytes() == bytes
            && fits(run)
            && kept.compare_exchange(run.0.get(), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        taken.then_some(run)
    }

    /// Puts a run in, for the cache's thread, and returns the one that was there.
    #[inline(always)]
    pub(crate) fn put_run(&self, run: Run) -> Option<Run> {
        let kept = &self.runs[run_place(run.bytes())];
        if kept.load(Ordering::Relaxed) == 0 {
            // Stays zero until this thread puts something in. Release pairs with the Acquire of `take_runs`: what this thread
            // did to the memory is over.
            kept.store(run.0.get(), Ordering::Release);
            return None;
        }
        Run::of(kept.swap(run.0.get(), Ordering::Release))
    }

    /// Takes out what runs there are, for any thread, claimed or not.
    pub(crate) fn take_runs(&self) -> impl Iterator<Item = Run> {
        let take = |kept: &AtomicU64| match kept.load(Ordering::Relaxed) {
            0 => None,
            _ => Run::of(kept.swap(0, Ordering::Acquire)),
        };
        self.runs.iter().filter_map(take)
    }
}

#[cfg(not(loom))]
static CACHES: [Cache; THREADS] = [const { Cache::new() }; THREADS];
#[cfg(loom)]
static CACHES: [Cache; THREADS] = [];
/// No cache at or above this index ever had a thread.
static FRONTIER: AtomicUsize = AtomicUsize::new(0);
/// The key whose destructor runs when a thread exits, and one; 0 without.
static EXIT_KEY: AtomicU32 = AtomicU32::new(0);

fn caches() -> &'static [Cache] {
    &CACHES[..FRONTIER.load(Ordering::Acquire)]
}

/// Called on each exiting thread that has a cache, with the address of the cache.
pub(crate) type AtExit = unsafe extern "C" fn(*mut c_void);

/// The key that has `run` called when a thread exits. The first call makes it; `None` where the system has no key left.
///
/// That call should come before the program's: glibc has 32 keys for which it never allocates.
pub(crate) fn exit_key(run: AtExit) -> Option<u32> {
    let known = EXIT_KEY.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known - 1);
    }
    let key = os::thread_exit_key(run)?;
    match EXIT_KEY.compare_exchange(0, key + 1, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Some(key),
        Err(other) => {
            os::give_back_key(key);
            Some(other - 1)
        }
    }
}

/// Room for the blocks of all caches, which each gets with its first thread.
#[derive(Debug)]
pub(crate) struct Room {
    at_exit: AtExit,
}

/// Bytes of one cache's room, in whole pages of any kernel.
const ROOM_BYTES: usize = (classes::PLACES * size_of::<u64>()).next_multiple_of(64 << 10);

impl Room {
    pub(crate) fn new(at_exit: AtExit) -> Self {
        Self { at_exit }
    }

    /// Gives a cache of the caller's room for its blocks; `false` where the system has none.
    fn furnish(cache: &Cache) -> bool {
        if !cache.blocks.load(Ordering::Relaxed).is_null() {
            return true;
        }
        let Ok(mapping) = os::map_zeroed(ROOM_BYTES) else { return false };
        cache.blocks.store(mapping.start().as_ptr().cast(), Ordering::Relaxed);
        // As the cache, for ever.
        std::mem::forget(mapping);
        true
    }
}

impl Room {
    /// Gives back the memory in which an empty cache kept its blocks. For whoever is in it.
    pub(crate) fn clear(&self, cache: &Cache) {
        let blocks = cache.blocks.load(Ordering::Relaxed);
        if !blocks.is_null() {
            // SAFETY: the part of this cache, in which nobody keeps anything: all of its counts are zero.
            let _ = unsafe { os::discard(blocks.cast(), ROOM_BYTES) };
        }
    }
}

/// How this thread stands with its cache. No `Drop`, so that reaching it costs no check and no registration.
struct Local {
    cache: Cell<Option<&'static Cache>>,
    standing: Cell<Standing>,
    /// Requests since there was no cache to be had.
    waited: Cell<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Standing {
    /// It has none yet, or all were taken. Zero, as all of a [`Local`] is when its thread begins.
    Without = 0,
    /// It is about to have one, and a signal handler interrupted that.
    Joining,
    Joined,
    /// It is exiting, and its cache has been handed on.
    Left,
}

/// Requests after which a thread asks again for a cache where all were taken.
const PATIENCE: u16 = 256;

#[cfg(not(thread_blocks))]
thread_local! {
    static LOCAL: Local = const {
        Local { cache: Cell::new(None), standing: Cell::new(Standing::Without), waited: Cell::new(0) }
    };
}

/// `LOCAL.with(f)` would be a call of its own.
#[cfg(not(thread_blocks))]
#[inline(always)]
fn local() -> Option<&'static Local> {
    // Always there: a thread local without a destructor lasts as long as its thread.
    let local = LOCAL.try_with(std::ptr::from_ref).ok()?;
    // SAFETY: as above, and this is its thread; the reference is not given away.
    Some(unsafe { &*local })
}

/// In a library that is the process's `malloc`, the compiler's own way would call `malloc`.
#[cfg(thread_blocks)]
#[inline(always)]
fn local() -> Option<&'static Local> {
    const _: () = assert!(size_of::<Local>() <= os::THREAD_BLOCK_BYTES && align_of::<Local>() <= 16);
    // SAFETY: this thread's block, which serves nothing else; it is long enough, lasts as long as the thread, and all zeroes is a
    // `Local` that has no cache yet. The reference is not given away.
    Some(unsafe { os::thread_block().cast::<Local>().as_ref() })
}

/// Whether this thread has a cache.
#[inline(always)]
pub(crate) fn is_joined() -> bool {
    local().is_some_and(|local| local.cache.get().is_some())
}

/// Enters this thread's cache; `None` where it has none, or may not use it now.
#[inline(always)]
pub(crate) fn enter() -> Option<Entered<'static>> {
    local()?.cache.get()?.enter()
}

/// As [`enter`], after finding a cache for a thread that has none yet.
#[cold]
pub(crate) fn join_and_enter(room: &Room) -> Option<Entered<'static>> {
    let local = local()?;
    if local.standing.get() == Standing::Without {
        let waited = local.waited.get();
        local.waited.set((waited + 1) % PATIENCE);
        if waited == 0 {
            local.standing.set(Standing::Joining);
            let found = find(room);
            local.cache.set(found);
            local.standing.set(if found.is_some() { Standing::Joined } else { Standing::Without });
        }
    }
    let cache = local.cache.get()?;
    if cache.claimed.load(Ordering::Relaxed) != 0 {
        disown_claim_of_parent(cache);
    }
    cache.enter()
}

/// A claim of a thread that did not come along into this process, which was forked off while it was made. A vforked child, which
/// is of its parent's generation, finds claims of threads that live.
fn disown_claim_of_parent(cache: &Cache) {
    let by = cache.claimed.load(Ordering::Relaxed);
    if by != 0 && by != os::process_generation() {
        let _ = cache.claimed.compare_exchange(by, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// A cache without a thread, for this one.
fn find(room: &Room) -> Option<&'static Cache> {
    // Without its destructor a cache would never be handed on.
    let key = exit_key(room.at_exit)?;
    let index = CACHES.iter().position(Cache::own)?;
    let cache = &CACHES[index];
    if Room::furnish(cache) && os::arm_thread_exit(key, NonNull::from(cache).cast()) {
        FRONTIER.fetch_max(index + 1, Ordering::AcqRel);
        return Some(cache);
    }
    cache.disown();
    None
}

/// An exiting thread [hands its cache on](Cache::hand_on).
///
/// # Safety
/// `cache` is what the key's destructor was called with.
pub(crate) unsafe fn leave(cache: *mut c_void, empty: impl FnOnce(&Cache)) {
    // SAFETY: the caller's: it is the address of a cache, which is static.
    let cache = unsafe { &*cache.cast::<Cache>() };
    if let Some(local) = local() {
        cache.hand_on(empty, || {
            local.cache.set(None);
            local.standing.set(Standing::Left);
        });
    }
}

/// Who claims caches: the [generation](os::process_generation) of a process, while one of its threads does so; 0 is none.
#[derive(Debug)]
pub(crate) struct Claiming(AtomicU64);

impl Claiming {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Claims those of `caches` that keep blocks, has `fence` reach all other threads (`false` if it can't), and hands `empty`
    /// each cache whose thread is not at it; among them `own`, the calling thread's. Does nothing while another thread of the
    /// generation `by` does the same.
    pub(crate) fn claim_all<'a>(
        &self,
        caches: &'a [Cache],
        by: u64,
        own: Option<&Cache>,
        fence: impl FnOnce() -> bool,
        mut empty: impl FnMut(&'a Cache),
    ) {
        let is_own = |cache: &Cache| own.is_some_and(|own| std::ptr::eq(own, cache));
        let claimed_by_us = |cache: &&Cache| cache.claimed.load(Ordering::Relaxed) == by;
        let keeps_blocks = |cache: &Cache| cache.counts.iter().any(|count| count.load(Ordering::Relaxed) > 0);
        // One at a time: two threads that claim at once could not tell their claims apart.
        let before = self.0.load(Ordering::Relaxed);
        if before == by || self.0.compare_exchange(before, by, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        let mut others = 0;
        for cache in caches.iter().filter(|cache| keeps_blocks(cache)) {
            others += usize::from(cache.claim(by) && !is_own(cache));
        }
        // Without the fence only this thread's own cache is known not to be in use.
        let fenced = others == 0 || fence();
        for cache in caches.iter().filter(claimed_by_us) {
            if (fenced || is_own(cache)) && !cache.is_busy() {
                empty(cache);
            }
            cache.unclaim();
        }
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(not(loom))]
static CLAIMING: Claiming = Claiming::new();
#[cfg(loom)]
loom::lazy_static! {
    static ref CLAIMING: Claiming = Claiming::new();
}

/// Takes the blocks out of every cache whose thread is not at it now, and hands each cache to `empty`.
pub(crate) fn claim_all(empty: impl FnMut(&'static Cache)) {
    let own = local().and_then(|local| local.cache.get());
    CLAIMING.claim_all(caches(), os::process_generation(), own, os::fence_other_threads, empty);
}

/// Takes out a run of `run_bytes` that this thread keeps, if it is `fits`, to serve a request of `bytes`.
#[inline(always)]
pub(crate) fn take_run_if(run_bytes: usize, bytes: usize, fits: impl FnOnce(Run) -> bool) -> Option<Run> {
    let cache = enter()?;
    let run = cache.take_run_if(run_bytes, fits)?;
    add(&cache.run_allocations, 1);
    add(&cache.run_bytes, bytes as u64);
    Some(run)
}

/// Keeps a run for this thread, and returns the one that is not kept instead, if there is one.
#[inline(always)]
pub(crate) fn put_run(run: Run) -> Option<Run> {
    match enter() {
        Some(cache) => cache.put_run(run),
        None => Some(run),
    }
}

/// Takes out the runs that any thread keeps.
pub(crate) fn take_all_runs() -> impl Iterator<Item = Run> {
    caches().iter().flat_map(Cache::take_runs)
}

/// Bytes of all runs that are kept.
pub(crate) fn kept_run_bytes() -> usize {
    let kept = caches().iter().flat_map(|cache| &cache.runs);
    kept.filter_map(|run| Run::of(run.load(Ordering::Relaxed))).map(Run::bytes).sum()
}

/// Runs served from what was kept since the process started.
pub(crate) fn run_totals() -> Totals {
    totals(|cache| (&cache.run_allocations, &cache.run_bytes))
}

/// Blocks that threads took for themselves since the process started.
pub(crate) fn block_totals() -> Totals {
    totals(|cache| (&cache.block_allocations, &cache.block_bytes))
}

fn totals(of: impl Fn(&Cache) -> (&AtomicU64, &AtomicU64)) -> Totals {
    caches().iter().map(of).fold(Totals::default(), |sum, (allocations, bytes)| Totals {
        allocations: sum.allocations + allocations.load(Ordering::Relaxed),
        bytes: sum.bytes + bytes.load(Ordering::Relaxed),
    })
}

/// Bytes of blocks that threads handed out less those that they took back; wraps where more were taken back.
pub(crate) fn live_block_bytes() -> u64 {
    caches().iter().fold(0, |sum, cache| sum.wrapping_add(cache.live_block_bytes.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    #[cfg(not(loom))]
    use super::*;

    /// A block that was freed and is still kept would be handed out twice; one that is neither would be lost.
    #[cfg(not(loom))]
    #[test]
    fn the_first_blocks_go_and_the_last_stay_in_their_order() {
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
            let kept = std::iter::from_fn(|| cache.pop(class)).collect::<Vec<_>>();
            assert_eq!(kept, (split as u64 + 1..=count).rev().collect::<Vec<_>>(), "{count} blocks, {keep} to keep");
        }
    }
}
