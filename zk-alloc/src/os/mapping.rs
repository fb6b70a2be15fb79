//! Mappings that are unmapped when they are dropped, address ranges, memory locking, and the page size.
#![allow(unsafe_code, reason = "unmaps memory, and calls the C library")]

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

#[cfg(not(unix))]
use crate::os::imp::real_page_bytes;
use crate::os::{Errno, HUGE_PAGE_BYTES, OCCUPIED, imp};
use crate::tuning;

/// A mapping, which is unmapped when this value is dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the address and the length never change. Code that accesses the memory has its own safety comments.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Prepares the mapping for a table of the arena that is touched sparsely. The table stays in small pages, even if the host uses huge
    /// pages by default. It is left out of core files, if the system supports that: a debugger's core file would contain every page,
    /// touched or not.
    pub(crate) fn for_table(self) -> Self {
        // SAFETY: the range is one mapping of ours, and the advice does not change its contents.
        let _ = unsafe { imp::leave_out_of_dumps(self.start.as_ptr(), self.len) };
        // SAFETY: as above.
        let _ = unsafe { imp::forbid_huge(self.start.as_ptr(), self.len) };
        self
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours. Its owner drops it only when no address in it is used any more.
        unsafe { imp::unmap(self.start.as_ptr(), self.len) };
    }
}

/// Maps `len` bytes of zeroed memory, which are faulted in as they are touched.
///
/// # Errors
/// The system's error, if it refuses.
pub(crate) fn map_zeroed(len: usize) -> Result<Mapping, Errno> {
    imp::map_accessible(len).map(|start| Mapping { start, len })
}

/// Returns whether the process may map `len` more bytes that take no memory until they are touched. Under `mlockall(MCL_FUTURE)`, new
/// mappings take their memory at once.
pub(crate) fn may_map_sparsely(len: usize) -> bool {
    let is_sparse = map_zeroed(page_bytes()).is_ok_and(|page| {
        // SAFETY: the page is a mapping of our own.
        unsafe { imp::count_resident(page.start.as_ptr(), page.len) == Some(0) }
    });
    is_sparse && map_zeroed(len).is_ok()
}

/// A type for which all-zero bytes are a valid value.
///
/// # Safety
/// All-zero bytes are a valid value, and all changes to a value are atomic.
pub(crate) unsafe trait AllZero: Sync + 'static {}

/// A value that is mapped when it is first needed, and lasts as long as the process.
#[cfg_attr(loom, allow(dead_code, reason = "the models have memory of their own"))]
pub(crate) struct MappedOnce<T>(AtomicPtr<T>);

#[cfg_attr(loom, allow(dead_code, reason = "as above"))]
impl<T: AllZero> MappedOnce<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Returns the value; `None` before it is mapped.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or a mapping that is never unmapped. The mapping is long enough, aligned to a page, and began as
        // zeroes, which are a valid `T`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Maps the value, unless it is mapped already.
    ///
    /// # Errors
    /// The system's error, if it refuses memory.
    pub(crate) fn map(&self) -> Result<(), Errno> {
        if self.get().is_some() {
            return Ok(());
        }
        let mapping = map_zeroed(round_up(size_of::<T>(), page_bytes())?)?.for_table();
        let at = mapping.start().as_ptr().cast();
        // If another thread was faster, this mapping is dropped.
        if self.0.compare_exchange(null_mut(), at, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            std::mem::forget(mapping);
        }
        Ok(())
    }
}

/// Rounds `len` up to whole pages, at least one.
///
/// # Errors
/// `Errno(0)`, if the result exceeds `isize::MAX`.
pub(crate) fn round_up(len: usize, page_bytes: usize) -> Result<usize, Errno> {
    let rounded = len.max(1).checked_next_multiple_of(page_bytes);
    rounded.filter(|&rounded| rounded <= isize::MAX as usize).ok_or(Errno(0))
}

/// Maps at least `len` bytes of zeroed memory, in whole pages, between two inaccessible guard pages (on Unix only).
///
/// # Errors
/// The system's error, if it refuses.
pub(crate) fn map_guarded(len: usize) -> Result<(Mapping, NonNull<[u8]>), Errno> {
    let page = page_bytes();
    let len = round_up(len, page)?;
    if !cfg!(unix) {
        let mapping = map_zeroed(len)?;
        let bytes = NonNull::slice_from_raw_parts(mapping.start, len);
        return Ok((mapping, bytes));
    }
    let whole = round_up(len + 2 * page, page)?;
    let mapping = Mapping { start: imp::map_inaccessible(whole)?, len: whole };
    // SAFETY: `start` is within the mapping, which has one more page before `start` and one more after the bytes.
    let start = unsafe { mapping.start.add(page) };
    // SAFETY: `len` bytes from there lie within the mapping made above, which is ours.
    unsafe { imp::commit(start.as_ptr(), len) }?;
    Ok((mapping, NonNull::slice_from_raw_parts(start, len)))
}

/// Reserves `len` bytes of inaccessible address space, on a huge-page boundary. Takes no memory, and counts against no overcommit
/// limit.
///
/// # Errors
/// The system's error, if it refuses.
pub(crate) fn reserve(len: usize) -> Result<Mapping, Errno> {
    let whole_len = len.checked_add(HUGE_PAGE_BYTES).ok_or(Errno(0))?;
    let whole = imp::map_inaccessible(whole_len)?;
    let head = whole.addr().get().next_multiple_of(HUGE_PAGE_BYTES) - whole.addr().get();
    // SAFETY: both addresses lie within the mapping, which is longer than `head + len`.
    let (start, tail) = unsafe { (whole.add(head), whole.add(head + len)) };
    for (edge, edge_len) in [(whole, head), (tail, whole_len - head - len)] {
        if edge_len > 0 {
            // SAFETY: the edge belongs to the mapping made above, and is not used.
            unsafe { imp::unmap(edge.as_ptr(), edge_len) };
        }
    }
    Ok(Mapping { start, len })
}

/// A range of addresses on a huge-page boundary in which its owner maps memory as needed ([`extend`](super::extend)).
///
/// On Linux, nothing is mapped in the range at first. So its unused part counts against no limit of the process (`RLIMIT_AS`, locked
/// memory), and is in no core file. The cost is that another mapping may land in the range, which `extend` does not replace. This is rare:
/// the range lies [far below](tuning::region_distance_gib) the address where the kernel places mappings by itself.
///
/// On other systems, the range is reserved.
pub(crate) struct AddressRange {
    start: NonNull<u8>,
    /// The reservation, on systems that reserve the range.
    _reserved: Option<Mapping>,
}

// SAFETY: the address never changes. Code that accesses the memory has its own safety comments.
unsafe impl Send for AddressRange {}
// SAFETY: as above.
unsafe impl Sync for AddressRange {}

impl AddressRange {
    /// Finds a range of `len` bytes.
    ///
    /// # Errors
    /// The system's error, or `Errno(0)` if there is no such range.
    pub(crate) fn find(len: usize) -> Result<Self, Errno> {
        // Only Linux can map memory at a given address without replacing other mappings.
        if cfg!(not(target_os = "linux")) {
            let reserved = reserve(len)?;
            return Ok(Self { start: reserved.start, _reserved: Some(reserved) });
        }
        if let Some(start) = Self::far_below(len) {
            return Ok(Self { start, _reserved: None });
        }
        // Where addresses are scarce, the middle third of a free range is the best place.
        let start = match reserve(len.checked_mul(3).ok_or(Errno(0))?) {
            // SAFETY: the middle third lies within the range that was found.
            Ok(found) => unsafe { found.start.add(len) },
            // A limit on address space prevents reserving that much, so take addresses below a small reservation. Other mappings are rare
            // there, and `extend` does not replace them.
            Err(_) => {
                let found = reserve(HUGE_PAGE_BYTES)?.start.addr().get();
                let start = found.checked_sub(2 * len).filter(|&start| start >= len).ok_or(Errno(0))?;
                NonNull::new(std::ptr::with_exposed_provenance_mut(start)).ok_or(Errno(0))?
            }
        };
        Ok(Self { start, _reserved: None })
    }

    /// Returns a free range far below the address that the kernel chooses for the next mapping, with as much free space on either side. The
    /// kernel chooses that address at random, so the range is random, too. `None` if the address space has no such range.
    fn far_below(len: usize) -> Option<NonNull<u8>> {
        let next = reserve(HUGE_PAGE_BYTES).ok()?.start.addr().get();
        let mut distance = tuning::region_distance_gib().saturating_mul(1 << 30);
        // At a smaller distance, the middle third of any free range, which `find` tries next, is as good a place.
        while distance > 2 * len {
            let place = next.checked_sub(distance).and_then(|end| end.checked_sub(2 * len));
            if let Some(start) = place.filter(|&start| start > len && Self::is_free(start - len, 3 * len)) {
                return NonNull::new(std::ptr::with_exposed_provenance_mut(start));
            }
            distance /= 2;
        }
        None
    }

    /// Returns whether nothing is mapped in a range. If a limit on address space forbids mapping that much, only five places in it are
    /// checked.
    fn is_free(start: usize, len: usize) -> bool {
        let is_free = |start: usize, len: usize| imp::try_place(std::ptr::with_exposed_provenance_mut(start), len);
        match is_free(start, len) {
            Ok(()) => true,
            Err(OCCUPIED) => false,
            Err(_) => [0, len / 3, len / 2, len / 3 * 2, len - HUGE_PAGE_BYTES]
                .into_iter()
                .all(|offset| is_free(start + offset / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES).is_ok()),
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

/// Faults the range in, and locks it in memory, so that it is never written to swap.
///
/// # Safety
/// The range is committed, and lies within one mapping that belongs to the caller.
#[cfg(unix)]
pub(crate) unsafe fn lock(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the call changes no contents, and the range belongs to the caller.
    imp::keeping_errno(|| unsafe { libc::mlock(at.cast(), len) })
}

/// Unlocks a range that [`lock`] locked.
///
/// # Safety
/// No requirements: it is `unsafe` only because all platforms share one signature.
#[cfg(unix)]
pub(crate) unsafe fn unlock(at: *mut u8, len: usize) -> Result<(), Errno> {
    let len = covered(at, len)?;
    // SAFETY: the call changes no contents.
    imp::keeping_errno(|| unsafe { libc::munlock(at.cast(), len) })
}

/// Returns the bytes that this process may lock in memory now (`RLIMIT_MEMLOCK`).
#[cfg(unix)]
pub(crate) fn lockable_bytes() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Touches each page of a range, without changing its contents.
///
/// # Safety
/// The range is readable and writable, and belongs to the caller alone.
#[cfg(unix)]
pub(super) unsafe fn touch(at: *mut u8, len: usize, page_bytes: usize) {
    for offset in (0..len).step_by(page_bytes) {
        let page = at.wrapping_add(offset);
        // SAFETY: the byte is in the caller's range.
        unsafe { page.write_volatile(page.read_volatile()) };
    }
}

// The page size, and how many bytes a call on a range covers. The kernel rounds lengths up to whole pages, and refuses addresses
// that are not on a page boundary.
//
// Machines with pages of 16 or 64 KiB (Apple's, many with Arm processors) are rare where this crate is tested. A mistake with such pages
// destroys live memory: a call with a length that is not in whole pages also affects the memory behind it. So a build with debug assertions
// can imitate such a kernel. With `ZK_ALLOC_TEST_PAGE_BYTES=65536` in the environment, [`page_bytes`] returns that size. Every call of the
// os layer on a range then covers the bytes that a kernel with such pages would cover. One effect can't be imitated: touching one byte
// makes the whole large page resident.

/// The environment variable that sets a larger page size, in builds with debug assertions.
pub(crate) const TEST_PAGE_BYTES: &str = "ZK_ALLOC_TEST_PAGE_BYTES";

/// Returns the page size, in bytes: the system's, or a larger one that [`TEST_PAGE_BYTES`] asks for.
#[inline]
pub(crate) fn page_bytes() -> usize {
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
    if !cfg!(debug_assertions) {
        return real_page_bytes();
    }
    match PAGE_BYTES.load(Ordering::Relaxed) {
        0 => {
            let value = super::variable(TEST_PAGE_BYTES);
            let wanted = value.and_then(|value| value.text()?.parse().ok());
            let larger = wanted.filter(|bytes| matches!(bytes, 16_384 | 65_536)).unwrap_or(0);
            let chosen = larger.max(real_page_bytes());
            PAGE_BYTES.store(chosen, Ordering::Relaxed);
            chosen
        }
        known => known,
    }
}

/// Returns the machine's page size. Asks the C library, because rustix may allocate to find it.
#[cfg(unix)]
pub(super) fn real_page_bytes() -> usize {
    /// The largest page size of any system, used if this system does not report its own.
    const MAX_PAGE_BYTES: usize = 64 << 10;
    // SAFETY: the call only reads a number, which the C library has from the start.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(MAX_PAGE_BYTES)
}

/// Returns the number of bytes from `at` on that a call with length `len` covers: whole pages. Without debug assertions this returns `len`,
/// because the kernel rounds up by itself.
///
/// # Errors
/// `EINVAL`, as from the kernel, if `at` is not on a page boundary.
#[inline]
#[cfg_attr(not(unix), allow(dead_code, reason = "no such calls there"))]
pub(super) fn covered(at: *const u8, len: usize) -> Result<usize, Errno> {
    const EINVAL: i32 = 22;
    if !cfg!(debug_assertions) {
        return Ok(len);
    }
    let page = page_bytes();
    if at.addr() % page != 0 {
        return Err(Errno(EINVAL));
    }
    len.checked_next_multiple_of(page).ok_or(Errno(EINVAL))
}

#[cfg(all(test, debug_assertions, target_os = "linux"))]
#[allow(unsafe_code, reason = "purges mapped memory, and looks at its neighbours")]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::os;

    /// Runs this test again in child processes with other page sizes, where a length that is not in whole pages destroys the same bytes as
    /// under a kernel with such pages.
    #[test]
    fn with_large_pages_a_call_covers_whole_pages_and_must_begin_with_one() {
        let name = "os::mapping::tests::with_large_pages_a_call_covers_whole_pages_and_must_begin_with_one";
        let Some(wanted) = os::variable(TEST_PAGE_BYTES) else {
            for page_bytes in ["16384", "65536", "4096", "1", "garbage"] {
                let mut command = Command::new(std::env::current_exe().unwrap());
                let output = command.args([name, "--exact"]).env(TEST_PAGE_BYTES, page_bytes).output().unwrap();
                let stdout = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success() && stdout.contains("1 passed"), "{page_bytes}: {stdout}");
            }
            return;
        };
        let page = page_bytes();
        let larger = wanted.text().unwrap().parse().ok().filter(|bytes| [16_384, 65_536].contains(bytes));
        assert_eq!(page, larger.unwrap_or(real_page_bytes()));
        let mapping = os::map_zeroed(3 * page + 1).unwrap();
        let at = mapping.start().as_ptr();
        assert!(at.addr().is_multiple_of(page));
        let byte = |offset| {
            // SAFETY: the mapping made above is four pages long.
            unsafe { at.add(offset).read_volatile() }
        };
        // SAFETY: the ranges are parts of the mapping made above, whose contents are not needed.
        unsafe {
            at.write_bytes(1, 4 * page);
            os::discard(at.add(page), 1).unwrap();
            assert_eq!(os::discard(at.add(2 * page + 1), page), Err(Errno(22)));
            assert_eq!(os::purge_lazily(at.add(2 * page + 512), 512), Err(Errno(22)));
            assert_eq!(os::populate(at.add(page / 2 + 1), 1), Err(Errno(22)));
        }
        let expected = [1, 0, 0, 1, 1];
        assert_eq!([page - 1, page, 2 * page - 1, 2 * page, 4 * page - 1].map(byte), expected);
    }
}
