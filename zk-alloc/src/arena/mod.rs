//! The arena: one region per process, made when it is first needed, shared by every [`ZkAllocator`](crate::ZkAllocator).
//!
//! Imports point downwards: this module composes `slab` and `pages`, which know `zone` and `region`, which know `os`.
//! Slabs and page runs never name each other.
#![allow(unsafe_code, reason = "publishes the one arena, and hands out its memory")]

mod align;
mod bitmap;
mod budget;
#[cfg(test)]
mod checks;
mod count;
mod pages;
mod region;
mod slab;
mod zone;

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::config::{self, Config};
use crate::counters::ZoneCounters;
use crate::escape;
use crate::os::{self, Errno};
use crate::route::{self, Path};

pub(crate) use budget::resident_bytes;
pub(crate) use slab::{SLAB_BYTES, Unserved};
pub(crate) use zone::{Contents, GiveBack};

use zone::{Shortage, Tenant};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Arena {
    region: region::Region,
    slabs: slab::SlabTable,
    config: Config,
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

/// The arena, opened by this call if it is the first. Nobody waits: while one thread opens it, for the others (and for
/// what that thread itself allocates meanwhile) there is none yet, and the backing allocator serves them.
#[inline]
pub(crate) fn open() -> Option<&'static Arena> {
    get().or_else(open_now)
}

/// As [`open`], for an allocator; `first` runs before the first of all requests, once in the life of the process.
#[inline]
pub(crate) fn open_to_serve(first: impl FnOnce()) -> Option<&'static Arena> {
    if GLOBAL.state.load(Ordering::Acquire) == SERVING {
        // SAFETY: as in `get`.
        Some(unsafe { GLOBAL.opened() })
    } else {
        serve_first(first)
    }
}

#[cold]
fn serve_first(first: impl FnOnce()) -> Option<&'static Arena> {
    let arena = open()?;
    if GLOBAL.state.compare_exchange(OPEN, SERVING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        first();
    }
    Some(arena)
}

#[cold]
fn open_now() -> Option<&'static Arena> {
    GLOBAL.state.compare_exchange(NONE, OPENING, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    match Arena::new() {
        Ok(arena) => {
            GLOBAL.base.store(arena.region.base().addr().get(), Ordering::Relaxed);
            let len = arena.region.len();
            // SAFETY: this thread alone moved the state to `OPENING`, and until `OPEN` nobody reads.
            unsafe { (*GLOBAL.arena.get()).write(arena) };
            GLOBAL.len.store(len, Ordering::Release);
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

/// The arena, if an address belongs to it.
#[inline(always)]
pub(crate) fn of(at: *const u8) -> Option<&'static Arena> {
    // Acquire: who sees a length sees the base and the arena, which were written before it.
    let len = GLOBAL.len.load(Ordering::Acquire);
    let within = at.addr().wrapping_sub(GLOBAL.base.load(Ordering::Relaxed)) < len;
    // SAFETY: the length is 0 until the arena has been written.
    within.then(|| unsafe { GLOBAL.opened() })
}

impl Arena {
    fn new() -> Result<Self, Errno> {
        let config = config::load();
        budget::set_max(config.max_bytes);
        if config.trace_escaped {
            escape::trace_escaped(true);
        }
        let specs = pages::zone_specs(&config, slab::apart_bytes(config.threads));
        let region = region::Region::reserve(config.span_bytes, specs)?;
        let slabs = slab::SlabTable::new(region.zone(route::SLABS))?;
        Ok(Self { region, slabs, config })
    }

    /// Memory for a request, or why there is none.
    #[inline(always)]
    pub(crate) fn alloc(&'static self, size: usize, align: usize, contents: Contents) -> Result<NonNull<u8>, Unserved> {
        match self.try_alloc(size, align, contents) {
            Err(Unserved::Short(Shortage::OverBudget)) => self.alloc_within_budget(size, align, contents),
            other => other,
        }
    }

    /// As [`alloc`](Self::alloc), after what is free but resident elsewhere made room, if it is enough.
    #[cold]
    fn alloc_within_budget(
        &'static self,
        size: usize,
        align: usize,
        contents: Contents,
    ) -> Result<NonNull<u8>, Unserved> {
        self.trim(budget::max_bytes().saturating_sub(size.max(SLAB_BYTES)), GiveBack::Now);
        self.try_alloc(size, align, contents)
    }

    #[inline(always)]
    fn try_alloc(&'static self, size: usize, align: usize, contents: Contents) -> Result<NonNull<u8>, Unserved> {
        match route::path(size, align) {
            Path::Slab => {
                let at = slab::alloc(&self.slabs, self.region.zone(route::SLABS), size, align)?;
                if contents == Contents::Zeroed {
                    // SAFETY: `size` bytes that were just handed to us.
                    unsafe { at.write_bytes(0, size) };
                }
                Ok(at)
            }
            Path::Run(zone) => {
                let zone = self.region.zone(zone);
                zone.claim(size, pages::run_align(size, align), contents).map_err(Unserved::Short)
            }
        }
    }

    /// Takes memory back.
    ///
    /// # Safety
    /// `at` came from [`alloc`](Self::alloc) and is `size` bytes long by now; nobody uses it any more.
    #[inline(always)]
    pub(crate) unsafe fn dealloc(&'static self, at: NonNull<u8>, size: usize) {
        // First, because it needs to know nothing of zones.
        // SAFETY: the caller's.
        if size <= route::SLAB_MAX_BYTES && unsafe { slab::dealloc_own(at, size) } {
            return;
        }
        let name = self.region.zone_of(at);
        let zone = self.region.zone(name);
        if route::is_in_slab(name, size) {
            // SAFETY: the caller's; what is so short in this zone came from a slab.
            unsafe { slab::dealloc(&self.slabs, zone, at) };
        } else {
            // SAFETY: the caller's; everything else in a zone is a run of its own.
            unsafe { zone.release(at, size) };
        }
    }

    /// Changes the length of an allocation where it stands. `false` where that can't be, or where its new length belongs
    /// elsewhere: a small thing must not stay where giants live.
    ///
    /// # Safety
    /// `at` came from [`alloc`](Self::alloc), with this `align`, and is `old_size` bytes long by now; nobody uses what
    /// lies beyond `new_size`.
    pub(crate) unsafe fn resize(
        &'static self,
        at: NonNull<u8>,
        old_size: usize,
        new_size: usize,
        align: usize,
    ) -> bool {
        let name = self.region.zone_of(at);
        let in_slab = route::is_in_slab(name, old_size);
        match route::path(new_size, align) {
            // SAFETY: the caller's; what is so short in this zone came from a slab.
            Path::Slab if in_slab => unsafe { slab::resize(at, old_size, new_size) },
            Path::Run(zone) if zone == name && !in_slab => {
                // SAFETY: the caller's; everything else in a zone is a run of its own.
                unsafe { self.region.zone(name).resize(at, old_size, new_size) }
            }
            _ => false,
        }
    }

    /// Gives free memory back to the kernel until at most `keep_bytes` are resident, or nothing free is. Returns the bytes
    /// given back.
    pub(crate) fn trim(&self, keep_bytes: usize, how: GiveBack) -> usize {
        self.slabs.recycle_parked(self.region.zone(route::SLABS));
        let mut surplus = resident_bytes().saturating_sub(keep_bytes);
        let mut gone = 0;
        for zone in self.region.zones().iter().rev() {
            let part = zone.trim(surplus, how);
            gone += part;
            surplus = surplus.saturating_sub(part);
        }
        gone
    }

    /// Frees what threads keep for their next requests.
    pub(crate) fn release_kept(&self) {
        for zone in self.region.zones() {
            zone.release_kept();
        }
    }

    /// Pages in free memory for a request of `bytes`, on several threads. Returns how many bytes.
    pub(crate) fn populate(&self, bytes: usize) -> usize {
        let (zone, tenant) = match route::path(bytes, 1) {
            Path::Slab => (route::SLABS, Tenant::Slab),
            Path::Run(zone) => (zone, Tenant::Run),
        };
        self.region.zone(zone).populate(tenant, bytes, self.config.threads)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Allocations made in slabs, and their bytes, since the process started.
    pub(crate) fn slab_totals(&self) -> (u64, u64) {
        self.slabs.totals()
    }

    /// Slabs in use, and those among them that only something alive keeps.
    pub(crate) fn slabs_in_use(&self) -> (usize, usize) {
        (self.slabs.in_use(), self.slabs.pinned())
    }

    /// Bytes of address space.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.region.len()
    }

    /// The zones' counters.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &ZoneCounters> {
        self.region.zones().iter().map(|zone| &zone.counters)
    }
}
