//! The arena: one region per process, created on first use and shared by every [`ZkAllocator`](crate::ZkAllocator).
//!
//! Each layer is a folder. From the top down: `front` has the thread caches, `heap` cuts slabs into blocks of the size classes, `pages`
//! hands out page runs from zones, and `purge` decides how much free memory stays resident. All of them use `os`.
#![allow(unsafe_code, reason = "publishes the one arena, hands out its memory, copies it and frees it")]

/// Tests of the lock-free parts.
#[cfg(all(test, not(loom)))]
mod checks {
    mod alone;
    mod oracle;
}
/// Loom models, which run every interleaving of small programs.
#[cfg(all(test, loom))]
mod checks {
    mod loom_bits;
    mod loom_cache;
    mod loom_slabs;
    mod loom_zone;
    mod models;
}
#[cfg(unix)]
pub(crate) mod fork;
pub(crate) mod front;
mod heap;
/// The zones of the region, which hand out runs of pages, and the state of the memory behind each page.
mod pages {
    pub(crate) mod bitmap;
    pub(crate) mod layout;
    #[cfg(feature = "c-api")]
    pub(crate) mod lengths;
    pub(crate) mod memory;
    pub(crate) mod moved;
    pub(crate) mod runs;
    pub(crate) mod zone;
}
pub(crate) mod purge;

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, copy_nonoverlapping};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use crate::accounts::{self, Limit, resident_bytes};
use crate::arena::front::Cache;
pub(crate) use crate::arena::front::{alloc as alloc_cached, cached_run_bytes, sums, thread_totals};
#[cfg(feature = "c-api")]
pub use crate::arena::heap::NotFreeable;
use crate::arena::heap::SizeClasses;
pub(crate) use crate::arena::pages::bitmap::{Bitmap, Table};
pub(crate) use crate::arena::pages::layout::HugeAdvice;
use crate::arena::pages::layout::{self, Path, RunKind, RunUse, ZoneSpec};
#[cfg(feature = "c-api")]
use crate::arena::pages::lengths::Lengths;
use crate::arena::pages::memory::Density;
pub(crate) use crate::arena::pages::memory::Purge;
pub(crate) use crate::arena::pages::runs::{Runs, Wanted};
pub(crate) use crate::arena::pages::zone::{Contents, Shortage, Zone};
use crate::classes::{self, Class};
use crate::config::{self, Config, Settings};
use crate::os::{self, AddressRange, Errno};
use crate::sync::AtomicU64;
use crate::{escape, gate, pinned, tuning};

/// What happens to a request that the arena does not serve.
#[cfg_attr(not(feature = "c-api"), allow(unreachable_pub, reason = "`c_api` has it"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The backing allocator serves it.
    BackingServes,
    /// It fails: it would exceed the cap (`ZK_ALLOC_MAX_BYTES`), and the cap is hard (`ZK_ALLOC_MAX_HARD=1`).
    Fails,
}

/// The arena: its region of address space, its size classes, and its configuration.
pub(crate) struct Arena {
    pub(crate) region: Region,
    pub(crate) size_classes: SizeClasses,
    config: Config,
}

struct Global {
    state: AtomicU8,
    arena: UnsafeCell<MaybeUninit<Arena>>,
    /// The region's base address, and its length in bytes. Freeing foreign memory reads only these two fields.
    base: AtomicUsize,
    len: AtomicUsize,
}

// SAFETY: `arena` is written once, by the thread that moved `state` from `NONE` to `OPENING`. Other threads read it only after an Acquire
// load has seen a later Release store. The writing thread stores a nonzero `len` and `OPEN`; `SERVING` is stored by a thread that has seen
// `OPEN`.
unsafe impl Sync for Global {}

const NONE: u8 = 0;
const OPENING: u8 = 1;
const FAILED: u8 = 2;
/// The arena exists.
const OPEN: u8 = 3;
/// The arena has received a request that was not postponed (see [`open_to_serve`]).
const SERVING: u8 = 4;

static GLOBAL: Global = Global {
    state: AtomicU8::new(NONE),
    arena: UnsafeCell::new(MaybeUninit::uninit()),
    base: AtomicUsize::new(0),
    len: AtomicUsize::new(0),
};

impl Global {
    /// Returns the arena, which is never written again.
    ///
    /// # Safety
    /// The arena has been written, and the caller has seen a Release store that followed that write.
    #[inline(always)]
    unsafe fn opened(&'static self) -> &'static Arena {
        // SAFETY: upheld by the caller.
        unsafe { (*self.arena.get()).assume_init_ref() }
    }
}

/// Returns the arena, if it is open.
#[inline]
pub(crate) fn get() -> Option<&'static Arena> {
    // SAFETY: `OPEN` is stored with Release after the arena is written. `SERVING` is stored by a thread that has seen `OPEN`, also with
    // Release.
    (GLOBAL.state.load(Ordering::Acquire) >= OPEN).then(|| unsafe { GLOBAL.opened() })
}

/// Returns the arena. The first call after [`config::init_settings`] opens it. No call waits: while one thread is opening the arena, every
/// other call returns `None`, even a nested call on that thread, and the backing allocator serves the request.
#[inline]
pub(crate) fn open() -> Option<&'static Arena> {
    get().or_else(open_now)
}

/// Like [`open`], for a request to an allocator with these settings. `first` runs once in the process, for the first request that is not
/// postponed ([`tuning::max_postponed`]). Its argument is `true` if that request may come from a signal handler, which may have interrupted
/// any code, including the backing allocator.
#[inline]
pub(crate) fn open_to_serve(settings: &Settings, first: impl FnOnce(bool)) -> Option<&'static Arena> {
    if GLOBAL.state.load(Ordering::Acquire) == SERVING {
        // SAFETY: as in `get`.
        Some(unsafe { GLOBAL.opened() })
    } else {
        serve_first(settings, first)
    }
}

#[cold]
fn serve_first(settings: &Settings, first: impl FnOnce(bool)) -> Option<&'static Arena> {
    config::init_settings(settings);
    let arena = open()?;
    // A request that may come from a signal handler leaves `first` to a later request. The number of postponements is limited, because a
    // thread that blocks signals permanently always seems to be in a signal handler.
    static POSTPONED: AtomicU8 = AtomicU8::new(0);
    let in_signal_handler = os::may_be_in_signal_handler();
    if in_signal_handler && POSTPONED.load(Ordering::Relaxed) < tuning::max_postponed() as u8 {
        POSTPONED.fetch_add(1, Ordering::Relaxed);
        return Some(arena);
    }
    if GLOBAL.state.compare_exchange(OPEN, SERVING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        first(in_signal_handler);
    }
    Some(arena)
}

#[cold]
fn open_now() -> Option<&'static Arena> {
    // The first allocator to be used sets the program's settings. Until then, no request needs the arena.
    let program = config::program().filter(|_| !config::is_off())?;
    GLOBAL.state.compare_exchange(NONE, OPENING, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    let place = GLOBAL.arena.get().cast::<Arena>();
    // SAFETY: only this thread moved the state to `OPENING`. No other thread reads or writes the arena before `len` is stored.
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

/// Returns the arena and `at`, if `at` is in memory that the arena has committed.
#[inline]
pub(crate) fn of(at: *mut u8) -> Option<(&'static Arena, NonNull<u8>)> {
    near(at).filter(|&(arena, at)| arena.zone_at(at).owns(at))
}

/// Returns the arena and `at`, if `at` is in the region. The region may also contain foreign mappings; [`of`] excludes them.
#[inline(always)]
pub(crate) fn near(at: *mut u8) -> Option<(&'static Arena, NonNull<u8>)> {
    // Acquire: a thread that sees the length also sees the base and the arena, which were written before it.
    let len = GLOBAL.len.load(Ordering::Acquire);
    let within = at.addr().wrapping_sub(GLOBAL.base.load(Ordering::Relaxed)) < len;
    // SAFETY: `len` is 0 until the arena has been written, and the Acquire load saw a nonzero value.
    let arena = within.then(|| unsafe { GLOBAL.opened() });
    // Not `Option::zip`, which would be a call.
    match (arena, NonNull::new(at)) {
        (Some(arena), Some(at)) => Some((arena, at)),
        _ => None,
    }
}

/// Returns the blocks in an exiting thread's cache to their slabs, and its cached runs to their zone.
///
/// # Safety
/// `cache` is the address of the exiting thread's cache, as registered with the thread-exit key.
unsafe extern "C" fn thread_exits(cache: *mut c_void) {
    if let Some(arena) = get() {
        let empty = |cache: &Cache| {
            arena.size_classes.empty(arena.slab_zone(), cache);
            arena.region.zone(layout::CACHED).release_runs(cache.take_runs());
        };
        // SAFETY: upheld by the caller.
        unsafe { front::leave(cache, empty) };
    }
}

impl Arena {
    /// Builds the arena in place, part by part, because the stack of the thread or signal handler may be small. On failure, `place` is left
    /// uninitialised.
    ///
    /// # Errors
    /// The system's error, if it refuses address space or memory for the tables.
    ///
    /// # Safety
    /// `place` is valid for writes, and only the caller accesses it.
    unsafe fn build(place: *mut Self, program: &Settings) -> Result<(), Errno> {
        // Called now, while the process still has memory and no system call filter.
        os::process_generation();
        // SAFETY: upheld by the caller.
        let config = unsafe {
            (&raw mut (*place).config).write(config::load(program));
            &(*place).config
        };
        accounts::set_max(config.settings.max_bytes.value);
        accounts::set_kept_at_opening(config.kept_bytes());
        classes::set_page_bytes(os::page_bytes());
        if config.settings.trace_escaped.value {
            escape::trace_escaped(true);
        }
        // SAFETY: upheld by the caller.
        let region = unsafe { &raw mut (*place).region };
        // SAFETY: upheld by the caller.
        unsafe { Region::find_at(region, config.span_bytes, &layout::zone_specs(config)) }?;
        // SAFETY: built one line above.
        match SizeClasses::new(unsafe { (*region).zone(layout::SLABS) }) {
            // SAFETY: upheld by the caller.
            Ok(size_classes) => unsafe { (&raw mut (*place).size_classes).write(size_classes) },
            Err(refused) => {
                // SAFETY: built above, and no other thread can access it.
                unsafe { region.drop_in_place() };
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Returns the zone that contains an address of the region.
    #[inline(always)]
    fn zone_at(&self, at: NonNull<u8>) -> &Zone {
        self.region.zone(self.region.zone_of(at))
    }

    pub(crate) fn slab_zone(&self) -> &Zone {
        self.region.zone(layout::SLABS)
    }

    /// Returns the zone of huge runs. One of its runs may be the [pinned range](crate::pinned).
    pub(crate) fn huge_zone(&self) -> &Zone {
        self.region.zone(RunKind::Huge)
    }

    /// Allocates memory for a request of at least one byte.
    ///
    /// # Errors
    /// [`Unserved`], if the zones have no memory for the request or it would exceed the cap.
    #[inline(always)]
    pub(crate) fn alloc(&self, size: usize, align: usize, contents: Contents) -> Result<NonNull<u8>, Unserved> {
        self.try_alloc(size, align, contents, Limit::Peak).or_else(|shortage| {
            let found = match shortage {
                Shortage::Full => self.alloc_beyond_its_zone(size, align, contents),
                Shortage::Refused => None,
                Shortage::OverBudget => purge::alloc_within_budget(self, size, align, contents),
            };
            found.map_or_else(|| self.alloc_at_hard_limit(size, align, contents), Ok)
        })
    }

    /// Decides what happens to a request for which no memory was found. With a hard cap, tries once more to learn whether the cap is the
    /// reason.
    #[cold]
    fn alloc_at_hard_limit(&self, size: usize, align: usize, contents: Contents) -> Result<NonNull<u8>, Unserved> {
        let max_bytes = self.config.settings.max_bytes.value;
        if !self.config.settings.max_hard.value || max_bytes == usize::MAX {
            return Err(Unserved::BackingServes);
        }
        self.try_alloc(size, align, contents, Limit::Cap).map_err(|shortage| {
            let is_over = shortage == Shortage::OverBudget || size > max_bytes.saturating_sub(resident_bytes());
            if is_over { Unserved::Fails } else { Unserved::BackingServes }
        })
    }

    /// Serves a mid run of at least [`tuning::crosses_min_bytes`] from the huge zone, or a huge run from the mid zone. Takes only memory
    /// that is free and resident.
    fn alloc_in_other_zone(&self, runs: RunKind, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        let other = match runs {
            RunKind::Huge => RunKind::Mid,
            RunKind::Mid if size >= tuning::crosses_min_bytes() => RunKind::Huge,
            RunKind::Mid => return None,
        };
        self.region.zone(other).claim_for_other_zone(size, align, contents)
    }

    /// Serves a run from the other zone, because its own zone has no free addresses. If neither zone has any, prints a warning to standard
    /// error once.
    #[cold]
    fn alloc_beyond_its_zone(&self, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
        let other = match layout::path(size, align) {
            Path::Block(_) => None,
            Path::Run(RunKind::Mid) => Some(RunKind::Huge),
            Path::Run(RunKind::Huge) => Some(RunKind::Mid),
        };
        match other.map(|other| self.region.zone(other).claim(size, align, contents, Limit::Cap, || None)) {
            Some(Ok(at)) => return Some(at),
            Some(Err(Shortage::OverBudget | Shortage::Refused)) => return None,
            Some(Err(Shortage::Full)) | None => {}
        }
        static WARNED: AtomicBool = AtomicBool::new(false);
        // A request larger than the whole region does not indicate a shortage.
        if size <= self.region.len() && !WARNED.swap(true, Ordering::Relaxed) {
            let foreign_bytes: usize = self.region.zones().iter().map(Zone::foreign_bytes).sum();
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
        match layout::path(size, align) {
            Path::Block(class) => {
                let at = self.size_classes.alloc(self.slab_zone(), class, limit)?;
                if contents == Contents::Zeroed {
                    // SAFETY: the block was just allocated, and is at least `size` bytes long.
                    unsafe { at.write_bytes(0, size) };
                }
                Ok(at)
            }
            Path::Run(runs) => {
                // Acquires a cache for this thread if it has none. For blocks, `SizeClasses::alloc` does this.
                if !front::is_joined() {
                    drop(front::join_and_enter());
                }
                let elsewhere = || self.alloc_in_other_zone(runs, size, align, contents);
                self.region.zone(runs).claim(size, align, contents, limit, elsewhere)
            }
        }
    }

    /// Frees a block into this thread's cache, if its layout is [usual](Class::of_usual). Returns `false`, and does nothing, for any other
    /// memory, or if the cache does not take the block.
    ///
    /// # Safety
    /// Same as for [`dealloc`](Self::dealloc).
    #[inline(always)]
    pub(crate) unsafe fn put_cached(&self, at: NonNull<u8>, size: usize, align: usize) -> bool {
        // A block that was never resized has the class of its layout. The processor knows that class before the load of the table entry
        // completes; the entry only confirms the class.
        Class::of_usual(size, align).is_some_and(|class| {
            // SAFETY: upheld by the caller; the block is of this class.
            self.size_classes.slabs.class_at(at.addr().get()) == Some(class) && unsafe { front::put(class, at) }
        })
    }

    /// Frees memory.
    ///
    /// # Safety
    /// `at` came from [`alloc`](Self::alloc) and is now `size` bytes long. The memory must not be used afterwards.
    #[inline(always)]
    pub(crate) unsafe fn dealloc(&self, at: NonNull<u8>, size: usize) {
        match self.size_classes.class_at(at) {
            // SAFETY: upheld by the caller.
            Some(class) => unsafe { self.size_classes.dealloc(self.slab_zone(), class, at) },
            // SAFETY: upheld by the caller; only `pinned` hands out memory in the pinned range.
            None if gate::is_pinned(at.as_ptr()) => unsafe { pinned::release(at, size) },
            // SAFETY: upheld by the caller; memory that is neither pinned nor a block is a whole run.
            None => unsafe { self.zone_at(at).release(at, size) },
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    // The length of an allocation, and how it changes.

    /// Returns the length in bytes of the allocation at `at`, which served a request for `size` bytes.
    pub(crate) fn length(&self, at: NonNull<u8>, size: usize) -> usize {
        let run_bytes = || self.zone_at(at).run_bytes(size);
        self.size_classes.class_at(at).map_or_else(run_bytes, Class::block_bytes)
    }

    /// Changes the length of an allocation in place. Returns `false` if there is no room, or if the new length belongs elsewhere:
    /// - a block would be at most half used;
    /// - a run becomes longer than its zone serves;
    /// - a run becomes shorter than its zone serves, and shrinks to less than half or below [`layout::min_bytes`];
    /// - memory of the pinned range shrinks to less than half, or below the minimum length in that range.
    ///
    /// # Safety
    /// `at` came from [`alloc`](Self::alloc), with this `align`, and is now `old_size` bytes long. Its bytes beyond `new_size` must not be
    /// used afterwards.
    pub(crate) unsafe fn resize(&self, at: NonNull<u8>, old_size: usize, new_size: usize, align: usize) -> bool {
        if let Some(class) = self.size_classes.class_at(at) {
            // At half of a block or less, the allocation moves to a smaller block.
            return new_size <= class.block_bytes() && new_size > class.block_bytes() / 2;
        }
        if gate::is_pinned(at.as_ptr()) {
            let may_stay = new_size >= gate::pinned_min_bytes() && new_size >= old_size / 2;
            // SAFETY: upheld by the caller; only `pinned` hands out memory in the pinned range.
            return may_stay && unsafe { pinned::resize(at, old_size, new_size) };
        }
        let runs = self.region.zone_of(at);
        let belongs = layout::path(new_size, align) == Path::Run(runs);
        let may_grow = runs == RunKind::Huge;
        let may_stay = new_size >= layout::min_bytes(runs).max(old_size / 2) && (may_grow || new_size <= old_size);
        // SAFETY: upheld by the caller; memory that is neither pinned nor a block is a whole run.
        (belongs || may_stay) && unsafe { self.region.zone(runs).resize(at, old_size, new_size) }
    }

    /// Shrinks an allocation in place although its new length belongs elsewhere. For use when there is no memory elsewhere.
    ///
    /// # Safety
    /// Same as for [`resize`](Self::resize); `new_size` is less than `old_size`.
    pub(crate) unsafe fn shrink_in_place(&self, at: NonNull<u8>, old_size: usize, new_size: usize) {
        if gate::is_pinned(at.as_ptr()) {
            // SAFETY: upheld by the caller; only `pinned` hands out memory in the pinned range.
            unsafe { pinned::resize(at, old_size, new_size) };
        } else if self.size_classes.class_at(at).is_none() {
            // SAFETY: upheld by the caller; memory that is neither pinned nor a block is a whole run.
            unsafe { self.zone_at(at).resize(at, old_size, new_size) };
        }
    }

    /// Moves a large run to a place with room for its new length. Returns `None`, and leaves the run as it is, if that fails.
    ///
    /// The kernel moves the pages to the new place. If that place is fully resident, this function copies the contents instead: a move
    /// would discard the pages of the new place and leave the old place without pages, and faulting pages in again costs more than a copy.
    ///
    /// If the run gets a new place, `before_release` is called before the old place is freed.
    ///
    /// # Safety
    /// Same as for [`resize`](Self::resize); once an address is returned, the old one must not be used.
    pub(crate) unsafe fn grow_elsewhere(
        &self,
        at: NonNull<u8>,
        old_size: usize,
        new_size: usize,
        align: usize,
        before_release: impl FnOnce(),
    ) -> Option<NonNull<u8>> {
        if old_size < tuning::move_min_bytes() || new_size < old_size {
            return None;
        }
        // Pages never move into or out of the pinned range, because it is registered with a driver. The caller copies instead.
        if gate::is_pinned(at.as_ptr()) || pinned::has_room(new_size) {
            return None;
        }
        let (old_runs, new_runs) = (self.region.zone_of(at), layout::run_kind(new_size));
        let (old, new) = (self.region.zone(old_runs), self.region.zone(new_runs));
        let len = old.run_bytes(old_size);
        if len > new.run_bytes(new_size) {
            return None;
        }
        let (to, is_copied) = new.claim_to_move(new_size, align, len).ok()?;
        #[cfg(feature = "c-api")]
        if !Lengths::set(new, to, new_size) {
            // SAFETY: claimed above, and not handed out.
            unsafe { new.release(to, new_size) };
            return None;
        }
        if is_copied {
            // SAFETY: both runs belong to the caller alone, are committed, and are at least `old_size` bytes long.
            unsafe { self.copy(at, to.as_ptr(), old_size) };
        } else {
            old.make_one_mapping(at, len);
            accounts::system_call();
            // SAFETY: both runs belong to the caller alone, are committed, and are at least `len` bytes long; `to` reads as zeroes.
            if let Err(refused) = unsafe { os::move_pages(at.as_ptr(), to.as_ptr(), len) } {
                accounts::refused(refused.errno, "move pages", len);
                #[cfg(feature = "c-api")]
                Lengths::take(new, to);
                if refused.is_target_whole {
                    // SAFETY: claimed above, and not handed out.
                    unsafe { new.release(to, new_size) };
                } else {
                    new.abandon(to, new_size);
                }
                return None;
            }
            new.moved_here(to, len, old, at);
        }
        #[cfg(feature = "c-api")]
        Lengths::take(old, at);
        new.count_request(new_size);
        before_release();
        if is_copied {
            // SAFETY: upheld by the caller.
            unsafe { old.release(at, old_size) };
        } else {
            // SAFETY: upheld by the caller; all pages of the run are at `to`.
            unsafe { old.release_moved(at, old_size) };
        }
        Some(to)
    }

    /// Copies the first `bytes` of the arena's allocation at `from`. If both allocations are page runs and `bytes` is at least
    /// [`tuning::sparse_copy_min_bytes`], copies a sparsely touched source without its untouched pages, so the copy uses no more memory
    /// than the source.
    ///
    /// # Safety
    /// Both allocations are at least `bytes` long, belong to the caller alone, and do not overlap.
    pub(crate) unsafe fn copy(&self, from: NonNull<u8>, to: *mut u8, bytes: usize) {
        let is_sparse = || {
            // The kernel counts whole pages, and the last one may extend beyond the allocation, so `in_memory` may exceed `bytes`.
            let missing = |in_memory: usize| bytes.saturating_sub(in_memory) >= bytes / tuning::sparse_copy_part();
            // SAFETY: only queries memory that belongs to the caller, and changes nothing.
            unsafe { os::count_resident(from.as_ptr(), bytes) }.is_some_and(missing)
        };
        // SAFETY: upheld by the caller. Runs begin at page boundaries, and the arena's memory is private and anonymous.
        let is_copied = bytes >= tuning::sparse_copy_min_bytes()
            && self.is_run(from)
            && of(to).is_some_and(|(_, to)| self.is_run(to))
            && COPIES.is_sparse(bytes, tuning::max_copy_trust(), is_sparse)
            && unsafe { os::copy_held(from.as_ptr(), to, bytes) };
        if !is_copied {
            // SAFETY: upheld by the caller.
            unsafe { copy_nonoverlapping(from.as_ptr(), to, bytes) };
        }
    }

    fn is_run(&self, at: NonNull<u8>) -> bool {
        self.size_classes.class_at(at).is_none()
    }

    // Prefaulting free memory before a request needs it.

    /// Prefaults enough free memory to serve a request of `bytes`, on several threads, and counts it as resident. Returns how many bytes
    /// were counted.
    pub(crate) fn populate(&self, bytes: usize) -> usize {
        let (runs, run_use) = match layout::path(bytes, 1) {
            Path::Block(_) => (layout::SLABS, RunUse::Slab),
            Path::Run(runs) => (runs, RunUse::of_run(bytes)),
        };
        self.region.zone(runs).populate(run_use, bytes, self.config.threads)
    }

    // Sums over all zones, slabs and thread caches.

    /// Returns the number of bytes requested since the process started.
    pub(crate) fn served_bytes(&self) -> u64 {
        let sums = sums();
        sums.blocks.bytes + sums.runs.bytes + accounts::run_bytes()
    }

    /// Frees the runs in all thread caches.
    pub(crate) fn release_cached(&self) {
        self.region.zone(layout::CACHED).release_runs(front::take_all_runs());
    }
}

/// Allocation for callers that do not pass the size when they free memory, such as callers of `malloc`.
#[cfg(feature = "c-api")]
impl Arena {
    /// Like [`alloc`](Self::alloc), for a caller that does not pass the size when it frees the memory.
    #[inline(always)]
    pub(crate) fn alloc_measured(
        &self,
        size: usize,
        align: usize,
        contents: Contents,
    ) -> Result<NonNull<u8>, Unserved> {
        let at = self.alloc(size, align, contents)?;
        if matches!(layout::path(size, align), Path::Run(_)) && !Lengths::set(self.zone_at(at), at, size) {
            // SAFETY: allocated above, and not handed out.
            unsafe { self.dealloc(at, size) };
            return Err(Unserved::BackingServes);
        }
        Ok(at)
    }

    /// Returns the length in bytes of the allocation at `at`, an address of the region that came from
    /// [`alloc_measured`](Self::alloc_measured).
    ///
    /// # Errors
    /// The reason, as [`NotFreeable`], if no allocation begins there.
    #[inline(always)]
    pub(crate) fn measure(&self, at: NonNull<u8>) -> Result<usize, NotFreeable> {
        match self.size_classes.class_at(at) {
            Some(class) => self.size_classes.check(class, at).map(|()| class.block_bytes()),
            None => Lengths::get(self.zone_at(at), at).ok_or(NotFreeable::NoRun),
        }
    }

    /// Frees a block into this thread's cache. Returns `false`, and does nothing, if `at` is not a block, if the block seems to have been
    /// freed already, or if the cache does not take it.
    ///
    /// # Safety
    /// Same as for [`dealloc_measured`](Self::dealloc_measured).
    #[inline(always)]
    pub(crate) unsafe fn put_cached_measured(&self, at: NonNull<u8>) -> bool {
        // SAFETY: upheld by the caller.
        self.size_classes.class_at(at).is_some_and(|class| unsafe { self.size_classes.put_checked(class, at) })
    }

    /// Like [`dealloc`](Self::dealloc), for memory from [`alloc_measured`](Self::alloc_measured).
    ///
    /// # Errors
    /// The reason, as [`NotFreeable`], if no allocation begins at `at`. Then nothing is freed.
    ///
    /// # Safety
    /// `at` is in the region. If an allocation begins there, it belongs to the caller, and must not be used afterwards.
    #[inline(always)]
    pub(crate) unsafe fn dealloc_measured(&self, at: NonNull<u8>) -> Result<(), NotFreeable> {
        if let Some(class) = self.size_classes.class_at(at) {
            self.size_classes.check(class, at)?;
            // SAFETY: upheld by the caller.
            unsafe { self.size_classes.dealloc(self.slab_zone(), class, at) };
            return Ok(());
        }
        let zone = self.zone_at(at);
        let bytes = Lengths::take(zone, at).ok_or(NotFreeable::NoRun)?;
        // SAFETY: upheld by the caller; memory with a recorded length is a whole run.
        unsafe { zone.release(at, bytes) };
        Ok(())
    }

    /// Records the new length of a run that was resized.
    ///
    /// # Safety
    /// The memory at `at` belongs to the caller, and is now `size` bytes long.
    pub(crate) unsafe fn measured_anew(&self, at: NonNull<u8>, size: usize) {
        if self.size_classes.class_at(at).is_none() {
            // This can't fail, because the run's entry has been usable since the run was allocated.
            Lengths::set(self.zone_at(at), at, size);
        }
    }
}

/// Returns the total size of the runs and blocks in thread caches, in bytes.
pub(crate) fn cached_bytes() -> usize {
    cached_run_bytes() + get().map_or(0, |arena| arena.size_classes.cached_bytes())
}

// Address space, and the tables of the zones.

/// A range of address space, divided into zones of equal span. Zones map memory there as they grow.
///
/// The spans are equal powers of two, so one subtraction and one shift find the zone of an address.
pub(crate) struct Region {
    /// The address space. Memory that a zone mapped there is never unmapped, because a published region is never dropped.
    range: AddressRange,
    /// The words of the zones' bitmaps and block claims.
    _words: Table<AtomicU64>,
    span_shift: u32,
    zones: [Zone; ZONES],
}

/// One zone for each [`RunKind`], in the order of its variants.
const ZONES: usize = 2;

/// The number of a zone's bitmaps that have a bit for each page.
const BITMAPS: usize = 5;
/// The number of a zone's bitmaps that have a bit for each block, an aligned range that one huge page can back. Each block also has a word
/// for its claim.
const BLOCK_BITMAPS: usize = 2;

impl Region {
    /// Finds address space for `span_bytes` (rounded up to a power of two) for each zone. If the system refuses, because limits leave too
    /// little room, tries half the span, then a quarter, and so on. Returns the span, the address space of all zones, and the memory of the
    /// bitmaps.
    fn largest(span_bytes: usize, specs: &[ZoneSpec; ZONES]) -> Result<(usize, AddressRange, Table<AtomicU64>), Errno> {
        let mut span = span_bytes.clamp(tuning::min_span_bytes(), usize::MAX / 4 / ZONES).next_power_of_two();
        loop {
            match Self::exactly(span, specs) {
                Err(_) if span / 2 >= tuning::min_span_bytes() => span /= 2,
                found => return found,
            }
        }
    }

    fn exactly(span: usize, specs: &[ZoneSpec; ZONES]) -> Result<(usize, AddressRange, Table<AtomicU64>), Errno> {
        // These trial mappings test whether the limits leave this much room for the tables and for the program. They are dropped
        // immediately.
        drop(os::reserve(span / tuning::address_part())?);
        drop(os::map_zeroed(span / tuning::data_part())?);
        let range = AddressRange::find(span * ZONES)?;
        let blocks = span / os::HUGE_PAGE_BYTES;
        let block_words = BLOCK_BITMAPS * Bitmap::words_for(blocks) + blocks;
        let words = |spec: &ZoneSpec| BITMAPS * Bitmap::words_for(span / spec.page_bytes) + block_words;
        let words: usize = specs.iter().map(words).sum();
        Ok((span, range, Table::new(words)?))
    }

    /// Finds a region with `span_bytes` for each zone, or less if limits leave less room. Builds it in place, zone by zone, because the
    /// stack may be small. On failure, `place` is left uninitialised.
    ///
    /// # Errors
    /// The system's last error, if it refuses even the smallest span.
    ///
    /// # Safety
    /// `place` is valid for writes, and only the caller accesses it.
    pub(crate) unsafe fn find_at(place: *mut Self, span_bytes: usize, specs: &[ZoneSpec; ZONES]) -> Result<(), Errno> {
        let (span, range, words) = Self::largest(span_bytes, specs)?;
        let (base, mut rest) = (range.start(), words.all());
        // Slabs and caches store blocks as integer addresses.
        base.as_ptr().expose_provenance();
        let mut take_words = |len: usize| {
            let (taken, others) = rest.split_at(len);
            rest = others;
            taken
        };
        for (index, spec) in specs.iter().enumerate() {
            let pages = span / spec.page_bytes;
            let blocks = span / os::HUGE_PAGE_BYTES;
            let bits = [(); BITMAPS].map(|()| Bitmap::new(take_words(Bitmap::words_for(pages))));
            let block_bits = [(); BLOCK_BITMAPS].map(|()| Bitmap::new(take_words(Bitmap::words_for(blocks))));
            let claims = take_words(blocks);
            // SAFETY: the range is `ZONES` spans long.
            let zone_base = unsafe { base.add(index * span) };
            // SAFETY: a field of `place`, which the caller keeps valid for writes.
            let zones = unsafe { (&raw mut (*place).zones).cast::<Zone>() };
            // SAFETY: each zone gets its own span of the range. The bitmaps are clear and cover that span.
            match unsafe { Zone::new(zone_base, *spec, bits, block_bits, claims) } {
                // SAFETY: `zones` has `ZONES` elements, and `index` is below that.
                Ok(zone) => unsafe { zones.add(index).write(zone) },
                Err(refused) => {
                    // SAFETY: written in earlier iterations, and no other thread can access them.
                    (0..index).for_each(|index| unsafe { zones.add(index).drop_in_place() });
                    return Err(refused);
                }
            }
        }
        // SAFETY: upheld by the caller. These are the last fields to be written.
        unsafe {
            (&raw mut (*place).range).write(range);
            (&raw mut (*place)._words).write(words);
            (&raw mut (*place).span_shift).write(span.trailing_zeros());
        }
        Ok(())
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.range.start()
    }

    /// Returns the size of the region's address space, in bytes.
    pub(crate) fn len(&self) -> usize {
        ZONES << self.span_shift
    }

    /// Returns the zone of the runs of this kind.
    pub(crate) fn zone(&self, runs: RunKind) -> &Zone {
        &self.zones[runs as usize]
    }

    pub(crate) fn zones(&self) -> &[Zone; ZONES] {
        &self.zones
    }

    /// Returns the kind of the runs in the zone that contains an address of the region.
    #[inline(always)]
    pub(crate) fn zone_of(&self, at: NonNull<u8>) -> RunKind {
        let index = (at.addr().get() - self.base().addr().get()) >> self.span_shift;
        if index == 0 { RunKind::Mid } else { RunKind::Huge }
    }
}

// Copies of allocations that move when they grow or shrink.

/// How densely the runs copied so far were used.
static COPIES: Density = Density::new();
