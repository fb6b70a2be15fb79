//! Slabs: the middle sizes. A slab belongs to one thread, which bumps a pointer through it; any thread frees.
//!
//! When everything in a slab was freed, its owner starts it over, or, if it has no owner any more, its last free gives it
//! back to its zone. Metadata lives in a side table, never in the slab.
#![allow(unsafe_code, reason = "hands out memory")]

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use super::align::align_up;
use super::bitmap::Bitmap;
use super::count::SharedCount;
use super::zone::{Shortage, Zone};
use crate::exclusive::Exclusive;
use crate::os::{self, Errno, Mapping};
use crate::route;

/// The size of a slab, in bytes; slabs lie on multiples of it.
pub(crate) const SLAB_BYTES: usize = 512 << 10;
const _: () = assert!(matches!(route::path(SLAB_BYTES, 1), route::Path::Run(route::SLABS)));

/// Every allocation begins on a multiple of this many bytes: AVX-512 loads never straddle a cache line.
const MIN_ALIGN: usize = 64;

/// Slabs for each of the machine's threads that find room where no run goes. Those that threads hold on to, and those that
/// what leaves a proof keeps, would otherwise take the places of the next proof's runs (docs/placement.md).
const APART_PER_THREAD: usize = 4;

/// How much room that is, in bytes.
pub(crate) const fn apart_bytes(threads: usize) -> usize {
    APART_PER_THREAD * threads * SLAB_BYTES
}

/// The side table's entry for one slab. All zeroes is a slab that was never used.
#[derive(Debug)]
#[repr(C, align(128))]
struct Entry {
    /// Touched by every thread that frees.
    shared: SharedCount,
    own: OwnEntry,
}

/// Written by the slab's owner only, on a line of its own; read by anyone who gathers statistics.
#[derive(Debug)]
#[repr(align(64))]
struct OwnEntry {
    /// Allocations made in this slab, and their bytes, since the process started. Never reset.
    allocations: AtomicU64,
    bytes: AtomicU64,
    /// Where a thread that exited left its bump pointer and count for the slab's next owner.
    parked_bump: AtomicUsize,
    parked_live: AtomicI64,
}

impl OwnEntry {
    /// Only the owner writes, so that a load and a store make an exact sum.
    #[inline]
    fn count(&self, bytes: usize) {
        self.allocations.store(self.allocations.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }
}

/// All slabs' metadata.
#[derive(Debug)]
pub(crate) struct SlabTable {
    entries: &'static [Entry],
    _mapping: Mapping,
    /// Slabs whose owner exited and that wait for another thread.
    parked: Bitmap<'static>,
    /// No slab at or above this index was ever used: where statistics may stop.
    frontier: AtomicUsize,
    /// Slabs that the zone has not got back. No decision reads it.
    in_use: AtomicUsize,
}

impl SlabTable {
    /// A table for the slabs of a zone.
    ///
    /// # Errors
    /// The system's, when it grants no memory for the table.
    pub(crate) fn new(zone: &Zone) -> Result<Self, Errno> {
        let slabs = zone.capacity_bytes() / SLAB_BYTES;
        let words = Bitmap::words_for(slabs);
        let table_bytes = slabs * size_of::<Entry>();
        let mapping = os::map_zeroed(align_up(table_bytes + words * size_of::<u64>(), os::HUGE_PAGE_BYTES))?;
        let at = mapping.start();
        // SAFETY: the head of a mapping that is zeroed, page aligned, large enough, kept as long as the table, and ours
        // alone; all zeroes is a valid entry.
        let entries = unsafe { std::slice::from_raw_parts(at.cast::<Entry>().as_ptr(), slabs) };
        // SAFETY: the rest of that mapping.
        let parked = unsafe { std::slice::from_raw_parts(at.add(table_bytes).cast().as_ptr(), words) };
        Ok(Self {
            entries,
            _mapping: mapping,
            parked: Bitmap::new(parked),
            frontier: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
        })
    }

    /// Allocations made in slabs, and their bytes, since the process started.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let used = &self.entries[..self.frontier.load(Ordering::Acquire)];
        used.iter().fold((0, 0), |(allocations, bytes), entry| {
            (
                allocations + entry.own.allocations.load(Ordering::Relaxed),
                bytes + entry.own.bytes.load(Ordering::Relaxed),
            )
        })
    }

    /// Slabs that the zone has not got back.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Slabs that only what outlived its use keeps: their threads left them, and something in them is alive.
    pub(crate) fn pinned(&self) -> usize {
        let used = &self.entries[..self.frontier.load(Ordering::Acquire)];
        used.iter().filter(|entry| entry.shared.is_pinned()).count()
    }

    /// Gives the slabs of exited threads back to the zone where nothing in them is alive.
    pub(crate) fn recycle_parked(&self, zone: &Zone) {
        let frontier = self.frontier.load(Ordering::Acquire);
        let mut from = 0;
        while let Some(index) = self.parked.take_lowest(from, frontier) {
            if self.entries[index].shared.is_empty(self.entries[index].own.parked_live.load(Ordering::Relaxed)) {
                self.recycle(zone, index);
            } else {
                // As it was: its bump pointer and count still lie where its thread left them.
                self.parked.offer(index);
            }
            from = index + 1;
        }
    }

    /// A slab for this thread: one that an exited thread left, else one from the zone.
    fn take(&self, zone: &Zone) -> Result<Current, Shortage> {
        let frontier = self.frontier.load(Ordering::Acquire);
        if let Some(index) = self.parked.take_lowest(0, frontier) {
            let own = &self.entries[index].own;
            return Ok(Current {
                index,
                bump: own.parked_bump.load(Ordering::Relaxed),
                live: own.parked_live.load(Ordering::Relaxed),
            });
        }
        let slab = zone.claim_slab(SLAB_BYTES)?;
        self.in_use.fetch_add(1, Ordering::Relaxed);
        let index = index(zone, slab.addr().get());
        self.frontier.fetch_max(index + 1, Ordering::AcqRel);
        self.entries[index].shared.reset();
        Ok(Current { index, bump: slab.addr().get(), live: 0 })
    }

    /// Gives an empty slab without an owner back to its zone.
    fn recycle(&self, zone: &Zone, index: usize) {
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: a slab of the zone; the count says that every allocation in it was freed and that it has no owner, and says
        // so to one thread only.
        unsafe { zone.release_slab(zone.base().add(index * SLAB_BYTES), SLAB_BYTES) };
    }
}

/// Which slab of the zone an address lies in.
fn index(zone: &Zone, address: usize) -> usize {
    (address - zone.base().addr().get()) / SLAB_BYTES
}

/// A slab as its owner holds it.
struct Current {
    index: usize,
    /// The address of the next allocation.
    bump: usize,
    /// Allocations made and not freed again by the owner.
    live: i64,
}

/// The slab of this thread. No `Drop`, so that reaching it costs no check.
struct Local {
    /// The slab's first address; 0 for none.
    base: Cell<usize>,
    bump: Cell<usize>,
    live: Cell<i64>,
    /// The slab's entry; valid while `base` is not 0.
    entry: Cell<Option<&'static Entry>>,
    /// Where the slab is parked when the thread exits; set with the first slab.
    table: Cell<Option<&'static SlabTable>>,
    /// A signal handler that interrupts us here, and allocates, must not find the fields half changed.
    exclusive: Exclusive,
}

/// Hands this thread's slab on when the thread exits.
struct HandOver;

thread_local! {
    static LOCAL: Local = const {
        Local {
            base: Cell::new(0),
            bump: Cell::new(0),
            live: Cell::new(0),
            entry: Cell::new(None),
            table: Cell::new(None),
            exclusive: Exclusive::new(),
        }
    };
    static HAND_OVER: HandOver = const { HandOver };
}

impl Drop for HandOver {
    fn drop(&mut self) {
        exclusively(|local| local.table.get().map(|table| local.park(table)));
    }
}

/// Why a slab could not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unserved {
    /// There is no memory.
    Short(Shortage),
    /// This thread is in the allocator already (a signal handler allocates), or is being torn down.
    Busy,
}

/// Runs `f` on this thread's slab, unless the thread is in here already. `LOCAL.with(f)` would be a call of its own.
#[inline(always)]
fn exclusively<R>(f: impl FnOnce(&Local) -> R) -> Option<R> {
    // Always there: a thread local without a destructor lasts as long as its thread.
    let local = LOCAL.try_with(std::ptr::from_ref).ok()?;
    // SAFETY: as above, and this is its thread.
    let local = unsafe { &*local };
    local.exclusive.run(|| f(local))
}

/// `size` bytes from this thread's slab.
#[inline(always)]
pub(crate) fn alloc(
    table: &'static SlabTable,
    zone: &Zone,
    size: usize,
    align: usize,
) -> Result<NonNull<u8>, Unserved> {
    exclusively(|local| match local.bump(zone, size, align) {
        Some(at) => Ok(at),
        None => local.bump_elsewhere(table, zone, size, align),
    })
    .unwrap_or(Err(Unserved::Busy))
}

/// Takes an allocation back if it lies in this thread's slab, whatever else it may be; `false` if it does not.
///
/// # Safety
/// `at` came from the arena, is `size` bytes long by now, and nobody uses it any more.
#[inline(always)]
pub(crate) unsafe fn dealloc_own(at: NonNull<u8>, size: usize) -> bool {
    // Whose slab it is, is asked inside: a signal handler that came between could change the answer.
    let own = exclusively(|local| {
        let own = local.owns(at);
        if own {
            local.free(at, size);
        }
        own
    });
    own == Some(true)
}

/// Takes an allocation back on behalf of the thread whose slab it lies in.
///
/// # Safety
/// `at` came from [`alloc`] with the same table and zone, and nobody uses it any more; [`dealloc_own`] did not take it.
#[inline(never)]
pub(crate) unsafe fn dealloc(table: &'static SlabTable, zone: &Zone, at: NonNull<u8>) {
    let index = index(zone, at.addr().get());
    if table.entries[index].shared.free() {
        table.recycle(zone, index);
    }
}

/// Changes the length of an allocation where it stands; `false` where that can't be.
///
/// # Safety
/// As for [`dealloc_own`], but that the first `new_size` bytes stay in use.
pub(crate) unsafe fn resize(at: NonNull<u8>, old_size: usize, new_size: usize) -> bool {
    let moved_top = exclusively(|local| {
        let start = at.addr().get();
        let is_top = local.owns(at) && start + rounded(old_size) == local.bump.get();
        let end = start + rounded(new_size);
        let fits = is_top && end <= local.base.get() + SLAB_BYTES;
        if fits {
            local.bump.set(end);
        }
        fits
    });
    // Elsewhere the end of what shrinks little is left unused until the slab starts over.
    moved_top == Some(true) || new_size <= old_size && rounded(new_size) >= rounded(old_size) / 2
}

const fn rounded(size: usize) -> usize {
    align_up(size, MIN_ALIGN)
}

impl Local {
    #[inline(always)]
    fn bump(&self, zone: &Zone, size: usize, align: usize) -> Option<NonNull<u8>> {
        let entry = self.entry.get()?;
        let start = align_up(self.bump.get(), align.max(MIN_ALIGN));
        let end = start + rounded(size);
        if end > self.base.get() + SLAB_BYTES {
            return None;
        }
        self.bump.set(end);
        self.live.set(self.live.get() + 1);
        entry.own.count(size);
        // SAFETY: `[start, end)` lies in this thread's slab, granules of the zone that the thread owns, above everything
        // in it that is alive.
        Some(unsafe { zone.base().add(start - zone.base().addr().get()) })
    }

    /// Whether an address lies in this thread's slab.
    #[inline]
    fn owns(&self, at: NonNull<u8>) -> bool {
        self.base.get() == at.addr().get() & !(SLAB_BYTES - 1)
    }

    #[inline(always)]
    fn free(&self, at: NonNull<u8>, size: usize) {
        let live = self.live.get() - 1;
        self.live.set(live);
        if at.addr().get() + rounded(size) == self.bump.get() {
            self.bump.set(at.addr().get());
        } else if live == 0 {
            self.start_over();
        }
    }

    /// Starts an empty slab over; `false` if something in it is alive.
    fn start_over(&self) -> bool {
        let Some(entry) = self.entry.get() else { return false };
        let empty = entry.shared.is_empty(self.live.get());
        if empty {
            entry.shared.reset();
            self.live.set(0);
            self.bump.set(self.base.get());
        }
        empty
    }

    /// As [`bump`](Self::bump), after making room.
    #[cold]
    fn bump_elsewhere(
        &self,
        table: &'static SlabTable,
        zone: &Zone,
        size: usize,
        align: usize,
    ) -> Result<NonNull<u8>, Unserved> {
        loop {
            // Ends: an empty slab has room, and each slab that an exited thread left is taken once.
            self.refill(table, zone)?;
            if let Some(at) = self.bump(zone, size, align) {
                return Ok(at);
            }
        }
    }

    /// Makes room: starts this thread's slab over, or leaves it for another.
    fn refill(&self, table: &'static SlabTable, zone: &Zone) -> Result<(), Unserved> {
        if self.start_over() {
            return Ok(());
        }
        // Without the hand-over at its exit a thread's slab would be lost: no hand-over, no slab.
        HAND_OVER.try_with(|_| ()).map_err(|_| Unserved::Busy)?;
        self.retire(table, zone);
        let taken = table.take(zone).map_err(Unserved::Short)?;
        let entry = &table.entries[taken.index];
        self.base.set(zone.base().addr().get() + taken.index * SLAB_BYTES);
        self.bump.set(taken.bump);
        self.live.set(taken.live);
        self.entry.set(Some(entry));
        self.table.set(Some(table));
        Ok(())
    }

    /// Leaves the slab: its last free will recycle it, if this isn't it already.
    fn retire(&self, table: &SlabTable, zone: &Zone) {
        if let Some(entry) = self.entry.take() {
            let base = self.base.replace(0);
            if entry.shared.retire(self.live.get()) {
                table.recycle(zone, index(zone, base));
            }
        }
    }

    /// Leaves the slab, with what room it has, for the next thread that needs one.
    fn park(&self, table: &SlabTable) {
        if let Some(entry) = self.entry.take() {
            self.base.set(0);
            entry.own.parked_bump.store(self.bump.get(), Ordering::Relaxed);
            entry.own.parked_live.store(self.live.get(), Ordering::Relaxed);
            let index = (std::ptr::from_ref(entry).addr() - table.entries.as_ptr().addr()) / size_of::<Entry>();
            table.parked.offer(index);
        }
    }
}
