//! Linux, through rustix: it calls the kernel without libc, so there is no errno to save. Calls that rustix lacks go through libc.
#![allow(unsafe_code, reason = "mapping memory")]

mod host;

use std::ptr::{NonNull, copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};
use rustix::thread::{MembarrierCommand, futex, membarrier};

pub(crate) use host::{host_huge_pages, limits, mappings_limit, minor_faults, missing_memory};

use super::mapping::{covered, page_bytes, real_page_bytes, touch};
use super::{Errno, HostHugePages, NotMoved, is_in_sandbox};

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// The clock of [`coarse_ns`](super::coarse_ns).
pub(super) const COARSE_CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;

/// Calls a function of the C library that returns -1 if it fails, and preserves this thread's `errno`. The program may free memory between
/// a failed call of its own and its read of `errno`.
pub(super) fn keeping_errno(call: impl FnOnce() -> libc::c_int) -> Result<(), Errno> {
    // SAFETY: the pointer is valid: it is always the address of this thread's `errno`.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let failed = call() == -1;
    // SAFETY: as above.
    let errno = unsafe { &mut *libc::__errno_location() };
    let code = std::mem::replace(errno, before);
    if failed { Err(Errno(code)) } else { Ok(()) }
}

/// Maps `len` bytes of inaccessible address space.
pub(super) fn map_inaccessible(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, ProtFlags::empty())
}

/// Maps `len` bytes of zeroed memory.
pub(super) fn map_accessible(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, ProtFlags::READ | ProtFlags::WRITE)
}

/// The flags of all mappings.
const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

fn map(len: usize, protection: ProtFlags) -> Result<NonNull<u8>, Errno> {
    let len = covered(null_mut(), len)?;
    // In a test, [`page_bytes`] may be larger than the kernel's pages, to which the kernel aligns the mapping. So map more, and unmap the
    // edges.
    let spare = page_bytes() - real_page_bytes();
    // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
    let whole = unsafe { mmap_anonymous(null_mut(), len.saturating_add(spare), protection, PRIVATE) }?.cast::<u8>();
    let head = whole.addr().next_multiple_of(page_bytes()) - whole.addr();
    let start = whole.wrapping_add(head);
    for (edge, edge_len) in [(whole, head), (start.wrapping_add(len), spare - head)] {
        if edge_len > 0 {
            // SAFETY: the edge belongs to the mapping made above, and is not used.
            let _ = unsafe { munmap(edge.cast(), edge_len) };
        }
    }
    NonNull::new(start).ok_or(Errno(0))
}

/// Calls madvise(2), unless the process is in a sandbox that may kill it for this advice.
///
/// # Safety
/// The range lies within one mapping that belongs to the caller, who accepts the effect of the advice on its contents.
unsafe fn advise(at: *mut u8, len: usize, advice: Advice) -> Result<(), Errno> {
    let len = covered(at, len)?;
    if advice != Advice::LinuxDontNeed && is_in_sandbox() {
        return Err(rustix::io::Errno::INVAL.into());
    }
    // SAFETY: upheld by the caller.
    Ok(unsafe { rustix::mm::madvise(at.cast(), len, advice) }?)
}

/// Unmaps a mapping, or an edge of one.
///
/// # Safety
/// The range belongs to the caller, and is not used afterwards.
pub(super) unsafe fn unmap(at: *mut u8, len: usize) {
    if let Ok(len) = covered(at, len) {
        // SAFETY: upheld by the caller. If the kernel refuses, the range just stays mapped.
        let _ = unsafe { munmap(at.cast(), len) };
    }
}

/// Makes part of a reservation readable and writable. Pages that are accessible already keep their contents.
///
/// # Safety
/// `[at, at + len)` lies within one reservation.
pub(crate) unsafe fn commit(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: upheld by the caller: the range is ours, and access to it only widens.
    Ok(unsafe { rustix::mm::mprotect(at.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }?)
}

/// Maps readable, writable, zeroed memory at an address where nothing is mapped.
///
/// # Errors
/// The system's error; `EEXIST` if something is mapped there already, in which case nothing has changed.
///
/// # Safety
/// The range lies within one [`AddressRange`](super::AddressRange).
pub(crate) unsafe fn extend(at: *mut u8, len: usize) -> Result<(), Errno> {
    map_at(at, len, ProtFlags::READ | ProtFlags::WRITE)
}

/// Checks that nothing is mapped in a range, and that the process may map it, by briefly mapping it as inaccessible memory.
///
/// # Errors
/// The system's error; `EEXIST` if something is mapped there.
pub(super) fn try_place(at: *mut u8, len: usize) -> Result<(), Errno> {
    map_at(at, len, ProtFlags::empty())?;
    // SAFETY: the range was mapped one line above, and not handed out.
    unsafe { unmap(at, len) };
    Ok(())
}

/// Maps memory at an address where nothing is mapped.
fn map_at(at: *mut u8, len: usize, protection: ProtFlags) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the call replaces no mapping.
    let found = unsafe { mmap_anonymous(at.cast(), len, protection, PRIVATE | MapFlags::FIXED_NOREPLACE) }?;
    if found.cast() == at {
        return Ok(());
    }
    // Linux before 4.17 and gVisor treat the address as a hint.
    // SAFETY: `found` was mapped above, and not handed out.
    let _ = unsafe { munmap(found, len) };
    Err(rustix::io::Errno::EXIST.into())
}

macro_rules! advices {
    ($($(#[$doc:meta])+ $name:ident: $advice:ident $(, $refused:ident)?;)+) => {$(
        $(#[$doc])+
        pub(crate) unsafe fn $name(at: *mut u8, len: usize) -> Result<(), Errno> {
            // SAFETY: upheld by the caller, who accepts the effect on the contents.
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
    /// The range is committed, and its contents are not needed.
    discard: LinuxDontNeed;

    /// Purges the pages lazily: the kernel may take them when it runs short of memory. Until then they keep their contents. Writing to a
    /// page cancels its purge.
    ///
    /// # Safety
    /// The range is committed, and its contents are not needed.
    purge_lazily: LinuxFree, unless_in_sandbox;

    /// Prefaults the range for writing. The contents do not change, so other threads may own parts of the range. Does nothing before Linux
    /// 5.14, which introduced the call, and in a [sandbox](super::is_in_sandbox).
    ///
    /// # Safety
    /// The range is committed.
    prefault: LinuxPopulateWrite, unless_unknown;

    /// Asks for huge pages in the range.
    ///
    /// # Safety
    /// The range lies within one reservation.
    advise_huge: LinuxHugepage, unless_in_sandbox;

    /// Forbids huge pages in the range. Succeeds on a kernel that was built without them.
    ///
    /// # Safety
    /// The range lies within one reservation.
    forbid_huge: LinuxNoHugepage, unless_unknown;

    /// Leaves the range out of children of `fork`: in a child, nothing is mapped there.
    ///
    /// # Safety
    /// The range lies within one mapping that belongs to the caller, and no child accesses it.
    leave_out_of_children: LinuxDontFork;

    /// Makes a child of `fork` inherit a range that was [left out](leave_out_of_children) before.
    ///
    /// # Safety
    /// As for [`leave_out_of_children`].
    hand_to_children: LinuxDoFork;

    /// Leaves the range out of core dumps.
    ///
    /// # Safety
    /// The range lies within one mapping that belongs to the caller.
    leave_out_of_dumps: LinuxDontDump;

    /// Makes the range read as zeroes in a child of `fork`.
    ///
    /// # Safety
    /// The range lies within one mapping that belongs to the caller, and children expect zeroes there.
    wipe_on_fork: LinuxWipeOnFork;

    /// Makes a child of `fork` inherit the range again.
    ///
    /// # Safety
    /// The range belongs to the caller alone, and no other code relies on the [wiping](wipe_on_fork).
    keep_on_fork: LinuxKeepOnFork;
}

/// Makes the C library return the free memory of its heap to the system. Does nothing unless the C library is glibc: no other has such a
/// call.
pub(crate) fn trim_heap() {
    // SAFETY: malloc_trim(3) releases only free pages. The argument is the number of free bytes to keep at the top of the heap.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Prefaults the range for writing.
///
/// # Errors
/// The system's error, for example if memory runs out or is faulty. Part of the range may be prefaulted in that case.
///
/// # Safety
/// The range is committed, and belongs to the caller alone.
pub(crate) unsafe fn populate(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the advice changes no contents, and the range belongs to the caller.
    match unsafe { advise(at, len, Advice::LinuxPopulateWrite) } {
        // Before Linux 5.14, or in a sandbox: touch each page, without changing its contents. Don't do so after other errors: touching a
        // page that the kernel could not prefault (no memory, faulty memory) would kill the process.
        Err(refused) if refused == rustix::io::Errno::INVAL.into() => {
            // SAFETY: upheld by the caller.
            unsafe { touch(at, len, real_page_bytes()) };
            Ok(())
        }
        other => other,
    }
}

/// Reports success for advice that [`advise`] skipped in a [sandbox](super::is_in_sandbox).
fn unless_in_sandbox(advised: Result<(), Errno>) -> Result<(), Errno> {
    if is_in_sandbox() { Ok(()) } else { advised }
}

/// Reports success for advice that this kernel does not know, or that [`advise`] skipped in a [sandbox](super::is_in_sandbox).
fn unless_unknown(advised: Result<(), Errno>) -> Result<(), Errno> {
    if advised == Err(rustix::io::Errno::INVAL.into()) { Ok(()) } else { advised }
}

// Moving pages, copying them, and counting those that are resident.

/// `MREMAP_DONTUNMAP`. rustix defines this flag only in its Linux backend, but uses its libc backend under Miri.
const DONTUNMAP: MremapFlags = MremapFlags::from_bits_retain(libc::MREMAP_DONTUNMAP as u32);

/// Moves the pages of `from` to `to`, without copying (mremap(2) with `MREMAP_DONTUNMAP`, Linux 5.7). Afterwards `to` has the
/// contents of `from`, with its protection and its advice. `from` stays mapped and reads as zeroes.
///
/// # Errors
/// The system's error:
/// - `EINVAL` if the kernel does not know the call, or an emulator [loses](keeps_source) the source.
/// - `EFAULT` before Linux 6.17, if `from` spans several of the kernel's mappings (because parts were advised differently, or moved
///   before).
/// - `ENOMEM` if the process has too many mappings, or is over a limit.
///
/// After an error, `from` is unchanged. If `to` is [whole](NotMoved::is_target_whole), it is accessible, but may contain anything, and may
/// have lost its advice. Otherwise it must not be touched again.
///
/// # Safety
/// Both ranges are committed and belong to the caller alone. They do not overlap, and `to` contains only zeroes.
pub(crate) unsafe fn move_pages(from: *mut u8, to: *mut u8, len: usize) -> Result<(), NotMoved> {
    let (len, _) = (covered(from, len)?, covered(to, len)?);
    if !keeps_source() {
        return Err(NotMoved { errno: rustix::io::Errno::INVAL.into(), is_target_whole: true });
    }
    // SAFETY: upheld by the caller.
    unsafe { remap(from, to, len) }.map_err(|refused| {
        if refused == rustix::io::Errno::NOMEM {
            // SAFETY: upheld by the caller.
            unsafe { take_back(from, to, len) };
        }
        // SAFETY: upheld by the caller.
        NotMoved { errno: refused.into(), is_target_whole: unsafe { fill_hole(to, len) } }
    })
}

/// # Safety
/// As for [`move_pages`].
unsafe fn remap(from: *mut u8, to: *mut u8, len: usize) -> Result<(), rustix::io::Errno> {
    // SAFETY: upheld by the caller, who owns both ranges and does not need the contents of `to`.
    unsafe { mremap_fixed(from.cast(), len, len, MremapFlags::MAYMOVE | DONTUNMAP, to.cast()) }.map(drop)
}

/// Whether a move leaves its source mapped: [`UNKNOWN`], [`KEPT`] (yes) or [`LOST`] (no).
static SOURCE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const KEPT: u8 = 1;
const LOST: u8 = 2;

/// Returns whether a move leaves its source mapped. qemu-user 7.2 to 11.1, which emulates another architecture, ignores `MREMAP_DONTUNMAP`
/// and treats the source as unmapped: accesses to it end with SIGSEGV, and advice for its pages is ignored.
fn keeps_source() -> bool {
    // Relaxed: at worst, several threads try a move.
    if SOURCE.load(Ordering::Relaxed) == UNKNOWN {
        let Ok(pages) = super::map_zeroed(2 * page_bytes()) else { return true };
        // SAFETY: the mapping has two pages, which nothing else uses.
        unsafe { try_move(pages.start().as_ptr()) };
    }
    SOURCE.load(Ordering::Relaxed) != LOST
}

/// Moves one page to the place of the next, and records whether moves [keep their source](keeps_source).
///
/// # Safety
/// Two unused pages begin at `from`.
unsafe fn try_move(from: *mut u8) {
    let len = page_bytes();
    // SAFETY: upheld by the caller.
    let is_moved = unsafe { commit(from, len).is_ok() && remap(from, from.add(len), len).is_ok() };
    // Call mincore(2) even if nothing moved, so that tools that record system calls at start-up see it: nothing else calls it then (see
    // `rehearse`).
    let is_unmapped = !is_in_sandbox() && resident_bytes(from, len) == Err(rustix::io::Errno::NOMEM.into());
    SOURCE.store(if is_moved && is_unmapped { LOST } else { KEPT }, Ordering::Relaxed);
}

/// Copies back to `from` the pages that a refused call had already moved. From Linux 6.17 on, one call moves several mappings one after the
/// other, and may fail halfway, for example if the process has too many mappings. `from` then reads as zeroes up to the first page that was
/// not moved.
///
/// # Safety
/// As for [`move_pages`], which was refused.
unsafe fn take_back(from: *mut u8, to: *mut u8, len: usize) {
    let page = real_page_bytes();
    // SAFETY: `is_zero` is only called for mapped pages, which nothing writes to at the same time.
    let is_zero =
        |at: *mut u8| unsafe { std::slice::from_raw_parts(at.cast::<u64>(), page / 8) }.iter().all(|&word| word == 0);
    for offset in (0..len).step_by(page) {
        let (back, moved) = (from.wrapping_add(offset), to.wrapping_add(offset));
        // The hole begins here, or this page was not moved.
        if resident_bytes(moved, page).is_err() || !is_zero(back) {
            return;
        }
        if !is_zero(moved) {
            // SAFETY: both pages are mapped, and belong to the caller.
            unsafe { copy_nonoverlapping(moved, back, page) };
        }
    }
}

/// Fills the hole that a refused move may leave at `to`: the kernel unmaps `to` before it has finished its checks. Before the hole is
/// filled, another thread's mapping may land in it. Returns whether the whole range is mapped and accessible.
///
/// # Safety
/// The range belongs to the caller alone, and its contents are not needed.
unsafe fn fill_hole(to: *mut u8, len: usize) -> bool {
    if map_at(to, len, ProtFlags::READ | ProtFlags::WRITE).is_ok() {
        return true;
    }
    // Part of the range is mapped, or there is no memory. (A system-call filter that refuses mincore(2) has also refused mremap(2), so
    // there is no hole.)
    let has_hole = resident_bytes(to, len) == Err(rustix::io::Errno::NOMEM.into());
    if has_hole {
        // Try at least to keep other mappings out of the hole.
        let _ = map_at(to, len, ProtFlags::empty());
    }
    !has_hole
}

/// Replaces the mappings in the range with one fresh mapping, which reads as zeroes and has no advice. Once it is given the advice of its
/// neighbours, the kernel merges them.
///
/// # Errors
/// The system's error. If the range is still [whole](NotMoved::is_target_whole), it has its old contents or reads as zeroes, and may have
/// lost its advice. Otherwise it must not be touched again.
///
/// # Safety
/// The range is committed and belongs to the caller alone, and its contents are not needed.
pub(crate) unsafe fn renew(at: *mut u8, len: usize) -> Result<(), NotMoved> {
    let len = covered(at, len)?;
    // SAFETY: upheld by the caller: the contents that the call replaces are not needed.
    let renewed =
        unsafe { mmap_anonymous(at.cast(), len, ProtFlags::READ | ProtFlags::WRITE, PRIVATE | MapFlags::FIXED) };
    renewed.map(drop).map_err(|refused| {
        // Before Linux 6.12, the kernel may unmap the old mapping before it finds that it has no memory for the new one.
        // SAFETY: upheld by the caller.
        NotMoved { errno: refused.into(), is_target_whole: unsafe { fill_hole(at, len) } }
    })
}

/// Returns the number of resident bytes in the range, in whole pages; `None` if the system does not report them.
///
/// # Safety
/// No requirements: it is `unsafe` only because all platforms share one signature.
pub(crate) unsafe fn count_resident(at: *const u8, len: usize) -> Option<usize> {
    if is_in_sandbox() { None } else { resident_bytes(at, len).ok() }
}

/// Counts resident bytes, as [`count_resident`] does.
///
/// # Errors
/// The system's error: `ENOMEM` if part of the range is not mapped.
fn resident_bytes(at: *const u8, len: usize) -> Result<usize, Errno> {
    // Ask about 512 pages at a time (2 MiB, with pages of 4 KiB), because the stack may be small.
    let mut answers = [0u8; 512];
    let page = real_page_bytes();
    let len = covered(at, len)?;
    let mut pages = 0;
    for offset in (0..len).step_by(answers.len() * page) {
        let part = (len - offset).min(answers.len() * page);
        let start = at.wrapping_add(offset).cast_mut().cast();
        // SAFETY: the call writes a byte for each page of the part, and `answers` has room for them.
        keeping_errno(|| unsafe { libc::mincore(start, part, answers.as_mut_ptr()) })?;
        // Only the lowest bit of an answer is defined.
        pages += answers[..part.div_ceil(page)].iter().filter(|&&answer| answer & 1 == 1).count();
    }
    Ok(pages * page)
}

// Copies that skip untouched pages. mincore(2) can't tell a page in swap from one that was never touched, but `/proc/self/pagemap` can.

/// The number of pages whose entries are read at once. It is small because the stack may be small.
const PART: usize = 128;

/// Copies `len` bytes between two runs of pages. Skips source pages without contents (neither in memory nor in swap), and clears the
/// corresponding target pages if they have contents. Returns `false`, and does nothing, if the system does not report which pages have
/// contents.
///
/// # Safety
/// Both ranges are committed, private and anonymous, and begin on a page boundary. They do not overlap, and nothing else uses them.
pub(crate) unsafe fn copy_held(from: *const u8, to: *mut u8, len: usize) -> bool {
    let Some(pagemap) = Pagemap::open() else { return false };
    let page = real_page_bytes();
    let (mut in_source, mut in_target) = ([0; PART], [0; PART]);
    for offset in (0..len).step_by(PART * page) {
        let part = (len - offset).min(PART * page);
        let (from, to, pages) = (from.wrapping_add(offset), to.wrapping_add(offset), part.div_ceil(page));
        if !pagemap.read(from, &mut in_source[..pages]) || !pagemap.read(to, &mut in_target[..pages]) {
            // SAFETY: upheld by the caller.
            unsafe { copy_nonoverlapping(from, to, len - offset) };
            return true;
        }
        for index in 0..pages {
            let at = index * page;
            let bytes = page.min(part - at);
            // SAFETY: the page lies within the caller's ranges. A page without contents reads as zeroes.
            unsafe {
                if holds(in_source[index]) {
                    copy_nonoverlapping(from.add(at), to.add(at), bytes);
                } else if holds(in_target[index]) {
                    to.add(at).write_bytes(0, bytes);
                }
            }
        }
    }
    true
}

/// Returns whether a page has contents: bit 63 of its entry means present in memory, and bit 62 swapped out or under migration.
fn holds(entry: u64) -> bool {
    entry >> 62 != 0
}

/// The open file `/proc/self/pagemap`, which has an entry of 8 bytes for each page of the process's address space.
struct Pagemap(OwnedFd);

impl Pagemap {
    /// Opens the file. Returns `None` if the process may not read it, or if its entries do not describe this process's addresses, as in an
    /// emulator.
    fn open() -> Option<Self> {
        if is_in_sandbox() {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let pagemap = Self(rustix::fs::openat(CWD, c"/proc/self/pagemap", flags, Mode::empty()).ok()?);
        // `own` is on the stack, in a page that is in memory, so its entry must say so.
        let mut own = [0];
        let here = (&raw const own).cast();
        (pagemap.read(here, &mut own) && holds(own[0])).then_some(pagemap)
    }

    /// Reads the entries of the pages from `at` on. Returns `false` if the system refuses.
    fn read(&self, at: *const u8, entries: &mut [u64]) -> bool {
        let len = size_of_val(entries);
        // SAFETY: the slice covers exactly the entries, for which any bytes are valid.
        let bytes = unsafe { std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), len) };
        let place = (at.addr() / real_page_bytes() * size_of::<u64>()) as u64;
        rustix::io::pread(&self.0, bytes, place) == Ok(len)
    }
}

/// The platform's part of a [`Parking`](super::Parking): on Linux, a thread sleeps in a futex on the number of wakes.
pub(super) struct Sleeper;

impl Sleeper {
    pub(super) const fn new() -> Self {
        Self
    }

    pub(super) fn wake(&self, wakes: &AtomicU32) {
        let _ = futex::wake(wakes, futex::Flags::PRIVATE, 1);
    }

    pub(super) fn sleep(&self, wakes: &AtomicU32, ticket: u32, at_most: Option<Duration>) {
        // A time that overflows the kernel's type is centuries long, so it counts as no timeout.
        let timeout = at_most.and_then(|time| futex::Timespec::try_from(time).ok());
        let _ = futex::wait(wakes, futex::Flags::PRIVATE, ticket, timeout.as_ref());
    }
}

/// Whether the kernel lacks membarrier(2), or refuses it.
static IS_FENCE_MISSING: AtomicBool = AtomicBool::new(false);

/// Registers the process for [`fence_other_threads`], and fences once, as [`rehearse`] does with other calls. The kernel waits until every
/// processor has seen the registration. That takes 10 milliseconds or more, but no time at all while the process has only one thread. So
/// this runs before `main`. (A process that loads this library by `dlopen` may have more threads.) A second registration does no harm.
/// Returns whether the fence was made.
pub(super) fn register_fence() -> bool {
    let registered = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
        && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    IS_FENCE_MISSING.store(!registered, Ordering::Relaxed);
    registered
}

/// Makes every running thread of this process pass a full memory barrier before this returns (membarrier(2), `PRIVATE_EXPEDITED`, Linux
/// 4.14). Calling this on a rare path saves the other threads a barrier on their fast path. Returns `false`, and fences nothing, if the
/// kernel has no such call, or if a [sandbox](super::is_in_sandbox) may forbid it.
pub(crate) fn fence_other_threads() -> bool {
    if is_in_sandbox() || IS_FENCE_MISSING.load(Ordering::Relaxed) {
        return false;
    }
    // If the call fails, the process is not registered yet, or lost its registration in a fork.
    membarrier(MembarrierCommand::PrivateExpedited).is_ok() || register_fence()
}

/// Gives each kind of advice that the arena will give, on an unused page, and moves that page once. Some tools record the system calls of a
/// program while it starts, and forbid all others later. This call shows such tools which system calls the arena will make.
pub(super) fn rehearse(huge_pages: HostHugePages) {
    let Ok(pages) = super::map_zeroed(2 * page_bytes()) else { return };
    let (at, len) = (pages.start().as_ptr(), page_bytes());
    // Asking for huge pages adds the process to a list that the kernel scans, so don't ask if the arena will not.
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
    // Ignore errors: the kernel refuses advice that it does not know.
    for advice in advices {
        // SAFETY: nothing else uses this page.
        let _ = unsafe { advise(at, len, advice) };
    }
    // SAFETY: the mapping has two pages, which nothing else uses.
    unsafe { try_move(at) };
    drop(Pagemap::open());
    super::may_be_on_signal_stack();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::os::seccomp::{self, Answer};
    use crate::os::{self, Mapping, forks};

    const LEN: usize = 1 << 20;

    fn mapped(len: usize, byte: u8) -> (Mapping, *mut u8) {
        let mapping = os::map_zeroed(len).unwrap();
        let at = mapping.start().as_ptr();
        if byte != 0 {
            // SAFETY: the range is the mapping made above.
            unsafe { at.write_bytes(byte, len) };
        }
        (mapping, at)
    }

    /// Returns whether all bytes of a range are `byte`.
    ///
    /// # Safety
    /// The range can be read.
    unsafe fn all(at: *const u8, len: usize, byte: u8) -> bool {
        // SAFETY: upheld by the caller.
        unsafe { std::slice::from_raw_parts(at, len) }.iter().all(|&found| found == byte)
    }

    #[test]
    fn moved_pages_keep_their_contents_and_leave_zeroes_behind() {
        let (_from, from) = mapped(LEN, 1);
        let (_to, to) = mapped(LEN, 2);
        let page = page_bytes();
        // SAFETY: parts of two mappings that this test owns.
        unsafe {
            os::discard(to.add(page), LEN - 2 * page).unwrap();
            // Linux before 5.7 refuses.
            if move_pages(from.add(page), to.add(page), LEN - 2 * page).is_err() {
                return;
            }
            assert!(all(from, page, 1) && all(from.add(page), LEN - 2 * page, 0) && all(from.add(LEN - page), page, 1));
            assert!(all(to, page, 2) && all(to.add(page), LEN - 2 * page, 1) && all(to.add(LEN - page), page, 2));
            // Both ranges can be written to, and unmapped.
            from.write_bytes(3, LEN);
            to.write_bytes(4, LEN);
        }
    }

    /// A refused call may leave no mapping at the target.
    #[test]
    fn a_refused_move_keeps_the_source_and_a_usable_target() {
        let (_from, from) = mapped(LEN, 1);
        let (_to, to) = mapped(LEN, 0);
        let page = page_bytes();
        // SAFETY: parts of two mappings that this test owns.
        unsafe {
            // Advice for one half splits the mapping in two.
            os::leave_out_of_dumps(from, LEN / 2).unwrap();
            match move_pages(from, to, LEN) {
                Ok(()) => assert!(all(from, LEN, 0) && all(to, LEN, 1)),
                Err(refused) => assert!(refused.is_target_whole && all(from, LEN, 1)),
            }
            from.write_bytes(3, LEN);
            to.write_bytes(0, LEN);
            for (from, to, len) in [(from.add(1), to, page), (from, to.add(1), page), (from, from, LEN), (from, to, 0)]
            {
                assert!(move_pages(from, to, len).unwrap_err().is_target_whole);
            }
            assert!(all(from, LEN, 3));
            to.write_bytes(5, LEN);
        }
    }

    /// The number of bytes that the simulated kernel moves before it refuses the rest, and the number of bytes after them that it unmaps at
    /// the target.
    static MOVED_BYTES: AtomicUsize = AtomicUsize::new(0);
    static HOLE_BYTES: AtomicUsize = AtomicUsize::new(0);

    /// Handles SIGSYS for an mremap(2) that the filter trapped: fails in place of the kernel, as if the call had reached a second mapping
    /// that can't be moved.
    extern "C" fn refuse_with_a_hole(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a `ucontext_t` to the handler. Its registers hold the arguments of the call, of which the first and the
        // fifth are the addresses. The result goes into the register of the call's number on x86-64, and of the first argument on aarch64.
        // Both ranges are mapped.
        unsafe {
            let context = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
            #[cfg(target_arch = "x86_64")]
            let [from, to] = [libc::REG_RDI, libc::REG_R8].map(|register| context.gregs[register as usize]);
            #[cfg(target_arch = "aarch64")]
            let [from, to] = [context.regs[0], context.regs[4]];
            let [from, to] = [from, to].map(|at| std::ptr::with_exposed_provenance_mut::<u8>(at as usize));
            let (moved, hole) = (MOVED_BYTES.load(Ordering::Relaxed), HOLE_BYTES.load(Ordering::Relaxed));
            copy_nonoverlapping(from, to, moved);
            libc::madvise(from.cast(), moved, libc::MADV_DONTNEED);
            let _ = munmap(to.add(moved).cast(), hole);
            let error = -i64::from(if moved > 0 { libc::ENOMEM } else { libc::EFAULT });
            #[cfg(target_arch = "x86_64")]
            (context.gregs[libc::REG_RAX as usize] = error);
            #[cfg(target_arch = "aarch64")]
            (context.regs[0] = error as u64);
        }
    }

    /// Moves pages in a forked child, where a simulated kernel moves only `moved_bytes`, leaves a hole of `hole_bytes` after them at the
    /// target, and then refuses the call. New mappings succeed only with `has_memory`. Returns the child's exit status: 0 if `from` still
    /// has its contents, and `to` was reported as whole or not, as `is_whole` says.
    fn refused_in_a_child(moved_bytes: usize, hole_bytes: usize, has_memory: bool, is_whole: bool) -> i32 {
        let (_from, from) = mapped(LEN, 1);
        let (_to, to) = mapped(LEN, 0);
        from.expose_provenance();
        to.expose_provenance();
        forks::in_a_fork(|| {
            HOLE_BYTES.store(hole_bytes, Ordering::Relaxed);
            MOVED_BYTES.store(moved_bytes, Ordering::Relaxed);
            // SAFETY: the action is valid, and only the child uses the two mappings. A target that is reported as whole has no hole, so it
            // can be written to.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = refuse_with_a_hole as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
                let limit = if has_memory { libc::RLIM_INFINITY } else { 1 };
                let limit = libc::rlimit { rlim_cur: limit, rlim_max: libc::RLIM_INFINITY };
                libc::setrlimit(libc::RLIMIT_AS, &raw const limit);
                if !seccomp::refuse(&[libc::SYS_mremap], Answer::Trap) {
                    return 9;
                }
                let Err(refused) = move_pages(from, to, LEN) else { return 8 };
                to.write_bytes(3, if is_whole { LEN } else { 0 });
                u8::from(refused.is_target_whole != is_whole || !all(from, LEN, 1))
            }
        })
    }

    /// A refused move may leave a hole in the target. If the hole went unnoticed, the arena would hand out a run with it. After a refused
    /// move, growth copies the run instead. If the moved pages were not copied back first, it would copy zeroes.
    #[test]
    fn a_refused_move_fills_or_reports_the_hole_and_copies_moved_pages_back() {
        let page = page_bytes();
        for (moved, hole, has_memory, is_whole) in [
            (0, 0, true, true),
            (0, LEN, true, true),
            // As if the source spanned several mappings, and the first could not be moved.
            (0, page, true, false),
            (0, LEN, false, false),
            (page, 0, true, true),
            (LEN / 2, page, true, false),
            (LEN - page, page, true, false),
            (LEN, 0, true, true),
        ] {
            let status = refused_in_a_child(moved, hole, has_memory, is_whole);
            assert_eq!(status, 0, "{moved} bytes moved, {hole} bytes of a hole, memory: {has_memory}");
        }
    }

    #[test]
    fn a_fence_that_the_kernel_refuses_returns_false() {
        use rustix::thread::membarrier_query;

        // Kernels from 4.14 on have the call, unless they were built without it.
        let is_known = membarrier_query().contains_command(MembarrierCommand::PrivateExpedited);
        assert_eq!(fence_other_threads(), is_known);
        for error in [libc::EPERM, libc::ENOSYS] {
            let code = forks::in_a_fork(|| {
                let is_refused = seccomp::refuse(&[libc::SYS_membarrier], Answer::Errno(error));
                u8::from(!is_refused || fence_other_threads() || fence_other_threads())
            });
            assert_eq!(code, 0, "error {error}");
        }
    }

    #[test]
    fn resident_bytes_are_those_that_were_touched() {
        let (_mapping, at) = mapped(40 << 20, 0);
        let page = page_bytes();
        // SAFETY: the range is the mapping made above. Huge pages would make more resident than was touched.
        unsafe {
            let _ = os::forbid_huge(at, 40 << 20);
            assert_eq!(count_resident(at, 40 << 20), Some(0));
            for page_at in [0, 17 << 20, (40 << 20) - page] {
                at.add(page_at).write_bytes(1, page);
            }
            assert_eq!(count_resident(at, 40 << 20), Some(3 * page));
            assert_eq!(count_resident(at.add(page), 17 << 20), Some(page));
            assert_eq!(count_resident(at.add(1), page), None, "not the beginning of a page");
        }
    }

    const PAGES: usize = 3 * PART + 7;

    /// In each round, every n-th page of the source has contents, and every m-th page of the target.
    #[test]
    fn copies_are_equal_and_leave_untouched_pages_untouched() {
        let page = page_bytes();
        let len = PAGES * page;
        for (in_source, in_target) in [(2, 3), (1, 1), (PAGES, PAGES), (5, PAGES), (PAGES, 2)] {
            let [source, target] = [(); 2].map(|()| os::map_zeroed(len).unwrap());
            let (from, to) = (source.start().as_ptr(), target.start().as_ptr());
            // SAFETY: two mappings that this test owns. The last page is copied in part.
            unsafe {
                let _ = os::forbid_huge(from, len);
                let _ = os::forbid_huge(to, len);
                (0..PAGES)
                    .step_by(in_source)
                    .for_each(|index| from.add(index * page).write_bytes(1 | index as u8, page));
                (0..PAGES).step_by(in_target).for_each(|index| to.add(index * page).write_bytes(0xA5, page));
                let copied = len - 100;
                let resident = |at| count_resident(at, len).unwrap();
                let expected = (0..PAGES).filter(|index| index % in_source == 0 || index % in_target == 0).count();
                if !copy_held(from, to, copied) {
                    return;
                }
                assert_eq!(resident(to), expected * page, "every {in_source}, every {in_target}");
                assert_eq!(resident(from), PAGES.div_ceil(in_source) * page);
                let [source, target] = [from, to].map(|at| std::slice::from_raw_parts(at, copied));
                assert!(source == target, "every {in_source}, every {in_target}");
                let rest = std::slice::from_raw_parts(to.add(copied), 100);
                let before = if (PAGES - 1) % in_target == 0 { 0xA5 } else { 0 };
                assert!(rest.iter().all(|&byte| byte == before), "nothing beyond the length changes");
            }
        }
    }
}
