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
mod middle;
mod passes;
mod populate;
mod purge;
mod region;
mod residency;
mod runs;
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
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::classes::{self, Class};
use crate::config::{self, Config, Settings};
use crate::escape;
use crate::os::{self, Errno};
use crate::route::{self, Path, RunKind};

#[cfg(test)]
pub(crate) use budget::retained_limit;
pub(crate) use budget::{resident_bytes, set_retained};
pub(crate) use collapse::{Blocks, Pass, collapsed_bytes};
pub(crate) use decay::{Policy, bell, set_watched, tick};
pub(crate) use layout::{HugeAdvice, SMALL_RESERVED_BYTES, granule_bytes};
pub(crate) use middle::fetch_most;
pub(crate) use residency::Purge;
pub(crate) use zone::Contents;

use budget::Limit;
use middle::Middle;
use thread_cache::Totals;
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
pub(crate) fn alloc_cached(size: usize, align: usize) -> Option<NonNull<u8>> {
    middle::alloc_cached(Class::of_usual(size, align)?, size)
}

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

    /// A long run among the huge runs, or a huge run among the long runs, in free resident memory.
    fn alloc_in_other_zone(&self, runs: RunKind, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        let other = match runs {
            RunKind::Huge => RunKind::Mid,
            RunKind::Mid if size >= route::CROSSES_MIN_BYTES => RunKind::Huge,
            RunKind::Mid | RunKind::Aligned => return None,
        };
        self.region.zone(other).claim_for_other_zone(size, align, contents)
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

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }
}

/// Runs served from what threads keep since the process started.
pub(crate) fn cached_run_totals() -> Totals {
    thread_cache::run_totals()
}

/// Bytes of runs and blocks that threads keep.
pub(crate) fn cached_bytes() -> usize {
    thread_cache::cached_run_bytes() + get().map_or(0, |arena| arena.middle.cached_bytes())
}
