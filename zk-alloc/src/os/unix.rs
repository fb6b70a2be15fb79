//! Other Unix systems, through libc.
#![allow(unsafe_code, reason = "mapping memory")]

use std::ptr::{NonNull, null_mut};

use super::pages::covered;
use super::{Errno, HostHugePages, NotMoved};

fn last_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn checked(result: libc::c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Whether pages can be made that no access may touch.
pub(super) const HAS_GUARDS: bool = true;

/// The size of a page of the machine's.
pub(super) fn real_page_bytes() -> usize {
    // SAFETY: only reads a number from the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(MAX_PAGE_BYTES)
}

/// The largest page of any system, should one not name its own.
const MAX_PAGE_BYTES: usize = 64 << 10;

fn map(len: usize, protection: libc::c_int) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
    let start = unsafe { libc::mmap(null_mut(), len, protection, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0) };
    if start == libc::MAP_FAILED { Err(last_error()) } else { NonNull::new(start.cast()).ok_or(Errno(0)) }
}

/// `len` bytes of address space that no access may touch.
pub(super) fn map_inaccessible(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, libc::PROT_NONE)
}

/// `len` bytes of zeroed memory.
pub(super) fn map_zeroed(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, libc::PROT_READ | libc::PROT_WRITE)
}

/// Gives a mapping, or an edge of one, back.
///
/// # Safety
/// The range is the caller's, and nobody uses it any more.
pub(super) unsafe fn unmap(at: *mut u8, len: usize) {
    // SAFETY: the caller's. If the kernel refuses, the range only stays mapped.
    let _ = unsafe { libc::munmap(at.cast(), len) };
}

/// Makes a part of a reservation readable and writable. What was so before keeps its contents.
///
/// # Safety
/// `[at, at + len)` lies within one reservation.
pub(crate) unsafe fn commit(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the caller's: the range is ours, and access to it only widens.
    checked(unsafe { libc::mprotect(at.cast(), len, libc::PROT_READ | libc::PROT_WRITE) })
}

/// Whether a [`Room`](super::Room) is reserved: these systems can't map at a place without replacing what is there.
pub(super) const IS_RESERVED: bool = true;

/// As [`commit`]: the room is reserved.
///
/// # Errors
/// The system's.
///
/// # Safety
/// The range lies within one [`Room`](super::Room).
pub(crate) unsafe fn extend(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's.
    unsafe { commit(at, len) }
}

/// Lets others run for a moment.
pub(crate) fn nap() {
    std::thread::yield_now();
}

/// Gives the pages back to the kernel; the range reads as zeroes from now on.
///
/// # Errors
/// The system's. Then the range holds what it held, or zeroes.
///
/// # Safety
/// The range is committed, and nobody needs its contents.
pub(crate) unsafe fn discard(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // Elsewhere than on Linux MADV_DONTNEED promises no zeroes; a new mapping in place of the old one does.
    // SAFETY: the caller's: the contents are dead, and the range is wholly inside a mapping of ours.
    let Err(refused) = (unsafe { replace(at, len, libc::PROT_READ | libc::PROT_WRITE) }) else { return Ok(()) };
    // POSIX lets a refused call take the old mapping away all the same. Then there is a hole, which an access would not
    // survive, and in which another thread's mapping may come to lie. Only memory that is mapped can be made accessible:
    // SAFETY: the caller's: the range is ours, and accessible unless it is gone.
    if unsafe { libc::mprotect(at.cast(), len, libc::PROT_READ | libc::PROT_WRITE) } == 0 {
        return Err(refused);
    }
    // The hole is filled again: the old mapping's memory may be had now. Or at least nobody else may have the place.
    // SAFETY: as above.
    let filled = unsafe { replace(at, len, libc::PROT_READ | libc::PROT_WRITE) };
    if filled.is_err() {
        // SAFETY: as above.
        let _ = unsafe { replace(at, len, libc::PROT_NONE) };
    }
    filled
}

/// Maps new memory in place of what is mapped.
///
/// # Safety
/// The range is the caller's, and what it holds is not needed.
unsafe fn replace(at: *mut u8, len: usize, protection: libc::c_int) -> Result<(), Errno> {
    let how = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED;
    // SAFETY: the caller's.
    let start = unsafe { libc::mmap(at.cast(), len, protection, how, -1, 0) };
    if start == libc::MAP_FAILED { Err(last_error()) } else { Ok(()) }
}

/// Lets the kernel take the pages when it runs short; until then, or until they are written to, the contents stay.
///
/// # Safety
/// The range is committed, and nobody needs its contents.
pub(crate) unsafe fn purge_lazily(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the caller's: the contents are dead.
    checked(unsafe { libc::madvise(at.cast(), len, libc::MADV_FREE) })
}

/// Only glibc's heap can be asked.
pub(crate) fn trim_heap() {}

/// Pages the range in, writable.
///
/// # Safety
/// The range is committed, and the caller's alone.
pub(crate) unsafe fn populate(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // The smallest page of any system: touching one twice does no harm.
    for offset in (0..len).step_by(4096) {
        let page = at.wrapping_add(offset);
        // SAFETY: a byte of the range, which is readable and writable, and the caller's alone.
        unsafe { page.write_volatile(page.read_volatile()) };
    }
    Ok(())
}

/// No such call here that leaves what others write at the same time: does nothing.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn prefault(_at: *mut u8, _len: usize) -> Result<(), Errno> {
    Ok(())
}

/// None here.
///
/// # Safety
/// None: refused.
pub(crate) unsafe fn collapse(_at: *mut u8, _len: usize) -> Result<(), Errno> {
    Err(Errno(libc::ENOTSUP))
}

/// No such advice here: asking is no error, and changes nothing.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn advise_huge(_at: *mut u8, _len: usize) -> Result<(), Errno> {
    Ok(())
}

/// No such advice here: asking is no error, and changes nothing.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn forbid_huge(_at: *mut u8, _len: usize) -> Result<(), Errno> {
    Ok(())
}

/// Pages the range in, and keeps it in memory: none of it is written to swap.
///
/// # Safety
/// The range is committed, and lies within one mapping of the caller's.
pub(crate) unsafe fn lock(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no contents, on a range of ours.
    checked(unsafe { libc::mlock(at.cast(), len) })
}

/// Refused: no such advice that all these systems have.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn leave_out_of_dumps(_at: *mut u8, _len: usize) -> Result<(), Errno> {
    Err(Errno(libc::ENOTSUP))
}

/// Refused: no such advice that all these systems have.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn wipe_on_fork(_at: *mut u8, _len: usize) -> Result<(), Errno> {
    Err(Errno(libc::ENOTSUP))
}

/// No such call here.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn move_pages(_from: *mut u8, _to: *mut u8, _len: usize) -> Result<(), NotMoved> {
    Err(Errno(libc::ENOTSUP).into())
}

/// Not told: these systems' mincore(2) answer in ways of their own.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn count_resident(_at: *const u8, _len: usize) -> Option<usize> {
    None
}

/// Processors that are running, at least 1, and the machine's memory, in bytes.
pub(crate) fn threads_and_memory() -> (usize, usize) {
    (running_processors(), memory_bytes())
}

fn running_processors() -> usize {
    // SAFETY: only reads a number from the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1).max(1)
}

/// Page faults of this process so far that needed no disk.
pub(crate) fn minor_faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the place is large enough, and all zeroes is a valid value should the call fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_minflt).unwrap_or(0)
}

/// Nanoseconds of a clock that only goes forward.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time. Where the system had no such clock, the time would stand still.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// As [`monotonic_ns`]: no coarser clock that all these systems have.
pub(crate) fn coarse_ns() -> u64 {
    monotonic_ns()
}

/// None that a program could ask for.
pub(crate) fn host_huge_pages() -> HostHugePages {
    HostHugePages::Unavailable
}

fn memory_bytes() -> usize {
    // SAFETY: both only read numbers from the system.
    let (pages, page_bytes) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(page_bytes).unwrap_or(0))
}

/// Runs a function of the C library's that returns -1 where it fails. `errno` is not kept here.
pub(super) fn keeping_errno(call: impl FnOnce() -> libc::c_int) -> Result<(), Errno> {
    checked(call().min(0))
}
