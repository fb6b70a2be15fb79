//! The page run that each thread freed last, kept for its next request of that size: then neither the zone's bitmap nor
//! a counter that all threads share is touched.
//!
//! A run that is kept stays *used* in its zone: whoever takes it out of its slot owns it. Only the slot's thread puts runs
//! in; any thread takes them out, by an atomic operation, so that nothing free is out of reach where it is needed. Zones do
//! so before they hand out memory that is not resident, before they give memory back, and before a run fails to grow.
#![allow(unsafe_code, reason = "a thread local without a destructor lasts as long as its thread")]

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::AtomicUsize;

use crate::exclusive::Exclusive;
use crate::sync::{AtomicU64, Ordering};

/// Runs of each of so many zones, one a thread.
const ZONES: usize = 2;
/// Threads beyond that many at once keep nothing.
#[cfg(not(loom))]
const THREADS: usize = 256;
#[cfg(loom)]
const THREADS: usize = 0;
/// A run begins at a multiple of so many bytes, and is a multiple of them long.
const UNIT_BYTES: u64 = 16 << 10;

/// Which of a thread's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Small,
    Mid,
}

/// A run of pages: its address, and in the bits that are zero in every such address its length in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run(NonZeroU64);

impl Run {
    /// `None` for what is no whole number of units, or too long.
    pub(crate) const fn new(address: usize, bytes: usize) -> Option<Self> {
        let (address, bytes) = (address as u64, bytes as u64);
        let fits = address.is_multiple_of(UNIT_BYTES) && bytes.is_multiple_of(UNIT_BYTES);
        let units = bytes / UNIT_BYTES;
        if fits && units < UNIT_BYTES { Self::of(address | units) } else { None }
    }

    const fn of(word: u64) -> Option<Self> {
        match NonZeroU64::new(word) {
            Some(word) => Some(Self(word)),
            None => None,
        }
    }

    pub(crate) const fn address(self) -> usize {
        (self.0.get() & !(UNIT_BYTES - 1)) as usize
    }

    pub(crate) const fn bytes(self) -> usize {
        ((self.0.get() & (UNIT_BYTES - 1)) * UNIT_BYTES) as usize
    }
}

/// What one thread keeps, on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot {
    /// 1 while it belongs to a thread.
    owned: AtomicU64,
    /// Zero is none.
    runs: [AtomicU64; ZONES],
    /// Requests served from here, and their bytes, since the process started. Written by the slot's thread only.
    allocations: AtomicU64,
    bytes: AtomicU64,
}

#[cfg(not(loom))]
static SLOTS: [Slot; THREADS] = [const { Slot::new() }; THREADS];
#[cfg(loom)]
static SLOTS: [Slot; THREADS] = [];
/// No slot at or above this index was ever used.
static FRONTIER: AtomicUsize = AtomicUsize::new(0);

fn slots() -> &'static [Slot] {
    &SLOTS[..FRONTIER.load(Ordering::Acquire)]
}

impl Slot {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Self {
            owned: AtomicU64::new(0),
            runs: [const { AtomicU64::new(0) }; ZONES],
            allocations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self {
            owned: AtomicU64::new(0),
            runs: std::array::from_fn(|_| AtomicU64::new(0)),
            allocations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Takes the run out if it is `fits`. For the slot's thread.
    #[inline(always)]
    pub(crate) fn take_if(&self, place: Place, fits: impl FnOnce(Run) -> bool) -> Option<Run> {
        let kept = &self.runs[place as usize];
        let run = Run::of(kept.load(Ordering::Relaxed))?;
        // What this thread put in, it may use; nobody else puts anything in. Another may have taken it out meanwhile.
        let taken = fits(run) && kept.compare_exchange(run.0.get(), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        taken.then_some(run)
    }

    /// Puts a run in, for the slot's thread, and returns the one that was there.
    #[inline(always)]
    pub(crate) fn put(&self, place: Place, run: Run) -> Option<Run> {
        let kept = &self.runs[place as usize];
        if kept.load(Ordering::Relaxed) == 0 {
            // Stays zero until this thread puts something in. Release pairs with the Acquire of `take`: what this thread
            // did to the memory is over.
            kept.store(run.0.get(), Ordering::Release);
            return None;
        }
        Run::of(kept.swap(run.0.get(), Ordering::Release))
    }

    /// Takes the run out, for any thread.
    pub(crate) fn take(&self, place: Place) -> Option<Run> {
        let kept = &self.runs[place as usize];
        if kept.load(Ordering::Relaxed) == 0 { None } else { Run::of(kept.swap(0, Ordering::Acquire)) }
    }

    /// Only the slot's thread writes, so that a load and a store make an exact sum.
    #[inline(always)]
    fn count(&self, bytes: usize) {
        self.allocations.store(self.allocations.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }
}

/// The slot of this thread. No `Drop`, so that reaching it costs no check.
struct Local {
    slot: Cell<Option<&'static Slot>>,
    /// There was none to be had.
    in_vain: Cell<bool>,
    exclusive: Exclusive,
}

/// Leaves this thread's slot, with what is kept in it, to another when the thread exits.
struct Leave;

thread_local! {
    static LOCAL: Local =
        const { Local { slot: Cell::new(None), in_vain: Cell::new(false), exclusive: Exclusive::new() } };
    static LEAVE: Leave = const { Leave };
}

impl Drop for Leave {
    fn drop(&mut self) {
        exclusively(|local| {
            if let Some(slot) = local.slot.take() {
                // Pairs with the Acquire of `join`.
                slot.owned.store(0, Ordering::Release);
            }
        });
    }
}

/// Runs `f` unless this thread is in here already. `LOCAL.with(f)` would be a call of its own.
#[inline(always)]
fn exclusively<R>(f: impl FnOnce(&Local) -> R) -> Option<R> {
    // Always there: a thread local without a destructor lasts as long as its thread.
    let local = LOCAL.try_with(std::ptr::from_ref).ok()?;
    // SAFETY: as above, and this is its thread.
    let local = unsafe { &*local };
    local.exclusive.run(|| f(local))
}

impl Local {
    /// Finds a slot for this thread.
    #[cold]
    fn join(&self) -> Option<&'static Slot> {
        // Without its destructor a slot would be lost.
        if self.in_vain.get() || LEAVE.try_with(|_| ()).is_err() {
            return None;
        }
        let free = |slot: &Slot| slot.owned.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let index = SLOTS.iter().position(free);
        if let Some(index) = index {
            FRONTIER.fetch_max(index + 1, Ordering::AcqRel);
        }
        let found = index.map(|index| &SLOTS[index]);
        self.slot.set(found);
        self.in_vain.set(found.is_none());
        found
    }
}

/// Takes out what this thread keeps if it is `fits`, to serve a request of `bytes`.
#[inline(always)]
pub(crate) fn take_if(place: Place, bytes: usize, fits: impl FnOnce(Run) -> bool) -> Option<Run> {
    let taken = exclusively(|local| {
        let slot = local.slot.get()?;
        let run = slot.take_if(place, fits)?;
        slot.count(bytes);
        Some(run)
    });
    taken.flatten()
}

/// Keeps a run for this thread, and returns the one that is not kept instead, if there is one.
#[inline(always)]
pub(crate) fn put(place: Place, run: Run) -> Option<Run> {
    let put = exclusively(|local| match local.slot.get() {
        Some(slot) => slot.put(place, run),
        None => local.join().map_or(Some(run), |slot| slot.put(place, run)),
    });
    put.unwrap_or(Some(run))
}

/// Takes out what any thread keeps at a place.
pub(crate) fn take_all(place: Place) -> impl Iterator<Item = Run> {
    slots().iter().filter_map(move |slot| slot.take(place))
}

/// Bytes of all runs that are kept.
pub(crate) fn bytes() -> usize {
    let runs = slots().iter().flat_map(|slot| &slot.runs);
    runs.filter_map(|run| Run::of(run.load(Ordering::Relaxed))).map(Run::bytes).sum()
}

/// Requests served from what was kept, and their bytes, since the process started.
pub(crate) fn totals() -> (u64, u64) {
    slots().iter().fold((0, 0), |(allocations, bytes), slot| {
        (allocations + slot.allocations.load(Ordering::Relaxed), bytes + slot.bytes.load(Ordering::Relaxed))
    })
}
