//! The arena: one region per process, made when it is first needed, shared by every [`ZkAllocator`](crate::ZkAllocator).
//!
//! Imports point downwards: this module composes `middle` (blocks of size classes, from threads' caches and slabs) and the runs
//! of the `region`'s zones, which know what is resident, which know `os`. Slabs and page runs never name each other.
#![allow(unsafe_code, reason = "publishes the one arena, and hands out its memory")]

mod align;
mod bitmap;
mod budget;
#[cfg(test)]
mod checks;
mod collapse;
mod decay;
mod hints;
mod holes;
mod huge;
mod layout;
#[cfg(feature = "c-api")]
mod lengths;
mod mapped;
mod middle;
mod region;
mod residency;
mod runs;
mod slab;
mod table;
mod thread_cache;
mod window;
mod zone;

use std::cell::UnsafeCell;
use std::ffi::c_void;
#[cfg(unix)]
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, copy_nonoverlapping};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::classes::{self, Class};
use crate::config::{self, Config, HugePagesOutcome, Settings};
use crate::counters::{self, ZoneCounters};
use crate::escape;
use crate::open_phases;
use crate::os::{self, Errno, HUGE_PAGE_BYTES};
use crate::route::{self, Path, RunKind};

#[cfg(test)]
pub(crate) use budget::kept_limit;
pub(crate) use budget::{resident_bytes, set_kept};
pub(crate) use collapse::{Blocks, Pass, collapsed_bytes};
pub(crate) use decay::{Policy, bell, set_watched, tick};
pub(crate) use layout::{HugeAdvice, SMALL_APART_BYTES, granule_bytes};
pub(crate) use middle::fetch_most;
pub(crate) use residency::GiveBack;
pub(crate) use zone::{Contents, Populate};

use budget::Limit;
use decay::{Looks, Sight, Verdict};
use middle::Middle;
use runs::Tenant;
use thread_cache::Totals;
use window::Looker;
use zone::Shortage;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Arena {
    region: region::Region,
    middle: Middle,
    config: Config,
    #[cfg(feature = "c-api")]
    lengths: lengths::Lengths,
}

struct Global {
    state: AtomicU8,
    arena: UnsafeCell<MaybeUninit<Arena>>,
    /// The region's first address and length, so that a free of foreign memory reads two numbers and no more.
    base: AtomicUsize,
    len: AtomicUsize,
}

// SAFETY: `arena` is written once, by the thread that moved `state` from `NONE` to `OPENING`, and read only by threads
// that saw `OPEN`, which that thread stores afterwards, or `SERVING`, which replaces it.
unsafe impl Sync for Global {}

const NONE: u8 = 0;
const OPENING: u8 = 1;
const FAILED: u8 = 2;
/// The arena is there.
const OPEN: u8 = 3;
/// An allocator asked it for memory.
const SERVING: u8 = 4;

/// How often the first request is postponed before it comes in whatever moment.
const MOST_POSTPONED: u8 = 100;

static GLOBAL: Global = Global {
    state: AtomicU8::new(NONE),
    arena: UnsafeCell::new(MaybeUninit::uninit()),
    base: AtomicUsize::new(0),
    len: AtomicUsize::new(0),
};

impl Global {
    /// The arena, which nobody writes again.
    ///
    /// # Safety
    /// It was written before, and the caller has seen a store with Release that came after that.
    #[inline(always)]
    unsafe fn opened(&'static self) -> &'static Arena {
        // SAFETY: the caller's.
        unsafe { (*self.arena.get()).assume_init_ref() }
    }
}

/// The arena, if it was opened.
#[inline]
pub(crate) fn get() -> Option<&'static Arena> {
    // SAFETY: `OPEN` was stored with Release after the arena had been written. `SERVING` was stored by a thread that saw
    // `OPEN`, with Release too.
    (GLOBAL.state.load(Ordering::Acquire) >= OPEN).then(|| unsafe { GLOBAL.opened() })
}

/// The arena, opened by this call if it is the first since an allocator was [introduced](config::introduce). Nobody waits: while
/// one thread opens it, for the others (and for what that thread itself allocates meanwhile) there is none yet, and the backing
/// allocator serves them.
#[inline]
pub(crate) fn open() -> Option<&'static Arena> {
    get().or_else(open_now)
}

/// In what moment the first request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// In no signal handler.
    Calm,
    /// Perhaps in a signal handler, which may have interrupted anything, the backing allocator among it.
    Disturbed,
}

/// As [`open`], for an allocator, which brings its settings along; `first` runs before the first of all requests, once in the
/// life of the process.
#[inline]
pub(crate) fn open_to_serve(settings: &Settings, first: impl FnOnce(Moment)) -> Option<&'static Arena> {
    if GLOBAL.state.load(Ordering::Acquire) == SERVING {
        // SAFETY: as in `get`.
        Some(unsafe { GLOBAL.opened() })
    } else {
        serve_first(settings, first)
    }
}

#[cold]
fn serve_first(settings: &Settings, first: impl FnOnce(Moment)) -> Option<&'static Arena> {
    config::introduce(settings);
    let arena = open()?;
    // In a handler, some later request is the first. A thread that goes on with signals blocked would ask for ever.
    static POSTPONED: AtomicU8 = AtomicU8::new(0);
    let moment = if os::may_be_in_signal_handler() { Moment::Disturbed } else { Moment::Calm };
    if moment == Moment::Disturbed && POSTPONED.load(Ordering::Relaxed) < MOST_POSTPONED {
        POSTPONED.fetch_add(1, Ordering::Relaxed);
        return Some(arena);
    }
    if GLOBAL.state.compare_exchange(OPEN, SERVING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        first(moment);
    }
    Some(arena)
}

#[cold]
fn open_now() -> Option<&'static Arena> {
    // Before an allocator brought the program's settings, there is nobody to serve.
    let program = config::program()?;
    GLOBAL.state.compare_exchange(NONE, OPENING, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    let place = GLOBAL.arena.get().cast::<Arena>();
    // SAFETY: this thread alone moved the state to `OPENING`, and until `OPEN` nobody else reads or writes.
    match unsafe { Arena::build(place, program) } {
        Ok(()) => {
            // SAFETY: built one line above.
            let region = unsafe { &(*place).region };
            GLOBAL.base.store(region.base().addr().get(), Ordering::Relaxed);
            GLOBAL.len.store(region.len(), Ordering::Release);
            GLOBAL.state.store(OPEN, Ordering::Release);
            get()
        }
        Err(Errno(code)) => {
            GLOBAL.state.store(FAILED, Ordering::Relaxed);
            os::warn(format_args!(
                "the system refused to reserve address space for the arena (errno {code}); \
                 the backing allocator serves everything"
            ));
            None
        }
    }
}

/// The arena, and an address of its memory, if that is where `at` lies.
#[inline]
pub(crate) fn of(at: *mut u8) -> Option<(&'static Arena, NonNull<u8>)> {
    near(at).filter(|&(arena, at)| arena.region.zone(arena.region.zone_of(at)).owns(at))
}

/// The arena, and an address of the region, if that is where `at` lies: of a block, or what [`of`] knows more of.
#[inline(always)]
pub(crate) fn near(at: *mut u8) -> Option<(&'static Arena, NonNull<u8>)> {
    // Acquire: who sees a length sees the base and the arena, which were written before it.
    let len = GLOBAL.len.load(Ordering::Acquire);
    let within = at.addr().wrapping_sub(GLOBAL.base.load(Ordering::Relaxed)) < len;
    // SAFETY: the length is 0 until the arena has been written.
    let arena = within.then(|| unsafe { GLOBAL.opened() });
    // No `zip`: it would be a call.
    match (arena, NonNull::new(at)) {
        (Some(arena), Some(at)) => Some((arena, at)),
        _ => None,
    }
}

/// A block that this thread keeps, for a request as most are.
#[inline(always)]
pub(crate) fn alloc_kept(size: usize, align: usize) -> Option<NonNull<u8>> {
    middle::alloc_kept(Class::of_usual(size, align)?, size)
}

/// A request over a limit purges this much more than it needs, in bytes, so that the next requests find room.
const ROOM_BYTES: usize = 1 << 20;
/// Threads' caches are worth emptying if they hold this part of what is in use.
const CACHED_PART: usize = 16;

/// An exiting thread brings back what its cache keeps.
///
/// # Safety
/// `cache` is what the thread's cache registered.
unsafe extern "C" fn thread_exits(cache: *mut c_void) {
    if let Some(arena) = get() {
        // SAFETY: the caller's.
        unsafe { thread_cache::leave(cache, |cache| arena.middle.empty(arena.slab_zone(), cache)) };
    }
}

// Before the program, which may make keys of its own.
// SAFETY: the loader calls what is listed here as functions of C's, before `main`. It may pass arguments, which such a
// function does not look at.
#[cfg(unix)]
#[used]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array.00103"))]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
static BEFORE_MAIN: extern "C" fn() = make_exit_key;

#[cfg(unix)]
extern "C" fn make_exit_key() {
    thread_cache::exit_key(thread_exits);
}

impl Arena {
    /// Builds the arena in its place, part by part: the stack may be a small one, of a thread or a signal handler. On failure, `place`
    /// holds nothing.
    ///
    /// # Errors
    /// The system's, when it grants no address space, or no memory for the tables.
    ///
    /// # Safety
    /// `place` is valid for writes, and only the caller reaches it.
    unsafe fn build(place: *mut Self, program: &Settings) -> Result<(), Errno> {
        // A linker keeps what the code refers to.
        #[cfg(unix)]
        black_box(&BEFORE_MAIN);
        os::refer_to_pin();
        // SAFETY: the caller's.
        let config = unsafe {
            (&raw mut (*place).config).write(config::load(program));
            &(*place).config
        };
        budget::set_max(config.settings.max_bytes.value);
        classes::set_page_bytes(os::page_bytes());
        if config.settings.trace_escaped.value {
            escape::trace_escaped(true);
        }
        // SAFETY: the caller's.
        let region = unsafe { &raw mut (*place).region };
        // SAFETY: the caller's.
        unsafe { region::Region::find_at(region, config.span_bytes, &layout::zone_specs(config)) }?;
        // SAFETY: the caller's, and the region was built above.
        let built = unsafe { Self::build_tables(place) };
        if built.is_err() {
            // SAFETY: built above, and only this thread knows it.
            unsafe { region.drop_in_place() };
        }
        built
    }

    /// Builds the parts next to the region.
    ///
    /// # Safety
    /// As for [`build`](Self::build); the region is there.
    unsafe fn build_tables(place: *mut Self) -> Result<(), Errno> {
        // SAFETY: the caller's.
        let region = unsafe { &(*place).region };
        #[cfg(feature = "c-api")]
        let lengths = lengths::Lengths::new(region.zones())?;
        let middle = Middle::new(region.zone(route::SLABS), thread_exits)?;
        // SAFETY: the caller's.
        unsafe {
            (&raw mut (*place).middle).write(middle);
            #[cfg(feature = "c-api")]
            (&raw mut (*place).lengths).write(lengths);
        }
        Ok(())
    }

    fn slab_zone(&self) -> &zone::Zone {
        self.region.zone(route::SLABS)
    }

    /// Memory for a request; `None` where there is none, or it would be beyond the cap.
    #[inline(always)]
    pub(crate) fn alloc(&self, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        match self.try_alloc(size, align, contents, Limit::Peak) {
            Ok(at) => Some(at),
            Err(Shortage::Full) => None,
            Err(Shortage::OverBudget) => self.alloc_within_budget(size, align, contents),
        }
    }

    /// As [`alloc`](Self::alloc), where free memory that is resident elsewhere makes room.
    #[cold]
    fn alloc_within_budget(&self, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        if self.empty_large_caches() {
            if let Ok(at) = self.try_alloc(size, align, contents, Limit::Peak) {
                return Some(at);
            }
        }
        match self.try_alloc(size, align, contents, Limit::Cap) {
            Ok(at) => {
                // Afterwards, so that the pages which this memory already has are not among those that go. Those that it has not
                // are only booked so far.
                self.purge_to_peak_limit();
                Some(at)
            }
            Err(Shortage::Full) => None,
            Err(Shortage::OverBudget) => {
                let keep_bytes = budget::max_bytes().saturating_sub(size.checked_add(ROOM_BYTES)?);
                if !budget::may_make_room(size, kept_bytes()) {
                    return None;
                }
                // What threads keep may be all that keeps slabs, which lie where a run would find room.
                self.middle.empty_caches(self.slab_zone());
                self.trim_now(keep_bytes, || ());
                let found = self.try_alloc(size, align, contents, Limit::Cap).ok();
                if found.is_none() {
                    budget::nothing_left_to_purge();
                }
                found
            }
        }
    }

    /// A long run among the giants, or a giant among the long runs, in free resident memory.
    fn alloc_in_other_zone(&self, runs: RunKind, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        let other = match runs {
            RunKind::Giant => RunKind::Mid,
            RunKind::Mid if size >= route::CROSSES_MIN_BYTES => RunKind::Giant,
            RunKind::Mid | RunKind::Aligned => return None,
        };
        self.region.zone(other).claim_for_other_zone(size, align, contents)
    }

    /// Purges free memory, until what is resident is a little below what [`Limit::Peak`] allows.
    fn purge_to_peak_limit(&self) {
        let limit = budget::peak_limit(0).saturating_sub(ROOM_BYTES);
        self.trim_now(limit, || ());
        if resident_bytes() > limit {
            budget::nothing_left_to_purge();
        }
    }

    /// Empties threads' caches if they hold much of what is in use: then slabs go back to their zone, and serve others. Each cache
    /// costs its thread a refill, so as much must be handed out before they are emptied again. Returns whether they were.
    fn empty_large_caches(&self) -> bool {
        /// How much had been handed out in all when they were last emptied, in bytes.
        static LAST_BYTES: AtomicU64 = AtomicU64::new(0);
        let much = counters::used_bytes() / CACHED_PART;
        let (last, now) = (LAST_BYTES.load(Ordering::Relaxed), self.served_bytes());
        let is_due = now >= last.saturating_add(much as u64)
            && self.middle.kept_bytes() >= much
            && LAST_BYTES.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            self.middle.empty_caches(self.slab_zone());
        }
        is_due
    }

    #[inline(always)]
    fn try_alloc(&self, size: usize, align: usize, contents: Contents, limit: Limit) -> Result<NonNull<u8>, Shortage> {
        match route::path(size, align) {
            Path::Block(class) => {
                let at = self.middle.alloc(self.slab_zone(), class, size, limit)?;
                if contents == Contents::Zeroed {
                    // SAFETY: `size` bytes that were just handed to us.
                    unsafe { at.write_bytes(0, size) };
                }
                Ok(at)
            }
            Path::Run(runs) => {
                // Blocks look for a cache by themselves.
                if !thread_cache::is_joined() {
                    self.middle.join();
                }
                let elsewhere = || self.alloc_in_other_zone(runs, size, align, contents);
                self.region.zone(runs).claim(size, align, contents, limit, elsewhere)
            }
        }
    }

    /// Takes memory back for this thread to keep, if it is a block as most are; `false`, and nothing done, otherwise.
    ///
    /// # Safety
    /// As for [`dealloc`](Self::dealloc).
    #[inline(always)]
    pub(crate) unsafe fn keep(&self, at: NonNull<u8>, size: usize, align: usize) -> bool {
        // What was never resized is a block of the class that its layout says. That is known before the table's entry arrives,
        // which only has to confirm it.
        Class::of_usual(size, align).is_some_and(|class| {
            // SAFETY: the caller's; it is of this class.
            self.middle.class_at(at) == Some(class) && unsafe { self.middle.keep(class, at) }
        })
    }

    /// Takes memory back.
    ///
    /// # Safety
    /// `at` came from [`alloc`](Self::alloc) and is `size` bytes long by now; nobody uses it any more.
    #[inline(always)]
    pub(crate) unsafe fn dealloc(&self, at: NonNull<u8>, size: usize) {
        match self.middle.class_at(at) {
            // SAFETY: the caller's.
            Some(class) => unsafe { self.middle.dealloc(self.slab_zone(), class, at) },
            // SAFETY: the caller's; what is no block is a run of its own.
            None => unsafe { self.region.zone(self.region.zone_of(at)).release(at, size) },
        }
    }

    /// As [`alloc`](Self::alloc), for a caller who will not know the length when it frees what it gets.
    #[cfg(feature = "c-api")]
    #[inline(always)]
    pub(crate) fn alloc_measured(&self, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        let at = self.alloc(size, align, contents)?;
        if let Path::Run(_) = route::path(size, align) {
            let runs = self.region.zone_of(at);
            if !self.lengths.set(runs, self.region.zone(runs), at, size) {
                // SAFETY: handed out above, and given to nobody.
                unsafe { self.dealloc(at, size) };
                return None;
            }
        }
        Some(at)
    }

    /// How many bytes there are at an address of the region that [`alloc_measured`](Self::alloc_measured) returned; `None` where
    /// no allocation begins.
    #[cfg(feature = "c-api")]
    #[inline(always)]
    pub(crate) fn measure(&self, at: NonNull<u8>) -> Option<usize> {
        match self.middle.class_at(at) {
            Some(class) => Some(class.block_bytes()),
            None => {
                let runs = self.region.zone_of(at);
                self.lengths.get(runs, self.region.zone(runs), at)
            }
        }
    }

    /// Takes a block back for this thread to keep; `false`, and nothing done, where it is none, or there is no room.
    ///
    /// # Safety
    /// As for [`dealloc_measured`](Self::dealloc_measured).
    #[cfg(feature = "c-api")]
    #[inline(always)]
    pub(crate) unsafe fn keep_measured(&self, at: NonNull<u8>) -> bool {
        // SAFETY: the caller's.
        self.middle.class_at(at).is_some_and(|class| unsafe { self.middle.keep(class, at) })
    }

    /// As [`dealloc`](Self::dealloc), of what [`alloc_measured`](Self::alloc_measured) handed out; `false` where no allocation
    /// begins.
    ///
    /// # Safety
    /// `at` lies in the region. If an allocation begins there, it is the caller's, and nobody uses it any more.
    #[cfg(feature = "c-api")]
    #[inline(always)]
    pub(crate) unsafe fn dealloc_measured(&self, at: NonNull<u8>) -> bool {
        if let Some(class) = self.middle.class_at(at) {
            // SAFETY: the caller's.
            unsafe { self.middle.dealloc(self.slab_zone(), class, at) };
            return true;
        }
        let runs = self.region.zone_of(at);
        let zone = self.region.zone(runs);
        let Some(bytes) = self.lengths.take(runs, zone, at) else { return false };
        // SAFETY: the caller's; what has a length is a run of its own.
        unsafe { zone.release(at, bytes) };
        true
    }

    /// Notes that a run has another length than it was handed out with.
    ///
    /// # Safety
    /// `at` is the caller's, and `size` bytes long by now.
    #[cfg(feature = "c-api")]
    pub(crate) unsafe fn measured_anew(&self, at: NonNull<u8>, size: usize) {
        if self.middle.class_at(at).is_none() {
            let runs = self.region.zone_of(at);
            // Where a run begins, its entry is there.
            self.lengths.set(runs, self.region.zone(runs), at, size);
        }
    }

    /// Changes the length of an allocation where it stands. `false` where that can't be, or where its new length belongs
    /// elsewhere: what shrinks to less than half, and what grows to a giant among the other runs.
    ///
    /// # Safety
    /// `at` came from [`alloc`](Self::alloc), with this `align`, and is `old_size` bytes long by now; nobody uses what
    /// lies beyond `new_size`.
    pub(crate) unsafe fn resize(&self, at: NonNull<u8>, old_size: usize, new_size: usize, align: usize) -> bool {
        if let Some(class) = self.middle.class_at(at) {
            // Less than half of a block is better used by a smaller one.
            return new_size <= class.block_bytes() && new_size > class.block_bytes() / 2;
        }
        let runs = self.region.zone_of(at);
        let belongs = route::path(new_size, align) == Path::Run(runs);
        let may_stay = new_size >= route::least_bytes(runs)
            && match runs {
                RunKind::Giant => new_size >= old_size / 2,
                RunKind::Aligned | RunKind::Mid => new_size >= old_size / 2 && new_size <= old_size,
            };
        // SAFETY: the caller's; what is no block is a run of its own.
        (belongs || may_stay) && unsafe { self.region.zone(runs).resize(at, old_size, new_size) }
    }

    /// Shortens an allocation where it stands, also where its new length belongs elsewhere: no memory could be had there.
    ///
    /// # Safety
    /// As for [`resize`](Self::resize); `new_size` is less than `old_size`.
    pub(crate) unsafe fn shrink_in_place(&self, at: NonNull<u8>, old_size: usize, new_size: usize) {
        if self.middle.class_at(at).is_none() {
            // SAFETY: the caller's; what is no block is a run of its own.
            unsafe { self.region.zone(self.region.zone_of(at)).resize(at, old_size, new_size) };
        }
    }

    /// Grows a large run at a place with room; `None` where that can't be, and it stays as it is. Its pages move there, unless
    /// that place has pages already: these would be lost, and as many missing where the run was, so that copying costs less than
    /// the faults.
    ///
    /// # Safety
    /// As for [`resize`](Self::resize); where an address is returned, nobody uses the old one any more.
    pub(crate) unsafe fn grow_elsewhere(
        &self,
        at: NonNull<u8>,
        old_size: usize,
        new_size: usize,
        align: usize,
    ) -> Option<NonNull<u8>> {
        if old_size < route::MOVE_MIN_BYTES || new_size < old_size {
            return None;
        }
        let (old_runs, new_runs) = (self.region.zone_of(at), route::run_kind(new_size, align));
        let (old, new) = (self.region.zone(old_runs), self.region.zone(new_runs));
        let len = old.run_bytes(old_size);
        if len > new.run_bytes(new_size) {
            return None;
        }
        let (to, is_copied) = new.claim_to_move(new_size, align, len).ok()?;
        #[cfg(feature = "c-api")]
        if !self.lengths.set(new_runs, new, to, new_size) {
            // SAFETY: claimed above, and given to nobody.
            unsafe { new.release(to, new_size) };
            return None;
        }
        if is_copied {
            // SAFETY: both runs are the caller's alone, committed, and at least `old_size` bytes long.
            unsafe { copy_nonoverlapping(at.as_ptr(), to.as_ptr(), old_size) };
        } else {
            old.make_one_mapping(at, len);
            new.counters().system_call();
            // SAFETY: both runs are the caller's alone, committed, and at least `len` bytes long; `to` holds zeroes.
            if let Err(refused) = unsafe { os::move_pages(at.as_ptr(), to.as_ptr(), len) } {
                new.counters().refused(refused.errno, "move pages", len);
                #[cfg(feature = "c-api")]
                self.lengths.take(new_runs, new, to);
                if refused.is_target_whole {
                    // SAFETY: claimed above, and given to nobody.
                    unsafe { new.release(to, new_size) };
                } else {
                    new.abandon(to, new_size);
                }
                return None;
            }
        }
        #[cfg(feature = "c-api")]
        self.lengths.take(old_runs, old, at);
        if is_copied {
            // SAFETY: the caller's.
            unsafe { old.release(at, old_size) };
        } else {
            // SAFETY: the caller's; all pages of the run are at `to`.
            unsafe { old.release_moved(at, old_size) };
        }
        Some(to)
    }

    /// Gives free memory back to the kernel until at most `keep_bytes` are resident, or nothing free is. Returns the bytes
    /// given back.
    pub(crate) fn trim(&self, keep_bytes: usize, how: GiveBack) -> usize {
        if how == GiveBack::WhenShort {
            // What is softened stays booked, so that nothing tells when it is enough.
            self.middle.empty_caches(self.slab_zone());
            return self.trim_zones(resident_bytes().saturating_sub(keep_bytes), how);
        }
        self.trim_now(keep_bytes, || {
            if keep_bytes == 0 {
                self.middle.vacate_caches(self.slab_zone());
            } else {
                self.middle.empty_caches(self.slab_zone());
            }
        })
    }

    /// Purges free runs, and where these are not enough, the free pages of slabs, after `empty_caches`.
    fn trim_now(&self, keep_bytes: usize, empty_caches: impl FnOnce()) -> usize {
        let surplus = || resident_bytes().saturating_sub(keep_bytes);
        let mut gone = self.trim_zones(surplus(), GiveBack::Now);
        if surplus() > 0 {
            empty_caches();
            gone += self.middle.purge(self.slab_zone(), surplus());
            gone += self.trim_zones(surplus(), GiveBack::Now);
        }
        gone
    }

    fn trim_zones(&self, wanted_bytes: usize, how: GiveBack) -> usize {
        let zones = self.region.zones().iter().rev();
        zones.fold(0, |gone, zone| gone + zone.trim(wanted_bytes.saturating_sub(gone), how))
    }

    /// Gives back what is free of a part of a zone, and not known to be resident: the kernel may have brought it back into memory.
    fn give_back_unbooked(&self, zone: &zone::Zone, at: NonNull<u8>, bytes: usize) {
        zone.give_back_unbooked(at, bytes);
        if std::ptr::eq(zone, self.slab_zone()) {
            self.middle.give_back_unbooked(zone, at, bytes);
        }
    }

    /// Frees the runs that threads keep for their next requests.
    pub(crate) fn release_kept(&self) {
        for zone in self.region.zones() {
            zone.release_kept();
        }
    }

    /// Books free memory for a request of `bytes`, for `page_in` to bring in. Returns how many bytes.
    pub(crate) fn populate(&self, bytes: usize, page_in: impl FnOnce(Populate<'_>)) -> usize {
        let (runs, tenant) = match route::path(bytes, 1) {
            Path::Block(_) => (route::SLABS, Tenant::Slab),
            Path::Run(runs) => (runs, Tenant::of_run(bytes)),
        };
        self.region.zone(runs).populate(tenant, bytes, page_in)
    }

    /// Bytes that were asked for since the process started.
    fn served_bytes(&self) -> u64 {
        let kept = self.block_totals().bytes + kept_run_totals().bytes;
        self.counters().fold(kept, |sum, zone| sum + zone.bytes())
    }

    fn fresh_bytes(&self) -> u64 {
        self.counters().map(ZoneCounters::fresh_bytes).sum()
    }

    /// Asks the background thread to make memory that stays huge, where it is in small pages; called when what was used may be used
    /// again.
    pub(crate) fn ask_for_huge_pages(&self) {
        if self.config.huge_pages == HugePagesOutcome::Later && collapse::ask(|| self.fresh_bytes()) {
            decay::wake_background();
        }
    }

    /// A pass that makes memory huge, if somebody asked for one. For the background thread.
    pub(crate) fn begin_pass(&'static self) -> Option<Pass<Blocks>> {
        // Aligned runs are a few pages each; what is given back of a huge page stays with the kernel until it is short.
        let zones = [RunKind::Giant, RunKind::Mid].map(|runs| self.region.zone(runs));
        collapse::begin(|| self.fresh_bytes(), zones)
    }

    /// Makes the next huge page of a pass, and returns how long to rest; `None` where the pass is over.
    pub(crate) fn step(&self, pass: &mut Pass<Blocks>) -> Option<Duration> {
        pass.step(collapse::is_idle, collapse::make_huge, |block| self.settle_block(block))
    }

    /// Ends a pass before it is over.
    pub(crate) fn settle(&self, pass: &mut Pass<Blocks>) {
        pass.settle(|block| self.settle_block(block));
    }

    fn settle_block(&self, (zone, at): collapse::Block) {
        self.give_back_unbooked(zone, at, HUGE_PAGE_BYTES);
    }

    /// What a look sees.
    fn sight(&self) -> Sight {
        Sight {
            resident_bytes: resident_bytes(),
            used_bytes: counters::used_bytes(),
            kept_bytes: kept_bytes(),
            peak_bytes: counters::take_seen_peak_bytes(),
            served_bytes: self.served_bytes(),
            is_in_phase: open_phases::is_any(),
        }
    }

    /// Looks what may go, and purges it.
    fn look(&self, looks: &mut Looks, by: Looker) -> Verdict {
        let sight = self.sight();
        let verdict = looks.take_in(sight, os::monotonic_ns(), by);
        if by == Looker::Background && looks.is_busy() {
            self.ask_for_huge_pages();
        }
        if let Verdict::Keep(keep_bytes) = verdict {
            looks.purged(sight, self.trim(keep_bytes, GiveBack::Now));
        }
        verdict
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Blocks handed out, and the bytes that were asked for in them, since the process started.
    pub(crate) fn block_totals(&self) -> Totals {
        self.middle.totals()
    }

    /// Bytes of the blocks that are alive.
    pub(crate) fn live_block_bytes(&self) -> usize {
        self.middle.live_bytes()
    }

    /// Slabs in use, and their bytes.
    pub(crate) fn slabs(&self) -> (usize, usize) {
        self.middle.slabs()
    }

    /// Bytes of address space.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.region.len()
    }

    /// The zones' counters.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &ZoneCounters> {
        self.region.zones().iter().map(|zone| zone.counters())
    }
}

/// Free memory goes by this policy from now on; see `decay`. Waits for nobody, and allocates nothing.
pub(crate) fn follow(policy: Policy) {
    decay::follow(policy, || {
        look(Looker::Program);
    });
}

/// `None` where another thread looks.
fn look(by: Looker) -> Option<Verdict> {
    let arena = get()?;
    decay::with_looks(|looks| arena.look(looks, by))
}

/// Looks, if it is time, and returns how long the background thread may sleep before the next look; `None` where nothing is purged by
/// time.
pub(crate) fn look_in_background() -> Option<Duration> {
    if decay::time_to_look()?.is_zero() {
        let verdict = look(Looker::Background);
        decay::looked(verdict == Some(Verdict::Rest));
    }
    decay::time_to_look()
}

/// Runs served from what threads keep since the process started.
pub(crate) fn kept_run_totals() -> Totals {
    thread_cache::run_totals()
}

/// Bytes of runs and blocks that threads keep.
pub(crate) fn kept_bytes() -> usize {
    thread_cache::kept_run_bytes() + get().map_or(0, |arena| arena.middle.kept_bytes())
}
