//! The functions that `zk_alloc.h` declares, for programs that need more than `malloc`.
#![allow(unsafe_code, reason = "functions for C")]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::glibc;
use crate::start;

/// Defines functions that do nothing, and return 0, if the library is not in use.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty)? = $body:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($argument: $kind),*) $(-> $answer)? {
            if start::is_in_use() { $body } else { Default::default() }
        }
    )*};
}

functions! {
    /// Begins a phase, which pauses the time-based purging of free memory.
    fn zk_alloc_phase_begin() = arena::begin_phase();
    /// Ends a phase.
    fn zk_alloc_phase_end() = arena::end_phase();
    /// Makes this number of bytes resident ahead of time, and returns how many bytes are resident.
    fn zk_alloc_reserve(bytes: usize) -> usize = arena::reserve(bytes);
    /// Purges all free memory, and returns how many bytes of the arena were purged.
    fn zk_alloc_release() -> usize = {
        // zk-alloc's own `release` can't be used here: it trims the C library's heap through `malloc_trim`, which would be this library's
        // own function.
        let gone = arena::c_api::trim();
        glibc::trim(0);
        gone
    };
    /// Lets the kernel reclaim free memory when it runs short, and returns how many bytes it may reclaim.
    fn zk_alloc_soften() -> usize = arena::purge_lazily();
    /// Starts the background thread if this process has none. Returns 0, or an error number.
    fn zk_alloc_start_background_thread() -> c_int =
        arena::start_background_thread().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EAGAIN));
    /// Stops the background thread.
    fn zk_alloc_stop_background_thread() = arena::stop_background_thread();
    /// Registers a function that is called when the resident bytes reach `percent` % of `ZK_ALLOC_MAX_BYTES`. Null or 0 percent unregisters
    /// it.
    fn zk_alloc_on_memory_limit(percent: c_uint, event: *mut c_void) = {
        let percent = if event.is_null() { 0 } else { u8::try_from(percent).unwrap_or(u8::MAX) };
        EVENT.store(event, Ordering::Release);
        arena::on_memory_limit(percent, |resident_bytes, max_bytes| {
            let event = EVENT.load(Ordering::Acquire);
            if !event.is_null() {
                // SAFETY: `event` is the program's function, which the header declares with this type.
                unsafe { transmute::<*mut c_void, extern "C" fn(usize, usize)>(event)(resident_bytes, max_bytes) };
            }
        });
    };
}

/// The function that the program passed to [`zk_alloc_on_memory_limit`].
static EVENT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Copies the statistics to `stats`, but at most `size` bytes. Returns their full length. Returns 0 if the library is not in use.
///
/// # Safety
/// `stats` must be valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn zk_alloc_stats(stats: *mut u8, size: usize) -> usize {
    if !start::is_in_use() {
        return 0;
    }
    let counted = arena::stats();
    // The fields of `struct zk_alloc_stats`.
    let all: [u64; 8] = [
        counted.arena_allocations,
        counted.arena_bytes,
        counted.overflow_allocations,
        counted.live_bytes as u64,
        counted.peak_live_bytes as u64,
        counted.resident_bytes as u64,
        counted.fresh_bytes,
        counted.system_calls,
    ];
    // SAFETY: copies at most `size` bytes, for which `stats` is valid, and at most the length of `all`.
    unsafe { std::ptr::copy_nonoverlapping(all.as_ptr().cast(), stats, size.min(size_of_val(&all))) };
    size_of_val(&all)
}
