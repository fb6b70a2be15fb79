//! Linux, through rustix: no libc between us and the kernel, no errno to save.
#![allow(unsafe_code, reason = "mapping memory")]

use std::ptr::{NonNull, null_mut};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::{Errno, HUGE_PAGE_BYTES, HostHugePages};

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// Whether pages can be made that no access may touch.
pub(super) const HAS_GUARDS: bool = true;

/// The size of a page.
pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// `len` bytes of address space that no access may touch.
pub(super) fn map_inaccessible(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, ProtFlags::empty())
}

/// `len` bytes of zeroed memory.
pub(super) fn map_zeroed(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, ProtFlags::READ | ProtFlags::WRITE)
}

fn map(len: usize, protection: ProtFlags) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
    let start =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE | MapFlags::NORESERVE) }?;
    NonNull::new(start.cast()).ok_or(Errno(0))
}

/// Gives a mapping, or an edge of one, back.
///
/// # Safety
/// The range is the caller's, and nobody uses it any more.
pub(super) unsafe fn unmap(at: *mut u8, len: usize) {
    // SAFETY: the caller's. If the kernel refuses, the range only stays mapped.
    let _ = unsafe { rustix::mm::munmap(at.cast(), len) };
}

/// Makes a part of a reservation readable and writable. What was so before keeps its contents.
///
/// # Safety
/// `[at, at + len)` lies within one reservation.
pub(crate) unsafe fn commit(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's: the range is ours, and access to it only widens.
    Ok(unsafe { rustix::mm::mprotect(at.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }?)
}

/// Gives the pages back to the kernel at once; the range reads as zeroes from now on.
///
/// # Safety
/// The range is committed, and nobody needs its contents.
pub(crate) unsafe fn discard(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's: the contents are dead.
    Ok(unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxDontNeed) }?)
}

/// Lets the kernel take the pages when it runs short; until then, or until they are written to, the contents stay.
///
/// # Safety
/// The range is committed, and nobody needs its contents.
pub(crate) unsafe fn soften(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's: the contents are dead.
    Ok(unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxFree) }?)
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
/// # Safety
/// The range is committed, and the caller's alone.
pub(crate) unsafe fn populate(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no contents, on a range of ours.
    if unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite) }.is_err() {
        // Before Linux 5.14: touch each page, without changing what it holds.
        for offset in (0..len).step_by(page_bytes()) {
            let page = at.wrapping_add(offset);
            // SAFETY: a byte of the range, which is readable and writable, and the caller's alone.
            unsafe { page.write_volatile(page.read_volatile()) };
        }
    }
    Ok(())
}

/// Pages the range in, writable, whoever's it is: nothing changes that anybody could read. Before Linux 5.14, which has no
/// such call, does nothing.
///
/// # Safety
/// The range is committed.
pub(crate) unsafe fn page_in(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no contents, on a range of ours.
    unless_unknown(unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite) })
}

/// Asks for huge pages.
///
/// # Safety
/// The range lies within one reservation.
pub(crate) unsafe fn advise_huge(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no contents, on a range of ours.
    Ok(unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxHugepage) }?)
}

/// Asks for no huge pages. A kernel that was built without them has nothing to forbid.
///
/// # Safety
/// The range lies within one reservation.
pub(crate) unsafe fn forbid_huge(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no contents, on a range of ours.
    unless_unknown(unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxNoHugepage) })
}

/// Advice that this kernel does not know was not needed.
fn unless_unknown(advised: rustix::io::Result<()>) -> Result<(), Errno> {
    match advised {
        Err(rustix::io::Errno::INVAL) => Ok(()),
        other => Ok(other?),
    }
}

/// Pages the range in, and keeps it in memory: none of it is written to swap.
///
/// # Safety
/// The range is committed, and lies within one mapping of the caller's.
pub(crate) unsafe fn lock(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no contents, on a range of ours.
    Ok(unsafe { rustix::mm::mlock(at.cast(), len) }?)
}

/// Leaves the range out of core dumps.
///
/// # Safety
/// The range lies within one mapping of the caller's.
pub(crate) unsafe fn leave_out_of_dumps(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no contents, on a range of ours.
    Ok(unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxDontDump) }?)
}

/// Has a child of `fork` find zeroes in the range.
///
/// # Safety
/// The range lies within one mapping of the caller's, and children can do with zeroes.
pub(crate) unsafe fn wipe_on_fork(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no contents in this process, on a range of ours.
    Ok(unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxWipeOnFork) }?)
}

/// What `/sys/kernel/mm/transparent_hugepage/enabled` says, and what a huge page costs.
pub(crate) fn host_huge_pages() -> HostHugePages {
    let mut buffer = [0; 128];
    let text = read_small(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut buffer);
    if !text.contains("[always]") && !text.contains("[madvise]") {
        HostHugePages::Unavailable
    } else if reported_bytes().is_some_and(|bytes| bytes < HUGE_PAGE_BYTES) {
        HostHugePages::Costly
    } else {
        HostHugePages::Available
    }
}

/// In pieces of how many bytes free memory is reported to the hypervisor, which then takes it back; `None` if it is not.
fn reported_bytes() -> Option<usize> {
    let mut buffer = [0; 16];
    let text = read_small(c"/sys/module/page_reporting/parameters/page_reporting_order", &mut buffer);
    // -1 as long as no driver reports.
    page_bytes().checked_shl(text.trim().parse().ok()?)
}

/// Page faults of this process so far that needed no disk.
pub(crate) fn minor_faults() -> u64 {
    let mut buffer = [0; 1024];
    // The second field, the name, may hold spaces and ends with the last parenthesis; minflt is the tenth.
    let text = read_small(c"/proc/self/stat", &mut buffer);
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_ascii_whitespace().nth(7).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// The memory that this process may use, in bytes: the smallest of the machine's and its control groups' limits.
pub(crate) fn memory_limit_bytes() -> usize {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as usize).saturating_mul(info.mem_unit as usize);
    machine.min(cgroup_limit_bytes())
}

/// The tightest `memory.max` (v2) or `memory.limit_in_bytes` (v1) from this process's group up to the root.
fn cgroup_limit_bytes() -> usize {
    let mut buffer = [0; 4096];
    let groups = read_small(c"/proc/self/cgroup", &mut buffer);
    let mut limit = usize::MAX;
    for line in groups.lines() {
        // "0::/path" is v2, "N:memory:/path" is v1.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let mut group = path;
        loop {
            limit = limit.min(read_limit(root, group.trim_end_matches('/'), file));
            match group.trim_end_matches('/').rsplit_once('/') {
                Some((parent, _)) => group = parent,
                None => break,
            }
        }
    }
    limit
}

/// The number in the file `root` `group` `/` `file`, or no limit.
fn read_limit(root: &str, group: &str, file: &str) -> usize {
    let mut path = [0; 1024];
    let mut len = 0;
    for part in [root, group, "/", file] {
        // One byte stays zero: the path's end.
        let Some(place) = path[..1023].get_mut(len..len + part.len()) else { return usize::MAX };
        place.copy_from_slice(part.as_bytes());
        len += part.len();
    }
    let Ok(path) = std::ffi::CStr::from_bytes_until_nul(&path) else { return usize::MAX };
    let mut buffer = [0; 64];
    read_small(path, &mut buffer).trim().parse().unwrap_or(usize::MAX)
}

/// The beginning of a file, as much as the buffer holds; empty if it cannot be read.
fn read_small<'a>(path: &std::ffi::CStr, buffer: &'a mut [u8]) -> &'a str {
    let Ok(file) = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return "" };
    let mut len = 0;
    while let Ok(read @ 1..) = rustix::io::read(&file, &mut buffer[len..]) {
        len += read;
    }
    std::str::from_utf8(&buffer[..len]).unwrap_or("")
}

/// Writes to standard error what it takes; nothing is owed if it takes nothing.
pub(crate) fn write_stderr(bytes: &[u8]) {
    let _ = rustix::io::write(rustix::stdio::stderr(), bytes);
}
