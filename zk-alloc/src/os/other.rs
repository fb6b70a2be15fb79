//! Platforms other than Unix. They can't reserve address space, so the arena stays inert and the backing allocator serves everything.
//! Modules that need zeroed memory of their own get it from the system allocator.
#![allow(unsafe_code, reason = "the signatures of the other platforms, and memory of the system allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::ptr::NonNull;

pub(crate) use super::absent::{
    copy_held, count_resident, host_huge_pages, max_mappings, missing_memory, move_pages, renew, trim_heap,
};
use super::{Errno, Limits};

/// The error of every call: there is no arena.
pub(super) const UNSUPPORTED: Errno = Errno(0);

absent!(
    Err(UNSUPPORTED) => commit, extend, discard, advise_huge, forbid_huge, purge_lazily, prefault, populate, lock,
    unlock, leave_out_of_dumps, wipe_on_fork, leave_out_of_children, hand_to_children
);

/// Whether the platform has pages that no access may touch.
pub(super) const HAS_GUARDS: bool = false;

/// The alignment of memory from [`map_zeroed`], in bytes.
pub(super) fn real_page_bytes() -> usize {
    4096
}

/// The layout of `len` bytes, aligned to a page.
fn pages(len: usize) -> Result<Layout, Errno> {
    Layout::from_size_align(len, super::page_bytes()).map_err(|_| UNSUPPORTED)
}

/// Refused: this platform has no arena.
pub(super) fn map_inaccessible(_len: usize) -> Result<NonNull<u8>, Errno> {
    Err(UNSUPPORTED)
}

/// Allocates `len` bytes of zeroed memory.
pub(super) fn map_zeroed(len: usize) -> Result<NonNull<u8>, Errno> {
    let layout = pages(len)?;
    if layout.size() == 0 {
        return Err(UNSUPPORTED);
    }
    // SAFETY: the layout has a size.
    NonNull::new(unsafe { System.alloc_zeroed(layout) }).ok_or(Errno(0))
}

/// Frees memory.
///
/// # Safety
/// `at` and `len` are those of one [`map_zeroed`], and nobody uses the memory any more.
pub(super) unsafe fn unmap(at: *mut u8, len: usize) {
    if let Ok(layout) = pages(len) {
        // SAFETY: the caller's: the memory came from `System` with this layout.
        unsafe { System.dealloc(at, layout) };
    }
}

/// Whether an [`AddressRange`](super::AddressRange) reserves its range: this platform has none.
pub(super) const IS_RESERVED: bool = false;

/// Refused: this platform has no arena.
pub(super) fn try_place(_at: *mut u8, _len: usize) -> Result<(), Errno> {
    Err(UNSUPPORTED)
}

/// `None`: here, only the standard library tells when a thread ends.
pub(crate) fn thread_exit_key(_run: unsafe extern "C" fn(*mut c_void)) -> Option<u32> {
    None
}

/// Does nothing: there are no keys.
pub(crate) fn return_key(_key: u32) {}

/// Refused: there are no keys.
pub(crate) fn arm_thread_exit(_key: u32, _value: NonNull<u8>) -> bool {
    false
}

/// `false`: this platform has no such call.
pub(crate) fn fence_other_threads() -> bool {
    false
}

/// No signal can be handled here.
pub(crate) fn signal_number(_text: &str) -> Option<i32> {
    None
}

/// No signal can be handled here.
pub(crate) fn on_signal(_number: i32, _run: fn()) -> bool {
    false
}

/// There are no signal handlers.
#[cfg(feature = "profile")]
pub(crate) fn may_be_on_signal_stack() -> bool {
    false
}

/// `false`: no signal interrupts a thread on this platform.
pub(crate) fn may_be_in_signal_handler() -> bool {
    false
}

/// The number of threads that can run at once, at least 1, and 0 for the memory, which is unknown.
pub(crate) fn limits() -> Limits {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Limits { threads, memory_bytes: 0, is_memory_grouped: false }
}

/// Unknown on this platform.
pub(crate) fn lockable_bytes() -> usize {
    0
}

/// Unknown on this platform.
pub(crate) fn minor_faults() -> u64 {
    0
}

/// Nanoseconds of the wall clock. It may be set, so that a wait may last longer or shorter.
pub(crate) fn monotonic_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// As [`monotonic_ns`].
pub(crate) fn coarse_ns() -> u64 {
    monotonic_ns()
}

/// Writes to standard error, and ignores errors.
pub(crate) fn write_stderr(bytes: &[u8]) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), bytes);
}
