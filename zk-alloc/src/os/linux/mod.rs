//! Linux, through rustix: no libc between us and the kernel, no errno to save. Through libc what rustix has not.
#![allow(unsafe_code, reason = "mapping memory")]

mod host;
mod moving;

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU32;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

pub(crate) use host::{coarse_ns, host_huge_pages, minor_faults, monotonic_ns, threads_and_memory};
pub(crate) use moving::{count_resident, move_pages};

use super::pages::{covered, page_bytes};
use super::{Errno, HostHugePages, is_in_sandbox};

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// Whether pages can be made that no access may touch.
pub(super) const HAS_GUARDS: bool = true;

/// The size of a page of the machine's. Of the C library: rustix may allocate to find it out.
pub(super) fn real_page_bytes() -> usize {
    // SAFETY: only reads a number, which the C library has from the start.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Runs a function of the C library's that returns -1 where it fails, and leaves this thread's `errno` as it was: who frees
/// memory between a failed call and its `errno` must find it.
pub(super) fn keeping_errno(call: impl FnOnce() -> libc::c_int) -> Result<(), Errno> {
    // SAFETY: always the address of this thread's own number.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let failed = call() == -1;
    // SAFETY: as above.
    let errno = unsafe { &mut *libc::__errno_location() };
    let code = std::mem::replace(errno, before);
    if failed { Err(Errno(code)) } else { Ok(()) }
}

/// `len` bytes of address space that no access may touch.
pub(super) fn map_inaccessible(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, ProtFlags::empty())
}

/// `len` bytes of zeroed memory.
pub(super) fn map_zeroed(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, ProtFlags::READ | ProtFlags::WRITE)
}

/// How all memory is mapped.
const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

fn map(len: usize, protection: ProtFlags) -> Result<NonNull<u8>, Errno> {
    let len = covered(null_mut(), len)?;
    // Pages that a test made larger (see `pages`) begin on no boundary by themselves.
    let spare = page_bytes() - real_page_bytes();
    // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
    let whole =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), len.saturating_add(spare), protection, PRIVATE) }?.cast::<u8>();
    let head = whole.addr().next_multiple_of(page_bytes()) - whole.addr();
    let start = whole.wrapping_add(head);
    for (edge, edge_len) in [(whole, head), (start.wrapping_add(len), spare - head)] {
        if edge_len > 0 {
            // SAFETY: an edge of the mapping made above, of which nobody knows yet.
            let _ = unsafe { rustix::mm::munmap(edge.cast(), edge_len) };
        }
    }
    NonNull::new(start).ok_or(Errno(0))
}

/// madvise(2).
///
/// # Safety
/// The range lies within one mapping of the caller's, who knows what the advice does to its contents.
unsafe fn advise(at: *mut u8, len: usize, advice: Advice) -> Result<(), Errno> {
    let len = covered(at, len)?;
    if advice != Advice::LinuxDontNeed && is_in_sandbox() {
        return Err(rustix::io::Errno::INVAL.into());
    }
    // SAFETY: the caller's.
    Ok(unsafe { rustix::mm::madvise(at.cast(), len, advice) }?)
}

/// Gives a mapping, or an edge of one, back.
///
/// # Safety
/// The range is the caller's, and nobody uses it any more.
pub(super) unsafe fn unmap(at: *mut u8, len: usize) {
    if let Ok(len) = covered(at, len) {
        // SAFETY: the caller's. If the kernel refuses, the range only stays mapped.
        let _ = unsafe { rustix::mm::munmap(at.cast(), len) };
    }
}

/// Makes a part of a reservation readable and writable. What was so before keeps its contents.
///
/// # Safety
/// `[at, at + len)` lies within one reservation.
pub(crate) unsafe fn commit(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the caller's: the range is ours, and access to it only widens.
    Ok(unsafe { rustix::mm::mprotect(at.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }?)
}

/// Whether a [`Room`](super::Room) is reserved.
pub(super) const IS_RESERVED: bool = false;

/// Maps readable, writable, zeroed memory at a place where none is.
///
/// # Errors
/// The system's: `EEXIST` where something is mapped already. Then nothing has changed.
///
/// # Safety
/// The range lies within one [`Room`](super::Room).
pub(crate) unsafe fn extend(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, PRIVATE | MapFlags::FIXED_NOREPLACE);
    // SAFETY: replaces nothing.
    let found = unsafe { rustix::mm::mmap_anonymous(at.cast(), len, protection, flags) }?;
    if found.cast() == at {
        return Ok(());
    }
    // Linux before 4.17 takes the place for a wish.
    // SAFETY: mapped above, and nobody knows of it.
    let _ = unsafe { rustix::mm::munmap(found, len) };
    Err(rustix::io::Errno::EXIST.into())
}

/// Sleeps for a moment, by a call that whoever has threads needs anyhow.
pub(crate) fn nap() {
    use rustix::thread::futex::{Flags, Timespec, wait};

    let moment = Timespec { tv_sec: 0, tv_nsec: 100_000 };
    let _ = wait(&AtomicU32::new(0), Flags::PRIVATE, 0, Some(&moment));
}

/// Gives the pages back to the kernel at once; the range reads as zeroes from now on.
///
/// # Safety
/// The range is committed, and nobody needs its contents.
pub(crate) unsafe fn discard(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's: the contents are dead.
    unsafe { advise(at, len, Advice::LinuxDontNeed) }
}

/// Lets the kernel take the pages when it runs short; until then, or until they are written to, the contents stay.
///
/// # Safety
/// The range is committed, and nobody needs its contents.
pub(crate) unsafe fn purge_lazily(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's: the contents are dead.
    unless_in_sandbox(|| unsafe { advise(at, len, Advice::LinuxFree) })
}

/// Has the C library give what is free in its heap back to the system.
#[cfg(target_env = "gnu")]
pub(crate) fn trim_heap() {
    unsafe extern "C" {
        // malloc_trim(3): frees whole pages, keeps `pad` bytes at the top.
        safe fn malloc_trim(pad: usize) -> core::ffi::c_int;
    }
    malloc_trim(0);
}

/// Only glibc's heap can be asked.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn trim_heap() {}

/// Pages the range in, writable.
///
/// # Errors
/// The system's, when it has no memory or the memory is broken: then some of the range may be prefaulted.
///
/// # Safety
/// The range is committed, and the caller's alone.
pub(crate) unsafe fn populate(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: advice that changes no contents, on a range of ours.
    match unsafe { advise(at, len, Advice::LinuxPopulateWrite) } {
        // Before Linux 5.14: touch each page, without changing what it holds. Only then: what the kernel itself could not
        // prefault (no memory, broken memory) would end the process when it is touched.
        Err(refused) if refused == rustix::io::Errno::INVAL.into() => {
            for offset in (0..len).step_by(real_page_bytes()) {
                let page = at.wrapping_add(offset);
                // SAFETY: a byte of the range, which is readable and writable, and the caller's alone.
                unsafe { page.write_volatile(page.read_volatile()) };
            }
            Ok(())
        }
        other => other,
    }
}

/// Pages the range in, writable, whoever's it is: nothing changes that anybody could read. Before Linux 5.14, which has no
/// such call, does nothing.
///
/// # Safety
/// The range is committed.
pub(crate) unsafe fn prefault(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no contents, on a range of ours.
    unless_unknown(unsafe { advise(at, len, Advice::LinuxPopulateWrite) })
}

/// Asks for huge pages.
///
/// # Safety
/// The range lies within one reservation.
pub(crate) unsafe fn advise_huge(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no contents, on a range of ours.
    unless_in_sandbox(|| unsafe { advise(at, len, Advice::LinuxHugepage) })
}

/// Makes huge pages of the range, which is a multiple of theirs, whoever's it is: nothing changes that anybody could read (Linux
/// 6.1). What is not in memory becomes so.
///
/// # Errors
/// The system's: where it knows no such call, huge pages are forbidden there, or it has no memory in one piece.
///
/// # Safety
/// The range is committed.
pub(crate) unsafe fn collapse(at: *mut u8, len: usize) -> Result<(), Errno> {
    /// Neither rustix nor libc has it.
    const MADV_COLLAPSE: libc::c_int = 25;
    let len = covered(at, len)?;
    if is_in_sandbox() {
        return Err(Errno(libc::EPERM));
    }
    // SAFETY: changes no contents, on a range of ours.
    keeping_errno(|| unsafe { libc::madvise(at.cast(), len, MADV_COLLAPSE) })
}

/// Asks for no huge pages. A kernel that was built without them has nothing to forbid.
///
/// # Safety
/// The range lies within one reservation.
pub(crate) unsafe fn forbid_huge(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no contents, on a range of ours.
    unless_unknown(unsafe { advise(at, len, Advice::LinuxNoHugepage) })
}

/// Advice that can be left out is left out in a [sandbox](super::sandbox).
fn unless_in_sandbox(advise: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    if is_in_sandbox() { Ok(()) } else { advise() }
}

/// Advice that this kernel does not know, or that is not given in a [sandbox](super::sandbox), was not needed.
fn unless_unknown(advised: Result<(), Errno>) -> Result<(), Errno> {
    if advised == Err(rustix::io::Errno::INVAL.into()) { Ok(()) } else { advised }
}

/// Pages the range in, and keeps it in memory: none of it is written to swap.
///
/// # Safety
/// The range is committed, and lies within one mapping of the caller's.
pub(crate) unsafe fn lock(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: changes no contents, on a range of ours.
    Ok(unsafe { rustix::mm::mlock(at.cast(), len) }?)
}

/// Leaves the range out of core dumps.
///
/// # Safety
/// The range lies within one mapping of the caller's.
pub(crate) unsafe fn leave_out_of_dumps(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no contents, on a range of ours.
    unsafe { advise(at, len, Advice::LinuxDontDump) }
}

/// Has a child of `fork` find zeroes in the range.
///
/// # Safety
/// The range lies within one mapping of the caller's, and children can do with zeroes.
pub(crate) unsafe fn wipe_on_fork(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no contents in this process, on a range of ours.
    unsafe { advise(at, len, Advice::LinuxWipeOnFork) }
}

/// Gives each advice of the arena's once, to a page that nobody uses, and moves it once. Whoever records which calls a program makes
/// while it starts, and forbids it all others afterwards, has seen what the arena will call.
pub(super) fn rehearse(huge_pages: HostHugePages) {
    let Ok(pages) = super::map_zeroed(2 * page_bytes()) else { return };
    let (at, len) = (pages.start().as_ptr(), page_bytes());
    // It puts the process on a list of the kernel's, so that it is left out where no huge pages will be asked for.
    let asks = matches!(huge_pages, HostHugePages::Available | HostHugePages::Unasked);
    let advices = [
        Advice::LinuxPopulateWrite,
        Advice::LinuxFree,
        Advice::LinuxDontNeed,
        if asks { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage },
        Advice::LinuxNoHugepage,
        Advice::LinuxDontDump,
        Advice::LinuxWipeOnFork,
    ];
    // What the kernel does not know it refuses.
    for advice in advices {
        // SAFETY: a page that nobody uses.
        let _ = unsafe { advise(at, len, advice) };
    }
    // SAFETY: pages that nobody uses.
    let _ = unsafe { (commit(at, len), move_pages(at, at.add(len), len), count_resident(at, len)) };
}
