//! The arena for who frees memory without its length, as C does: what `integrations/preload` is made of. No part of the promises
//! of this crate's version.
//!
//! Nothing here sets `errno`, unwinds, or asks whether a phase is open: it is the caller who decides what the arena serves.
#![allow(unsafe_code, reason = "hands out memory, and takes it back")]

use std::fmt;
use std::ptr::NonNull;

use crate::arena::{self, Contents, Moment};
use crate::config::{self, Settings};
use crate::{background, counters, os, retain, route};

/// The alignment of C's allocation functions, in bytes: `alignof(max_align_t)`.
pub const MIN_ALIGN: usize = 16;

/// What backing memory may weigh for growth to copy it into the arena, in bytes.
pub const MIGRATE_MAX_BYTES: usize = route::MIGRATE_MAX_BYTES;

/// What glibc's heap is to see come and go once, in bytes, so that it keeps what its small allocations use.
pub const TEACHING_BYTES: usize = route::TEACHING_BYTES;

/// What became of an attempt to change the length of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resized {
    /// The memory is there now, at the same address or with its contents elsewhere.
    To(NonNull<u8>),
    /// It must be copied: it has so many bytes where it is.
    Not(usize),
}

/// `ZK_ALLOC_MIN_BYTES`, if it is set to something of use.
#[must_use]
pub fn min_bytes_setting() -> Option<usize> {
    config::min_bytes_setting()
}

/// Starts the background thread if `ZK_ALLOC_BACKGROUND` says so; where the system refuses, one line says that. For ordinary code.
pub fn start_background_thread_if_set() {
    if config::background_setting() == Some(true) {
        background::start_or_warn();
    }
}

/// Warns of each setting in the environment that can't be used, unless `is_said` holds for its variable. The arena then warns of none when
/// it opens.
pub fn warn_of_settings(is_said: impl Fn(&'static str) -> bool) {
    config::warn_before_opening(is_said);
}

/// Memory of the arena; `None` where it has none. `first` runs before the first request of the process is served, and is told
/// whether that comes in no signal handler, so that the backing allocator may be called.
///
/// `align` is a power of two.
#[inline]
pub fn alloc(size: usize, align: usize, zeroed: bool, first: impl FnOnce(bool)) -> Option<NonNull<u8>> {
    // No run is shorter than its first byte.
    let size = size.max(1);
    let contents = if zeroed { Contents::Zeroed } else { Contents::Any };
    // Beyond that, lengths would overflow once they are rounded up.
    let is_sane = size <= isize::MAX as usize && align <= isize::MAX as usize / 2;
    // Who is loaded into somebody else's program has no settings of its own.
    let arena = || {
        arena::open_to_serve(&Settings::new(), |moment| {
            first(moment == Moment::Calm);
            retain::follow_live();
        })
    };
    let served = if is_sane { arena().and_then(|arena| arena.alloc_measured(size, align, contents)) } else { None };
    if served.is_none() {
        counters::overflowed(size);
    }
    served
}

/// As most requests of [`alloc`] are served: with a block that this thread keeps.
#[inline(always)]
#[must_use]
pub fn alloc_cached(size: usize) -> Option<NonNull<u8>> {
    arena::alloc_cached(size.max(1), MIN_ALIGN)
}

/// As most of what [`alloc`] returned is freed: it is a block, for which the thread has room. `false`, and nothing done, otherwise.
///
/// # Safety
/// As for [`dealloc`].
#[inline(always)]
#[must_use]
pub unsafe fn keep(at: *mut u8) -> bool {
    // SAFETY: the caller's; the address lies in the region.
    arena::near(at).is_some_and(|(arena, at)| unsafe { arena.keep_measured(at) })
}

/// Whether an address is of the arena's memory. An address that others handed out is not, as long as it is theirs.
#[inline(always)]
#[must_use]
pub fn owns(at: *mut u8) -> bool {
    arena::of(at).is_some()
}

/// How many bytes there are at an address that [`alloc`] returned; 0 outside of the arena, and where no run of pages begins. (What lies
/// in the midst of a block is taken for its beginning.)
#[must_use]
pub fn usable_size(at: *mut u8) -> usize {
    arena::of(at).and_then(|(arena, at)| arena.measure(at)).unwrap_or(0)
}

/// Whose an address is that was to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The arena's, and it is free now.
    Here,
    /// Not the arena's: nothing was done.
    Elsewhere,
    /// The arena's, but in no block, and no run of pages begins there: nothing was done.
    Nothing,
}

/// Frees what [`alloc`] returned.
///
/// # Safety
/// If [`alloc`] returned the address, the caller owns the memory, and nobody uses it any more.
#[inline]
pub unsafe fn dealloc(at: *mut u8) -> Freed {
    match arena::of(at) {
        // SAFETY: the caller's; the address lies in the region.
        Some((arena, at)) => match unsafe { arena.dealloc_measured(at) } {
            true => Freed::Here,
            false => Freed::Nothing,
        },
        None => Freed::Elsewhere,
    }
}

/// Changes the length of what [`alloc`] returned without copying it; `None` where the arena has no allocation that begins there.
///
/// # Safety
/// The caller owns it, and uses nothing beyond `new_size`. Where another address is returned, nobody uses the old one any more.
pub unsafe fn resize(at: *mut u8, new_size: usize) -> Option<Resized> {
    let (arena, at) = arena::of(at)?;
    let old_size = arena.measure(at)?;
    if new_size > isize::MAX as usize {
        return Some(Resized::Not(old_size));
    }
    // SAFETY: the caller's; it is `old_size` bytes long.
    if unsafe { arena.resize(at, old_size, new_size, MIN_ALIGN) } {
        // SAFETY: the caller's, as above.
        unsafe { arena.measured_anew(at, new_size) };
        return Some(Resized::To(at));
    }
    // SAFETY: as above; nobody uses the old address of what was moved.
    Some(match unsafe { arena.grow_elsewhere(at, old_size, new_size, MIN_ALIGN) } {
        Some(moved) => Resized::To(moved),
        None => Resized::Not(old_size),
    })
}

/// Shortens what [`alloc`] returned where it stands.
///
/// # Safety
/// As for [`resize`]; `new_size` is less than its length.
pub unsafe fn shrink_in_place(at: *mut u8, new_size: usize) {
    let Some((arena, at)) = arena::of(at) else { return };
    if let Some(old_size) = arena.measure(at) {
        // SAFETY: the caller's; it is `old_size` bytes long. What has no bytes has one granule all the same.
        unsafe {
            arena.shrink_in_place(at, old_size, new_size.max(1));
            arena.measured_anew(at, new_size.max(1));
        }
    }
}

/// Has the host asked when the arena opens or the process [enters a sandbox](enter_sandbox), and not when it starts. To be called
/// before `main`, by a function of priority 104.
pub fn postpone_asking_host() {
    os::postpone_asking_host();
}

/// The process is about to enter a sandbox that may kill it: asks the host what the arena will have to know, and keeps to the calls
/// of glibc's own malloc from now on.
pub fn enter_sandbox() {
    os::host();
    os::enter_sandbox();
}

/// Gives all free memory of the arena back to the system, and of the arena alone. Returns how many bytes went.
pub fn trim() -> usize {
    arena::get().map_or(0, |arena| arena.trim(0, arena::Purge::Now))
}

/// Page faults of this process so far that needed no disk.
#[must_use]
pub fn minor_faults() -> u64 {
    os::minor_faults()
}

/// Writes one line to standard error, by a single call and without allocating; what is longer than 500 bytes is cut.
pub fn print_line(message: fmt::Arguments<'_>) {
    os::warn(message);
}
