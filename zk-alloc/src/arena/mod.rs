//! The arena: one region per process, created on first use and shared by every [`ZkAllocator`](crate::ZkAllocator).
//!
//! Imports point downwards. This module composes `size_classes` and the zones of the `region`. `size_classes` serves blocks from thread
//! caches and slabs. Zones serve page runs; they use `residency`, which uses `os`. The modules `slab` and `runs` do not import each other.
#![allow(unsafe_code, reason = "publishes the one arena, and hands out its memory")]

mod align;
mod bitmap;
mod budget;
#[cfg(test)]
mod checks;
mod copy;
mod decay;
mod failures;
#[cfg(unix)]
mod fork;
mod growth;
mod hints;
mod holes;
mod huge;
mod layout;
#[cfg(feature = "c-api")]
mod lengths;
pub(crate) mod looks;
mod mapped;
#[cfg(feature = "c-api")]
mod measured;
mod moved;
#[cfg_attr(loom, allow(dead_code))]
mod occupied;
mod populate;
pub(crate) mod pressure;
mod purge;
mod region;
mod residency;
mod room;
mod runs;
mod size_classes;
mod slab;
mod table;
mod thread_cache;
mod totals;
mod window;
mod zone;

use std::cell::UnsafeCell;
use std::ffi::c_void;
#[cfg(unix)]
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use crate::classes::{self, Class};
use crate::config::{self, Config, Settings};
use crate::escape;
use crate::os::{self, Errno};
use crate::route::{self, Path, RunKind};
use crate::tuning;

#[cfg(test)]
pub(crate) use budget::retained_limit;
pub(crate) use budget::{max_bytes, purged_bytes, resident_bytes, set_kept, set_retained};
pub(crate) use decay::{Policy, bell, set_watched, tick};
pub(crate) use layout::HugeAdvice;
pub(crate) use residency::Purge;
#[cfg(feature = "c-api")]
pub use size_classes::NotFreeable;
pub(crate) use zone::Contents;

use budget::Limit;
use size_classes::SizeClasses;
use thread_cache::{Cache, Totals};
use zone::Shortage;

/// What becomes of a request that the arena does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unserved {
    /// The backing allocator serves it.
    BackingServes,
    /// It fails: it would exceed the cap, and the cap is hard.
    Fails,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Arena {
    region: region::Region,
    size_classes: SizeClasses,
    config: Config,
    #[cfg(feature = "c-api")]
    lengths: lengths::Lengths,
}

struct Global {
    state: AtomicU8,
    arena: UnsafeCell<MaybeUninit<Arena>>,
    /// The region's first address and length. A free of foreign memory reads only these two.
    base: AtomicUsize,
    len: AtomicUsize,
}

// SAFETY: `arena` is written once, by the thread that moved `state` from `NONE` to `OPENING`, and read only by threads
// that saw `OPEN`, which that thread stores afterwards, or `SERVING`, which replaces it.
unsafe impl Sync for Global {}

const NONE: u8 = 0;
const OPENING: u8 = 1;
const FAILED: u8 = 2;
/// The arena exists.
const OPEN: u8 = 3;
/// An allocator has asked the arena for memory.
const SERVING: u8 = 4;

static GLOBAL: Global = Global {
    state: AtomicU8::new(NONE),
    arena: UnsafeCell::new(MaybeUninit::uninit()),
    base: AtomicUsize::new(0),
    len: AtomicUsize::new(0),
};

impl Global {
    /// The arena. No thread writes it again.
    ///
    /// # Safety
    /// The arena was written before, and the caller has seen a Release store that came after that write.
    #[inline(always)]
    unsafe fn opened(&'static self) -> &'static Arena {
        // SAFETY: the caller's.
        unsafe { (*self.arena.get()).assume_init_ref() }
    }
}

/// The arena, if it is open.
#[inline]
pub(crate) fn get() -> Option<&'static Arena> {
    // SAFETY: `OPEN` was stored with Release after the arena had been written. `SERVING` was stored by a thread that saw
    // `OPEN`, with Release too.
    (GLOBAL.state.load(Ordering::Acquire) >= OPEN).then(|| unsafe { GLOBAL.opened() })
}

/// The arena. The first call after an allocator was [introduced](config::introduce) opens it. No call waits: while one thread opens the
/// arena, all other calls return `None`, also on that thread itself. The backing allocator then serves their requests.
#[inline]
pub(crate) fn open() -> Option<&'static Arena> {
    get().or_else(open_now)
}

/// The context of the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Not in a signal handler.
    Calm,
    /// Possibly in a signal handler, which may have interrupted any code, including the backing allocator.
    Disturbed,
}

/// As [`open`], for an allocator with its settings. `first` runs once in the process, for the first request that is not postponed
/// ([`tuning::most_postponed`]).
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
    // A request that may come from a signal handler leaves `first` to a later one. The number of such requests is bounded, because a thread
    // may block signals for good.
    static POSTPONED: AtomicU8 = AtomicU8::new(0);
    let moment = if os::may_be_in_signal_handler() { Moment::Disturbed } else { Moment::Calm };
    if moment == Moment::Disturbed && POSTPONED.load(Ordering::Relaxed) < tuning::most_postponed() as u8 {
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
    // The first allocator brings the program's settings. Until then, no request needs the arena.
    let program = config::program().filter(|_| !config::is_off())?;
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

/// The arena and `at`, if `at` lies in memory that the arena has committed.
#[inline]
pub(crate) fn of(at: *mut u8) -> Option<(&'static Arena, NonNull<u8>)> {
    near(at).filter(|&(arena, at)| arena.region.zone(arena.region.zone_of(at)).owns(at))
}

/// The arena and `at`, if `at` lies in the region. Other mappings may lie there too; [`of`] excludes them.
#[inline(always)]
pub(crate) fn near(at: *mut u8) -> Option<(&'static Arena, NonNull<u8>)> {
    // Acquire: a thread that sees the length also sees the base and the arena, which were written before.
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

/// A block from this thread's cache, for a usual request (see [`Class::of_usual`]).
#[inline(always)]
pub(crate) fn alloc_cached(size: usize, align: usize) -> Option<NonNull<u8>> {
    size_classes::alloc_cached(Class::of_usual(size, align)?)
}

/// An exiting thread returns the blocks in its cache to their slabs, and its run to the zone.
///
/// # Safety
/// `cache` is the address that was registered with the thread's cache.
unsafe extern "C" fn thread_exits(cache: *mut c_void) {
    if let Some(arena) = get() {
        let empty = |cache: &Cache| {
            arena.size_classes.empty(arena.slab_zone(), cache);
            arena.region.zones().iter().for_each(|zone| zone.release_cached_of(cache));
        };
        // SAFETY: the caller's.
        unsafe { thread_cache::leave(cache, empty) };
    }
}

// Makes the key before the program makes its own, because the C library has few keys that need no allocation. Has forks call the arena.
// SAFETY: the loader calls the functions in this section before `main`, with the C ABI. It may pass arguments, which a function without
// parameters ignores.
#[cfg(unix)]
#[used]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array.00103"))]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
static BEFORE_MAIN: extern "C" fn() = register;

#[cfg(unix)]
extern "C" fn register() {
    thread_cache::exit_key(thread_exits);
    os::at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

#[cfg(unix)]
extern "C" fn before_fork() {
    get().into_iter().for_each(Arena::before_fork);
}

#[cfg(unix)]
extern "C" fn after_fork_in_parent() {
    get().into_iter().for_each(Arena::after_fork_in_parent);
}

#[cfg(unix)]
extern "C" fn after_fork_in_child() {
    get().into_iter().for_each(Arena::after_fork_in_child);
}

impl Arena {
    /// Builds the arena in place, part by part, because the stack may be small (that of a thread or a signal handler). On failure, `place`
    /// holds nothing.
    ///
    /// # Errors
    /// The system's error, if it grants no address space, or no memory for the tables.
    ///
    /// # Safety
    /// `place` is valid for writes, and only the caller reaches it.
    unsafe fn build(place: *mut Self, program: &Settings) -> Result<(), Errno> {
        // Without a reference, the linker may drop it.
        #[cfg(unix)]
        black_box(&BEFORE_MAIN);
        os::refer_to_pin();
        // While there is memory, and no filter of system calls.
        os::process_generation();
        // SAFETY: the caller's.
        let config = unsafe {
            (&raw mut (*place).config).write(config::load(program));
            &(*place).config
        };
        budget::set_max(config.settings.max_bytes.value);
        budget::set_kept_at_opening(config.kept_bytes());
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

    /// Builds the parts that need the region.
    ///
    /// # Safety
    /// As for [`build`](Self::build); the region is built.
    unsafe fn build_tables(place: *mut Self) -> Result<(), Errno> {
        // SAFETY: the caller's.
        let region = unsafe { &(*place).region };
        #[cfg(feature = "c-api")]
        let lengths = lengths::Lengths::new(region.zones())?;
        let size_classes = SizeClasses::new(region.zone(route::SLABS), thread_exits)?;
        // SAFETY: the caller's.
        unsafe {
            (&raw mut (*place).size_classes).write(size_classes);
            #[cfg(feature = "c-api")]
            (&raw mut (*place).lengths).write(lengths);
        }
        Ok(())
    }

    fn slab_zone(&self) -> &zone::Zone {
        self.region.zone(route::SLABS)
    }

    /// Allocates memory for a request of at least one byte.
    ///
    /// # Errors
    /// What the caller does instead: there is no memory, or it would exceed the cap.
    #[inline(always)]
    pub(crate) fn alloc(&self, size: usize, align: usize, contents: Contents) -> Result<NonNull<u8>, Unserved> {
        match self.try_alloc(size, align, contents, Limit::Peak) {
            Ok(at) => Ok(at),
            Err(shortage) => {
                let found = match shortage {
                    Shortage::Full => self.alloc_in_any_zone(size, align, contents),
                    Shortage::Refused => None,
                    Shortage::OverBudget => self.alloc_within_budget(size, align, contents),
                };
                found.map_or_else(|| self.alloc_at_hard_limit(size, align, contents), Ok)
            }
        }
    }

    /// A request found no memory. Where the cap is hard, tries once more to learn whether the cap is the reason.
    #[cold]
    fn alloc_at_hard_limit(&self, size: usize, align: usize, contents: Contents) -> Result<NonNull<u8>, Unserved> {
        let max_bytes = self.config.settings.max_bytes.value;
        if !self.config.settings.max_hard.value || max_bytes == usize::MAX {
            return Err(Unserved::BackingServes);
        }
        match self.try_alloc(size, align, contents, Limit::Cap) {
            Ok(at) => Ok(at),
            Err(Shortage::Full | Shortage::Refused) if size <= max_bytes.saturating_sub(resident_bytes()) => {
                Err(Unserved::BackingServes)
            }
            Err(_) => Err(Unserved::Fails),
        }
    }

    /// Serves a run of at least [`tuning::crosses_min_bytes`] from the zone of the huge runs, or a huge run from the zone of the other runs.
    /// It takes only free resident memory there.
    fn alloc_in_other_zone(&self, runs: RunKind, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        let other = match runs {
            RunKind::Huge => RunKind::Mid,
            RunKind::Mid if size >= tuning::crosses_min_bytes() => RunKind::Huge,
            RunKind::Mid | RunKind::Aligned => return None,
        };
        self.region.zone(other).claim_for_other_zone(size, align, contents)
    }

    /// Serves a run from any other zone, because its own zone has no free addresses. One line on standard error tells of the first request
    /// for which there are none anywhere.
    #[cold]
    fn alloc_in_any_zone(&self, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        let others: &[RunKind] = match route::path(size, align) {
            Path::Block(_) => &[],
            Path::Run(RunKind::Aligned) => &[RunKind::Mid, RunKind::Huge],
            Path::Run(RunKind::Mid) if size < tuning::crosses_min_bytes() => &[RunKind::Aligned, RunKind::Huge],
            Path::Run(RunKind::Mid) => &[RunKind::Huge, RunKind::Aligned],
            Path::Run(RunKind::Huge) => &[RunKind::Mid, RunKind::Aligned],
        };
        for &other in others {
            match self.region.zone(other).claim(size, align, contents, Limit::Cap, || None) {
                Ok(at) => return Some(at),
                Err(Shortage::Full) => {}
                Err(Shortage::OverBudget | Shortage::Refused) => return None,
            }
        }
        static WARNED: AtomicBool = AtomicBool::new(false);
        // Beyond the whole region, a request is no sign of a shortage.
        if size <= self.region.len() && !WARNED.swap(true, Ordering::Relaxed) {
            let foreign_bytes: usize = self.region.zones().iter().map(zone::Zone::foreign_bytes).sum();
            os::warn(format_args!(
                "no addresses are left for {size} bytes: the arena has {} bytes of address space, and other mappings take \
                 {foreign_bytes} of them; the backing allocator serves such requests, which are only counted in stats() from now on",
                self.region.len()
            ));
        }
        None
    }

    #[inline(always)]
    fn try_alloc(&self, size: usize, align: usize, contents: Contents, limit: Limit) -> Result<NonNull<u8>, Shortage> {
        match route::path(size, align) {
            Path::Block(class) => {
                let at = self.size_classes.alloc(self.slab_zone(), class, limit)?;
                if contents == Contents::Zeroed {
                    // SAFETY: `size` bytes that were just handed to us.
                    unsafe { at.write_bytes(0, size) };
                }
                Ok(at)
            }
            Path::Run(runs) => {
                // The paths of blocks join a cache by themselves.
                if !thread_cache::is_joined() {
                    self.size_classes.join();
                }
                let elsewhere = || self.alloc_in_other_zone(runs, size, align, contents);
                self.region.zone(runs).claim(size, align, contents, limit, elsewhere)
            }
        }
    }

    /// Frees a block into this thread's cache, if a usual request got it. Returns `false`, and does nothing, if it is no such block, or if
    /// the cache does not take it.
    ///
    /// # Safety
    /// As for [`dealloc`](Self::dealloc).
    #[inline(always)]
    pub(crate) unsafe fn put_cached(&self, at: NonNull<u8>, size: usize, align: usize) -> bool {
        // A block that was never resized has the class that its layout says. That class is known before the load of the table's entry
        // completes, and the entry only confirms it.
        Class::of_usual(size, align).is_some_and(|class| {
            // SAFETY: the caller's; it is of this class.
            self.size_classes.class_at(at) == Some(class) && unsafe { self.size_classes.put_cached(class, at) }
        })
    }

    /// Frees memory.
    ///
    /// # Safety
    /// `at` came from [`alloc`](Self::alloc) and is `size` bytes long by now; nobody uses it any more.
    #[inline(always)]
    pub(crate) unsafe fn dealloc(&self, at: NonNull<u8>, size: usize) {
        match self.size_classes.class_at(at) {
            // SAFETY: the caller's.
            Some(class) => unsafe { self.size_classes.dealloc(self.slab_zone(), class, at) },
            // SAFETY: the caller's; memory that is no block is a run of its own.
            None => unsafe { self.region.zone(self.region.zone_of(at)).release(at, size) },
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }
}

/// Runs that threads with a cache were handed since the process started.
pub(crate) fn run_totals() -> Totals {
    thread_cache::run_totals()
}

/// Bytes of runs and blocks in thread caches.
pub(crate) fn cached_bytes() -> usize {
    thread_cache::cached_run_bytes() + get().map_or(0, |arena| arena.size_classes.cached_bytes())
}
