//! A thread's way to its cache.
#![allow(unsafe_code, reason = "a thread local without a destructor lasts as long as its thread")]

use std::cell::Cell;

use super::cache::{Cache, Totals};
#[cfg(thread_blocks)]
use crate::os;

/// How this thread stands with its cache. No `Drop`, so that reaching it costs no check and no registration.
pub(super) struct Local {
    pub(super) cache: Cell<Option<&'static Cache>>,
    pub(super) state: Cell<CacheState>,
    /// Requests since there was no cache to be had.
    pub(super) waited: Cell<u16>,
    /// Requests that no cache counts: there was none, or another thread had claimed it.
    pub(super) past_cache: Cell<Totals>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CacheState {
    /// It has none yet, or all were taken. Zero, as all of a [`Local`] is when its thread begins.
    Without = 0,
    /// It is about to have one, and a signal handler interrupted that.
    Joining,
    Joined,
    /// It is exiting, and its cache was released.
    Left,
}

#[cfg(not(thread_blocks))]
thread_local! {
    static LOCAL: Local = const {
        Local {
            cache: Cell::new(None),
            state: Cell::new(CacheState::Without),
            waited: Cell::new(0),
            past_cache: Cell::new(Totals { allocations: 0, bytes: 0 }),
        }
    };
}

/// `LOCAL.with(f)` would be a call of its own.
#[cfg(not(thread_blocks))]
#[inline(always)]
pub(super) fn local() -> Option<&'static Local> {
    // Always there: a thread local without a destructor lasts as long as its thread.
    let local = LOCAL.try_with(std::ptr::from_ref).ok()?;
    // SAFETY: as above, and this is its thread; the reference is not given away.
    Some(unsafe { &*local })
}

/// The compiler's own thread locals would call `malloc`, which this library may be.
#[cfg(thread_blocks)]
#[inline(always)]
pub(super) fn local() -> Option<&'static Local> {
    const _: () = assert!(size_of::<Local>() <= os::THREAD_BLOCK_BYTES && align_of::<Local>() <= 16);
    // SAFETY: this thread's block, which serves nothing else; it is long enough, lasts as long as the thread, and all zeroes is a
    // `Local` that has no cache yet. The reference is not given away.
    Some(unsafe { os::thread_block().cast::<Local>().as_ref() })
}
