//! What Linux and other Unix systems answer alike, through libc.
#![allow(unsafe_code, reason = "calls the C library")]

use super::imp::keeping_errno;
use super::mapping::covered;
use super::{Errno, imp};

/// The machine's page size. The C library knows it; rustix may allocate to find it.
pub(super) fn real_page_bytes() -> usize {
    /// The largest of any system, used if this one does not tell its own.
    const MAX_PAGE_BYTES: usize = 64 << 10;
    // SAFETY: only reads a number, which the C library has from the start.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(MAX_PAGE_BYTES)
}

/// Faults the range in, and locks it in memory, so that it is never written to swap.
///
/// # Safety
/// The range is committed, and lies within one mapping that belongs to the caller.
pub(crate) unsafe fn lock(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: changes no contents, on a range of ours.
    keeping_errno(|| unsafe { libc::mlock(at.cast(), len) })
}

/// Unlocks a range that [`lock`] locked.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn unlock(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: changes no contents.
    keeping_errno(|| unsafe { libc::munlock(at.cast(), len) })
}

/// The bytes that this process may lock in memory now (`RLIMIT_MEMLOCK`).
pub(crate) fn lockable_bytes() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Nanoseconds of a clock that only goes forward.
pub(crate) fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// As [`monotonic_ns`]. On Linux it is up to a few milliseconds behind, and as cheap as a few loads: it reads no counter of the processor,
/// and makes no system call.
pub(crate) fn coarse_ns() -> u64 {
    read_ns(imp::COARSE_CLOCK)
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time. If the system had no such clock, the time would stand still.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Touches each page of a range, without changing its contents.
///
/// # Safety
/// The range is readable and writable, and the caller's alone.
pub(super) unsafe fn touch(at: *mut u8, len: usize, page_bytes: usize) {
    for offset in (0..len).step_by(page_bytes) {
        let page = at.wrapping_add(offset);
        // SAFETY: a byte of the caller's range.
        unsafe { page.write_volatile(page.read_volatile()) };
    }
}
