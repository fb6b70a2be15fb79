//! The functions that `zk_alloc.h` declares, for programs that need more than `malloc`.
#![allow(unsafe_code, reason = "functions for C")]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::glibc;
use crate::start::{self, State};

fn is_in_use() -> bool {
    start::state() == State::InUse
}

/// Begins a phase, in which no memory is returned to the system.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zk_alloc_phase_begin() {
    if is_in_use() {
        arena::begin_phase();
    }
}

/// Ends a phase.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zk_alloc_phase_end() {
    if is_in_use() {
        arena::end_phase();
    }
}

/// Makes this number of bytes resident ahead of time, and returns how many are.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zk_alloc_reserve(bytes: usize) -> usize {
    if is_in_use() { arena::reserve(bytes) } else { 0 }
}

/// Purges all free memory, and returns how many bytes of the arena were purged.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zk_alloc_release() -> usize {
    if !is_in_use() {
        return 0;
    }
    // Not zk-alloc's own `release`: it trims the C library's heap through `malloc_trim`, which is ours.
    let gone = arena::c_api::trim();
    glibc::trim(0);
    gone
}

/// Lets the system take free memory when it runs short, and returns how many bytes it may take.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zk_alloc_soften() -> usize {
    if is_in_use() { arena::soften() } else { 0 }
}

/// Starts the background thread, if this process has none; returns 0, or the number of the error.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zk_alloc_start_background_thread() -> c_int {
    if !is_in_use() {
        return 0;
    }
    arena::start_background_thread().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EAGAIN))
}

/// Ends the background thread.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zk_alloc_stop_background_thread() {
    if is_in_use() {
        arena::stop_background_thread();
    }
}

/// The program's function for [`zk_alloc_on_memory_limit`].
static EVENT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Has a function called when the resident bytes reach this share of `ZK_ALLOC_MAX_BYTES`. Null, or 0 percent, is none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn zk_alloc_on_memory_limit(percent: c_uint, event: *mut c_void) {
    if !is_in_use() {
        return;
    }
    let percent = if event.is_null() { 0 } else { u8::try_from(percent).unwrap_or(u8::MAX) };
    EVENT.store(event, Ordering::Release);
    arena::on_memory_limit(percent, |resident_bytes, max_bytes| {
        let event = EVENT.load(Ordering::Acquire);
        if !event.is_null() {
            // SAFETY: the caller's function, which the header declares with this type.
            unsafe { transmute::<*mut c_void, extern "C" fn(usize, usize)>(event)(resident_bytes, max_bytes) };
        }
    });
}

/// `struct zk_alloc_stats`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Stats {
    /// Requests that the arena served, and their bytes.
    pub(crate) allocations: u64,
    pub(crate) allocated_bytes: u64,
    /// Requests for which the arena had no memory.
    pub(crate) overflow_allocations: u64,
    /// The live size now, and its peak, in bytes.
    pub(crate) live_bytes: u64,
    pub(crate) peak_live_bytes: u64,
    /// Bytes that are handed out or retained: resident now, or as soon as they are touched.
    pub(crate) resident_bytes: u64,
    /// Bytes that were handed out fresh; each page costs a fault.
    pub(crate) fresh_bytes: u64,
    /// System calls.
    pub(crate) system_calls: u64,
}

/// Writes the statistics, up to the length that the caller has room for, and returns their full length. Returns 0 if
/// the library is not in use.
///
/// # Safety
/// `size` bytes can be written to `stats`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn zk_alloc_stats(stats: *mut Stats, size: usize) -> usize {
    if !is_in_use() {
        return 0;
    }
    let counted = arena::stats();
    let all = Stats {
        allocations: counted.arena_allocations,
        allocated_bytes: counted.arena_bytes,
        overflow_allocations: counted.overflow_allocations,
        live_bytes: counted.live_bytes as u64,
        peak_live_bytes: counted.peak_live_bytes as u64,
        resident_bytes: counted.resident_bytes as u64,
        fresh_bytes: counted.fresh_bytes,
        system_calls: counted.system_calls,
    };
    // SAFETY: no more than the caller has room for, and no more than the length of `Stats`.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), stats.cast::<u8>(), size.min(size_of::<Stats>()))
    };
    size_of::<Stats>()
}
