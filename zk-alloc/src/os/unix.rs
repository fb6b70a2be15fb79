//! Other Unix systems, through libc.
#![allow(unsafe_code, reason = "mapping memory")]

use std::ptr::{NonNull, null_mut};

pub(crate) use super::absent::{
    copy_held, count_resident, host_huge_pages, max_mappings, missing_memory, move_pages, renew, trim_heap,
};
use super::mapping::covered;
use super::posix::touch;
use super::{Errno, Limits};

/// The error of a call that these systems lack, or have no advice in common for.
pub(super) const UNSUPPORTED: Errno = Errno(libc::ENOTSUP);

absent!(Err(UNSUPPORTED) => leave_out_of_dumps, wipe_on_fork, keep_on_fork, leave_out_of_children, hand_to_children);
// Left out without an error: what serves does so without them, too.
absent!(Ok(()) => prefault, advise_huge, forbid_huge);

fn last_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn checked(result: libc::c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Whether the platform has pages that no access may touch.
pub(super) const HAS_GUARDS: bool = true;

/// The clock of [`coarse_ns`](super::coarse_ns): these systems have no coarser one in common.
pub(super) const COARSE_CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

fn map(len: usize, protection: libc::c_int) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
    let start = unsafe { libc::mmap(null_mut(), len, protection, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0) };
    if start == libc::MAP_FAILED { Err(last_error()) } else { NonNull::new(start.cast()).ok_or(Errno(0)) }
}

/// Maps `len` bytes of address space that no access may touch.
pub(super) fn map_inaccessible(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, libc::PROT_NONE)
}

/// Maps `len` bytes of zeroed memory.
pub(super) fn map_zeroed(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, libc::PROT_READ | libc::PROT_WRITE)
}

/// Unmaps a mapping, or an edge of one.
///
/// # Safety
/// The range belongs to the caller, and nobody uses it any more.
pub(super) unsafe fn unmap(at: *mut u8, len: usize) {
    // SAFETY: the caller's. If the kernel refuses, the range only stays mapped.
    let _ = unsafe { libc::munmap(at.cast(), len) };
}

/// Makes part of a reservation readable and writable. Parts that already are keep their contents.
///
/// # Safety
/// `[at, at + len)` lies within one reservation.
pub(crate) unsafe fn commit(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the caller's: the range is ours, and access to it only widens.
    checked(unsafe { libc::mprotect(at.cast(), len, libc::PROT_READ | libc::PROT_WRITE) })
}

/// Whether an [`AddressRange`](super::AddressRange) reserves its range. These systems can't map at an address without replacing other mappings.
pub(super) const IS_RESERVED: bool = true;

/// Unsupported: the range is reserved.
///
/// # Errors
/// Always.
pub(super) fn try_place(_at: *mut u8, _len: usize) -> Result<(), Errno> {
    Err(UNSUPPORTED)
}

/// As [`commit`], because the range is reserved.
///
/// # Errors
/// The system's.
///
/// # Safety
/// The range lies within one [`AddressRange`](super::AddressRange).
pub(crate) unsafe fn extend(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's.
    unsafe { commit(at, len) }
}

/// Purges the pages. The range reads as zeroes afterwards.
///
/// # Errors
/// The system's. The range then has its old contents, or reads as zeroes. If the system has unmapped it and grants no new memory, it
/// is not accessible.
///
/// # Safety
/// The range is committed, and nobody needs its contents.
pub(crate) unsafe fn discard(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // MADV_DONTNEED promises no zeroes outside of Linux. A new mapping in place of the old one does.
    // SAFETY: the caller's: the contents are dead, and the range lies inside a mapping of ours.
    let Err(refused) = (unsafe { replace(at, len, libc::PROT_READ | libc::PROT_WRITE) }) else { return Ok(()) };
    // POSIX allows a refused call to unmap the old mapping. An access to that hole would crash the process, and another thread's
    // mapping may come to lie there. mprotect(2) succeeds only if the memory is mapped.
    // SAFETY: the caller's: the range is ours, and accessible unless it is gone.
    if unsafe { libc::mprotect(at.cast(), len, libc::PROT_READ | libc::PROT_WRITE) } == 0 {
        return Err(refused);
    }
    // Fill the hole: the memory of the old mapping may be available now. If not, try at least to keep other mappings out.
    // SAFETY: as above.
    let filled = unsafe { replace(at, len, libc::PROT_READ | libc::PROT_WRITE) };
    if filled.is_err() {
        // SAFETY: as above.
        let _ = unsafe { replace(at, len, libc::PROT_NONE) };
    }
    filled
}

/// Maps new memory in place of the old.
///
/// # Safety
/// The range belongs to the caller, and nobody needs its contents.
unsafe fn replace(at: *mut u8, len: usize, protection: libc::c_int) -> Result<(), Errno> {
    let how = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED;
    // SAFETY: the caller's.
    let start = unsafe { libc::mmap(at.cast(), len, protection, how, -1, 0) };
    if start == libc::MAP_FAILED { Err(last_error()) } else { Ok(()) }
}

/// Purges the pages lazily: the kernel may take them when it runs short of memory. Until then they keep their contents. A write to a
/// page cancels this.
///
/// # Safety
/// The range is committed, and nobody needs its contents.
pub(crate) unsafe fn purge_lazily(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the caller's: the contents are dead.
    checked(unsafe { libc::madvise(at.cast(), len, libc::MADV_FREE) })
}

/// Prefaults the range, writable.
///
/// # Safety
/// The range is committed, and belongs to the caller alone.
pub(crate) unsafe fn populate(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // The smallest page size of any system: touching a page twice does no harm.
    // SAFETY: the caller's.
    unsafe { touch(at, len, 4096) };
    Ok(())
}

/// The running processors, and the machine's memory.
pub(crate) fn limits() -> Limits {
    Limits { threads: running_processors(), memory_bytes: memory_bytes(), is_memory_grouped: false }
}

fn running_processors() -> usize {
    // SAFETY: only reads a number from the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1).max(1)
}

/// Page faults of this process so far that read nothing from a disk.
pub(crate) fn minor_faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the place is large enough, and all zeroes is a valid value should the call fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_minflt).unwrap_or(0)
}

fn memory_bytes() -> usize {
    // SAFETY: both only read numbers from the system.
    let (pages, page_bytes) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(page_bytes).unwrap_or(0))
}

/// Calls a function of the C library that returns -1 if it fails. Does not keep `errno`.
pub(super) fn keeping_errno(call: impl FnOnce() -> libc::c_int) -> Result<(), Errno> {
    checked(call().min(0))
}
