//! Linux, through rustix: it calls the kernel without libc, so that there is no errno to save. Calls that rustix lacks go through
//! libc.
#![allow(unsafe_code, reason = "mapping memory")]

mod host;
mod pages;

use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

pub(crate) use host::{host_huge_pages, limits, max_mappings, minor_faults, missing_memory};
pub(crate) use pages::{copy_held, count_resident, move_pages, renew};

use super::mapping::{covered, page_bytes};
use super::posix::{real_page_bytes, touch};
use super::{Errno, HostHugePages, is_in_sandbox};

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// Whether the platform has pages that no access may touch.
pub(super) const HAS_GUARDS: bool = true;

/// The clock of [`coarse_ns`](super::coarse_ns).
pub(super) const COARSE_CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;

/// Calls a function of the C library that returns -1 if it fails, and keeps this thread's `errno`. The program may free memory
/// between a failed call of its own and its look at `errno`.
pub(super) fn keeping_errno(call: impl FnOnce() -> libc::c_int) -> Result<(), Errno> {
    // SAFETY: always the address of this thread's `errno`.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let failed = call() == -1;
    // SAFETY: as above.
    let errno = unsafe { &mut *libc::__errno_location() };
    let code = std::mem::replace(errno, before);
    if failed { Err(Errno(code)) } else { Ok(()) }
}

/// Maps `len` bytes of address space that no access may touch.
pub(super) fn map_inaccessible(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, ProtFlags::empty())
}

/// Maps `len` bytes of zeroed memory.
pub(super) fn map_zeroed(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, ProtFlags::READ | ProtFlags::WRITE)
}

/// The flags of all mappings.
const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

fn map(len: usize, protection: ProtFlags) -> Result<NonNull<u8>, Errno> {
    let len = covered(null_mut(), len)?;
    // A test may make pages larger (see `pages`). The kernel does not align mappings to such a size.
    let spare = page_bytes() - real_page_bytes();
    // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
    let whole =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), len.saturating_add(spare), protection, PRIVATE) }?.cast::<u8>();
    let head = whole.addr().next_multiple_of(page_bytes()) - whole.addr();
    let start = whole.wrapping_add(head);
    for (edge, edge_len) in [(whole, head), (start.wrapping_add(len), spare - head)] {
        if edge_len > 0 {
            // SAFETY: an edge of the mapping made above, which is not handed out.
            let _ = unsafe { rustix::mm::munmap(edge.cast(), edge_len) };
        }
    }
    NonNull::new(start).ok_or(Errno(0))
}

/// madvise(2).
///
/// # Safety
/// The range lies within one mapping that belongs to the caller, who knows the effect of the advice on its contents.
unsafe fn advise(at: *mut u8, len: usize, advice: Advice) -> Result<(), Errno> {
    let len = covered(at, len)?;
    if advice != Advice::LinuxDontNeed && is_in_sandbox() {
        return Err(rustix::io::Errno::INVAL.into());
    }
    // SAFETY: the caller's.
    Ok(unsafe { rustix::mm::madvise(at.cast(), len, advice) }?)
}

/// Unmaps a mapping, or an edge of one.
///
/// # Safety
/// The range belongs to the caller, and nobody uses it any more.
pub(super) unsafe fn unmap(at: *mut u8, len: usize) {
    if let Ok(len) = covered(at, len) {
        // SAFETY: the caller's. If the kernel refuses, the range only stays mapped.
        let _ = unsafe { rustix::mm::munmap(at.cast(), len) };
    }
}

/// Makes part of a reservation readable and writable. Parts that already are keep their contents.
///
/// # Safety
/// `[at, at + len)` lies within one reservation.
pub(crate) unsafe fn commit(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the caller's: the range is ours, and access to it only widens.
    Ok(unsafe { rustix::mm::mprotect(at.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }?)
}

/// Whether an [`AddressRange`](super::AddressRange) reserves its range.
pub(super) const IS_RESERVED: bool = false;

/// Maps readable, writable, zeroed memory at an address where nothing is mapped.
///
/// # Errors
/// The system's: `EEXIST` if something is mapped there already. Then nothing has changed.
///
/// # Safety
/// The range lies within one [`AddressRange`](super::AddressRange).
pub(crate) unsafe fn extend(at: *mut u8, len: usize) -> Result<(), Errno> {
    map_at(at, len, ProtFlags::READ | ProtFlags::WRITE)
}

/// Checks that nothing is mapped in a range, and that the process may map it. Maps it for a moment, inaccessible.
///
/// # Errors
/// The system's: `EEXIST` if something is mapped there.
pub(super) fn try_place(at: *mut u8, len: usize) -> Result<(), Errno> {
    map_at(at, len, ProtFlags::empty())?;
    // SAFETY: mapped one line above, and not handed out.
    unsafe { unmap(at, len) };
    Ok(())
}

/// Maps memory at an address where nothing is mapped.
fn map_at(at: *mut u8, len: usize, protection: ProtFlags) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the call replaces no mapping.
    let found = unsafe { rustix::mm::mmap_anonymous(at.cast(), len, protection, PRIVATE | MapFlags::FIXED_NOREPLACE) }?;
    if found.cast() == at {
        return Ok(());
    }
    // Linux before 4.17 treats the address as a hint.
    // SAFETY: mapped above, and not handed out.
    let _ = unsafe { rustix::mm::munmap(found, len) };
    Err(rustix::io::Errno::EXIST.into())
}

macro_rules! advices {
    ($($(#[$doc:meta])+ $name:ident: $advice:ident $(, $refused:ident)?;)+) => {$(
        $(#[$doc])+
        pub(crate) unsafe fn $name(at: *mut u8, len: usize) -> Result<(), Errno> {
            // SAFETY: the caller's: it knows the effect on the contents.
            let advised = unsafe { advise(at, len, Advice::$advice) };
            $(let advised = $refused(advised);)?
            advised
        }
    )+};
}

advices! {
    /// Purges the pages at once. The range reads as zeroes afterwards.
    ///
    /// # Safety
    /// The range is committed, and nobody needs its contents.
    discard: LinuxDontNeed;

    /// Purges the pages lazily: the kernel may take them when it runs short of memory. Until then they keep their contents. A write to a
    /// page cancels this.
    ///
    /// # Safety
    /// The range is committed, and nobody needs its contents.
    purge_lazily: LinuxFree, unless_in_sandbox;

    /// Prefaults the range, writable. No contents change, so that other threads may own parts of the range. Does nothing before Linux
    /// 5.14, which has no such call, and in a [sandbox](super::is_in_sandbox).
    ///
    /// # Safety
    /// The range is committed.
    prefault: LinuxPopulateWrite, unless_unknown;

    /// Asks for huge pages in the range.
    ///
    /// # Safety
    /// The range lies within one reservation.
    advise_huge: LinuxHugepage, unless_in_sandbox;

    /// Forbids huge pages in the range. A kernel that was built without them has nothing to forbid: that is no error.
    ///
    /// # Safety
    /// The range lies within one reservation.
    forbid_huge: LinuxNoHugepage, unless_unknown;

    /// Leaves the range out of a child of `fork`: nothing is mapped there.
    ///
    /// # Safety
    /// The range lies within one mapping that belongs to the caller, and no child uses it.
    leave_out_of_children: LinuxDontFork;

    /// Has a child of `fork` inherit a range that was [left out](leave_out_of_children).
    ///
    /// # Safety
    /// As there.
    hand_to_children: LinuxDoFork;

    /// Leaves the range out of core dumps.
    ///
    /// # Safety
    /// The range lies within one mapping that belongs to the caller.
    leave_out_of_dumps: LinuxDontDump;

    /// Makes the range read as zeroes in a child of `fork`.
    ///
    /// # Safety
    /// The range lies within one mapping that belongs to the caller, and a child works with zeroes in it.
    wipe_on_fork: LinuxWipeOnFork;

    /// Has a child of `fork` inherit the range again.
    ///
    /// # Safety
    /// The range belongs to the caller alone, and is not [wiped](wipe_on_fork) for another reason.
    keep_on_fork: LinuxKeepOnFork;
}

/// Makes the C library return free memory of its heap to the system.
#[cfg(target_env = "gnu")]
pub(crate) fn trim_heap() {
    unsafe extern "C" {
        // malloc_trim(3): releases whole pages, and keeps `pad` bytes at the top.
        safe fn malloc_trim(pad: usize) -> core::ffi::c_int;
    }
    malloc_trim(0);
}

/// Does nothing: only glibc can trim its heap.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn trim_heap() {}

/// Prefaults the range, writable.
///
/// # Errors
/// The system's, if it has no memory or the memory is broken. Part of the range may be prefaulted then.
///
/// # Safety
/// The range is committed, and belongs to the caller alone.
pub(crate) unsafe fn populate(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: advice that changes no contents, on a range of ours.
    match unsafe { advise(at, len, Advice::LinuxPopulateWrite) } {
        // Before Linux 5.14, or in a sandbox: touch each page, without changing its contents. Not after other errors: a touch of a
        // page that the kernel could not prefault (no memory, broken memory) would kill the process.
        Err(refused) if refused == rustix::io::Errno::INVAL.into() => {
            // SAFETY: the caller's.
            unsafe { touch(at, len, real_page_bytes()) };
            Ok(())
        }
        other => other,
    }
}

/// Counts advice as given that [`advise`] skipped in a [sandbox](super::is_in_sandbox).
fn unless_in_sandbox(advised: Result<(), Errno>) -> Result<(), Errno> {
    if is_in_sandbox() { Ok(()) } else { advised }
}

/// Counts advice as given that this kernel does not know, or that a [sandbox](super::is_in_sandbox) rules out.
fn unless_unknown(advised: Result<(), Errno>) -> Result<(), Errno> {
    if advised == Err(rustix::io::Errno::INVAL.into()) { Ok(()) } else { advised }
}

/// Gives each advice of the arena once, to a page that nobody uses, and moves that page once. Some tools record the calls of a
/// program while it starts, and later forbid all others. They see here which calls the arena will make.
pub(super) fn rehearse(huge_pages: HostHugePages) {
    let Ok(pages) = super::map_zeroed(2 * page_bytes()) else { return };
    let (at, len) = (pages.start().as_ptr(), page_bytes());
    // This advice puts the process on a list of the kernel, so skip it if the arena will not ask for huge pages.
    let asks = huge_pages == HostHugePages::Available;
    let advices = [
        Advice::LinuxPopulateWrite,
        Advice::LinuxFree,
        Advice::LinuxDontNeed,
        if asks { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage },
        Advice::LinuxNoHugepage,
        Advice::LinuxDontDump,
        Advice::LinuxWipeOnFork,
        Advice::LinuxKeepOnFork,
    ];
    // The kernel refuses advice that it does not know.
    for advice in advices {
        // SAFETY: a page that nobody uses.
        let _ = unsafe { advise(at, len, advice) };
    }
    // SAFETY: two pages that nobody uses.
    unsafe { pages::try_move(at) };
    pages::rehearse_copy();
    #[cfg(feature = "profile")]
    super::may_be_on_signal_stack();
}
