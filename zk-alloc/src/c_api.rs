//! An interface to the arena for callers that free memory without passing its length, as C does. `integrations/preload` is built on it.
//! Semantic versioning does not cover this module.
//!
//! Nothing here sets `errno`, unwinds, or checks whether a phase is open: the caller decides which requests the arena serves.
#![allow(unsafe_code, reason = "hands out memory, and frees it")]

use std::ptr::NonNull;

use crate::arena::{self, Contents};
pub use crate::arena::{NotFreeable, Unserved};
pub use crate::background::start_background_thread_if_set;
use crate::classes::Class;
use crate::config::Settings;
pub use crate::config::{is_off, min_bytes_setting, profile_mean_bytes, warn_of_settings};
pub use crate::os::{is_in_sandbox, postpone_asking_host, warn as print_line, write_line};
pub use crate::profile::on_signal as profile_on_signal;
pub use crate::retain::release_on_signal_if_set;
pub use crate::tuning::{malloc_warmup_bytes, migrate_max_bytes};
use crate::{accounts, allocator, gate, observe, os, retain};

/// The alignment of C's allocation functions, in bytes: `alignof(max_align_t)`.
pub const MIN_ALIGN: usize = 16;

/// The result of an attempt to change the length of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resized {
    /// The memory has the new length, and kept its contents. It is at this address, which may be the old one.
    To(NonNull<u8>),
    /// Nothing changed: the memory still has this many bytes. The caller must allocate new memory and copy the contents.
    Not(usize),
}

/// Allocates from the arena. `first` runs before the first request of the process is served. Its argument says whether it may call the
/// backing allocator: `false` if the request may come from a signal handler, otherwise `true`.
///
/// `align` is a power of two.
///
/// # Errors
/// If the arena does not serve the request. The error says what to do instead.
#[inline]
pub fn alloc(size: usize, align: usize, zeroed: bool, first: impl FnOnce(bool)) -> Result<NonNull<u8>, Unserved> {
    // A run has at least one byte.
    let size = size.max(1);
    let contents = if zeroed { Contents::Zeroed } else { Contents::Any };
    // Larger lengths would overflow when they are rounded up.
    let is_sane = size <= isize::MAX as usize && align <= isize::MAX as usize / 2;
    // A library that is preloaded into any program has no settings of its own.
    let arena = arena::open_to_serve(&Settings::new(), |in_signal_handler| {
        first(!in_signal_handler);
        retain::follow_live();
    });
    let served = match arena {
        Some(arena) if is_sane => arena.alloc_measured(size, align, contents),
        _ => Err(Unserved::BackingServes),
    };
    accounts::check_memory_limit();
    match served {
        Ok(at) => _ = observe::allocated(at, size),
        Err(Unserved::BackingServes) => accounts::overflowed(size),
        Err(Unserved::Fails) => {}
    }
    served
}

/// Takes a block from this thread's cache: the fast path of [`alloc`].
#[inline(always)]
#[must_use]
pub fn alloc_cached(size: usize) -> Option<NonNull<u8>> {
    let at = arena::alloc_cached(Class::of_usual(size.max(1), MIN_ALIGN)?)?;
    observe::allocated(at, size);
    Some(at)
}

/// The result of [`put_cached`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// The address is that of a block, which is now free.
    Done,
    /// The arena does not own the address. Nothing was done.
    Elsewhere,
    /// Only [`dealloc`] can tell whether this is a block. Nothing was done.
    Unknown,
}

/// Puts a block into this thread's cache, if the cache has room: the fast path of [`dealloc`].
///
/// # Safety
/// As for [`dealloc`].
#[inline(always)]
#[must_use]
pub unsafe fn put_cached(at: *mut u8) -> Cached {
    let Some((arena, at)) = arena::near(at) else { return Cached::Elsewhere };
    // SAFETY: upheld by the caller; the address is in the region, whose slabs belong to the arena.
    let is_cached =
        !(gate::is_observed() && observe::may_concern(at.as_ptr())) && unsafe { arena.put_cached_measured(at) };
    if is_cached { Cached::Done } else { Cached::Unknown }
}

/// Returns whether an address belongs to the arena's memory. Returns `false` for memory that another allocator handed out and still owns.
#[inline(always)]
#[must_use]
pub fn owns(at: *mut u8) -> bool {
    arena::of(at).is_some()
}

/// Returns the length, in bytes, of the allocation at an address that [`alloc`] returned. Returns 0 outside of the arena, and where no
/// allocation begins.
#[must_use]
pub fn usable_size(at: *mut u8) -> usize {
    arena::of(at).and_then(|(arena, at)| arena.measure(at).ok()).unwrap_or(0)
}

/// The result of [`dealloc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The arena owned the memory, which is free now.
    Here,
    /// The arena does not own the address. Nothing was done.
    Elsewhere,
    /// The arena owns the address, but no allocation begins there. Nothing was done.
    Not(NotFreeable),
}

/// Frees memory that [`alloc`] returned.
///
/// # Safety
/// If [`alloc`] returned the address, the caller owns the memory, and must not use it afterwards.
#[inline]
pub unsafe fn dealloc(at: *mut u8) -> Freed {
    let Some((arena, at)) = arena::of(at) else { return Freed::Elsewhere };
    observe::will_free(at.as_ptr());
    // SAFETY: upheld by the caller; the address is in the region.
    unsafe { arena.dealloc_measured(at) }.map_or_else(Freed::Not, |()| Freed::Here)
}

/// Changes the length of memory that [`alloc`] returned, so that the caller need not copy it.
///
/// # Errors
/// If no allocation of the arena begins there. The error says what is wrong.
///
/// # Safety
/// The caller owns the memory, and must not use bytes beyond `new_size` afterwards. If this returns another address, the caller must not
/// use the old one either.
pub unsafe fn resize(at: *mut u8, new_size: usize) -> Result<Resized, NotFreeable> {
    let (arena, at) = arena::of(at).ok_or(NotFreeable::NoRun)?;
    let old_size = arena.measure(at)?;
    if new_size > isize::MAX as usize {
        return Ok(Resized::Not(old_size));
    }
    // SAFETY: upheld by the caller; the memory is `old_size` bytes long. If it moves, its old address is not used afterwards.
    let resized = unsafe { allocator::resize(arena, at, old_size, new_size, MIN_ALIGN) };
    if resized == Some(at) {
        // SAFETY: upheld by the caller; the memory is `new_size` bytes long.
        unsafe { arena.measured_anew(at, new_size) };
    }
    Ok(resized.map_or(Resized::Not(old_size), Resized::To))
}

/// Copies `bytes` bytes from `from`, which [`alloc`] returned, to `to`. If both are large page runs of the arena, the copy may skip pages
/// of `from` that were never touched. Does nothing if `from` is outside of the arena.
///
/// # Safety
/// Both allocations are at least `bytes` long, belong to the caller alone, and do not overlap.
pub unsafe fn copy(from: *mut u8, to: *mut u8, bytes: usize) {
    if let Some((arena, from)) = arena::of(from) {
        // SAFETY: upheld by the caller.
        unsafe { arena.copy(from, to, bytes) };
    }
}

/// Shrinks memory that [`alloc`] returned, in place.
///
/// # Safety
/// As for [`resize`], and `new_size` is less than the length of the memory.
pub unsafe fn shrink_in_place(at: *mut u8, new_size: usize) {
    let Some((arena, at)) = arena::of(at) else { return };
    if let Ok(old_size) = arena.measure(at) {
        // SAFETY: upheld by the caller; the memory is `old_size` bytes long. An allocation keeps at least one byte.
        unsafe {
            arena.shrink_in_place(at, old_size, new_size.max(1));
            arena.measured_anew(at, new_size.max(1));
        }
        observe::resized(at, new_size.max(1));
    }
}

/// Prepares for a sandbox that kills the process for an unexpected system call. Reads what the arena needs to know about the host.
/// Afterwards, the arena makes only the system calls of glibc's malloc.
pub fn enter_sandbox() {
    os::host();
    os::process_generation();
    os::enter_sandbox();
}

/// Purges all free memory of the arena, but none of glibc's heap. Returns the number of bytes purged.
pub fn trim() -> usize {
    retain::trim(arena::Purge::Now)
}

/// Returns the number of minor page faults of this process so far (those without a disk read).
#[must_use]
pub fn minor_faults() -> u64 {
    os::minor_faults()
}
