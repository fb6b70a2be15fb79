//! The global variables that every request may read. They contain the number of open phases, the smallest requests that the arena and the
//! pinned range serve, and the location of that range. They also show which observers of allocations are on, and whether slow paths end
//! with a decay tick. They are rarely written.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::arena::purge::decay;
use crate::os::HUGE_PAGE_BYTES;

/// The number of open phases.
static OPEN_PHASES: AtomicUsize = AtomicUsize::new(0);

/// Returns whether a phase is open in this process.
#[inline]
pub(crate) fn is_any_phase_open() -> bool {
    OPEN_PHASES.load(Ordering::Relaxed) != 0
}

/// Counts one more open phase. Returns whether it is the only one.
pub(crate) fn phase_began() -> bool {
    OPEN_PHASES.fetch_add(1, Ordering::Relaxed) == 0
}

/// Counts the end of an open phase. Returns whether it was the last open one. Does nothing if none is open.
pub(crate) fn phase_ended() -> bool {
    OPEN_PHASES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1)) == Ok(1)
}

/// The smallest request that the arena serves, in bytes.
static MIN_BYTES: AtomicUsize = AtomicUsize::new(UNKNOWN);
/// The value while the smallest request is not known. It is larger than any request.
pub(crate) const UNKNOWN: usize = usize::MAX;

/// Returns the smallest request that the arena serves, in bytes. It is [`UNKNOWN`] until [`init_settings`](crate::config::init_settings)
/// has run.
#[inline(always)]
pub(crate) fn min_bytes() -> usize {
    MIN_BYTES.load(Ordering::Relaxed)
}

pub(crate) fn set_min_bytes(bytes: usize) {
    MIN_BYTES.store(bytes, Ordering::Relaxed);
}

/// The smallest request that the [pinned range](crate::pinned) may serve, in bytes. It is larger than any request while the range serves
/// none.
static PINNED_MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Returns the smallest request that the pinned range may serve, in bytes.
#[inline(always)]
pub(crate) fn pinned_min_bytes() -> usize {
    PINNED_MIN_BYTES.load(Ordering::Relaxed)
}

pub(crate) fn set_pinned_min_bytes(bytes: usize) {
    PINNED_MIN_BYTES.store(bytes, Ordering::Relaxed);
}

/// The location of the pinned range, in huge pages: its length in the lowest bits, and its start in the bits above them. 0 if there is
/// none. It is one word, so that no thread reads the start of one range with the length of another.
static PINNED: AtomicU64 = AtomicU64::new(0);
const PINNED_LEN_BITS: u32 = 28;

/// Returns whether an address is in the pinned range. A relaxed load is enough: a caller got its address in the range after the range was
/// [set](set_pinned), and the range lasts as long as the allocation.
#[inline(always)]
pub(crate) fn is_pinned(at: *const u8) -> bool {
    let range = PINNED.load(Ordering::Relaxed);
    let block = (at.addr() / HUGE_PAGE_BYTES) as u64;
    block.wrapping_sub(range >> PINNED_LEN_BITS) < range & ((1 << PINNED_LEN_BITS) - 1)
}

/// Sets the pinned range, which consists of whole huge pages. 0 bytes mean that there is no such range.
pub(crate) fn set_pinned(at: *const u8, bytes: usize) {
    let (block, blocks) = ((at.addr() / HUGE_PAGE_BYTES) as u64, (bytes / HUGE_PAGE_BYTES) as u64);
    PINNED.store(if blocks == 0 { 0 } else { block << PINNED_LEN_BITS | blocks }, Ordering::Relaxed);
}

/// The observers of allocations and frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Observer {
    /// The tracing of allocations that outlive their phase (`escape`).
    Escapes = 1,
    /// The sampling of call sites (`profile`).
    Profile = 2,
}

/// One bit for each [`Observer`] that is on.
static OBSERVERS: AtomicU8 = AtomicU8::new(0);

/// Switches an observer on or off.
pub(crate) fn switch(observer: Observer, on: bool) {
    if on {
        OBSERVERS.fetch_or(observer as u8, Ordering::Relaxed);
    } else {
        OBSERVERS.fetch_and(!(observer as u8), Ordering::Relaxed);
    }
}

/// Returns whether any observer is on.
#[inline(always)]
pub(crate) fn is_observed() -> bool {
    OBSERVERS.load(Ordering::Relaxed) != 0
}

/// Returns whether this observer is on.
#[inline(always)]
pub(crate) fn is_told(observer: Observer) -> bool {
    OBSERVERS.load(Ordering::Relaxed) & observer as u8 != 0
}

/// Whether purging by time is on.
static IS_TICKING: AtomicBool = AtomicBool::new(false);

/// Runs a decay tick, if purging by time is on and a tick is due. Call it at the end of a slow path.
#[inline]
pub(crate) fn tick() {
    if IS_TICKING.load(Ordering::Acquire) {
        decay::tick_if_due();
    }
}

pub(crate) fn set_ticking(is_on: bool) {
    IS_TICKING.store(is_on, Ordering::Release);
}
