//! Memory mapped from the kernel, and given back when its owner is dropped.
#![allow(unsafe_code, reason = "unmaps memory")]

use std::ptr::NonNull;

use super::{Errno, HUGE_PAGE_BYTES, imp, page_bytes};

/// A mapping of our own.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length, which never change; what they are used for is the business of whoever reads them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// In bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever drops it holds no address of it any more.
        unsafe { imp::unmap(self.start.as_ptr(), self.len) };
    }
}

/// `len` bytes of zeroed memory, paged in as they are touched.
///
/// # Errors
/// The system's, when it refuses.
pub(crate) fn map_zeroed(len: usize) -> Result<Mapping, Errno> {
    imp::map_zeroed(len).map(|start| Mapping { start, len })
}

/// `len` in whole granules, and at least one of them.
///
/// # Errors
/// No number, where no mapping can be so long that Rust may use it.
pub(crate) fn round_up(len: usize, granule_bytes: usize) -> Result<usize, Errno> {
    let rounded = len.max(1).checked_next_multiple_of(granule_bytes);
    rounded.filter(|&rounded| rounded <= isize::MAX as usize).ok_or(Errno(0))
}

/// At least `len` bytes of zeroed memory, in whole pages: between two pages that no access may touch, where the platform
/// has such pages.
///
/// # Errors
/// The system's, when it refuses.
pub(crate) fn map_guarded(len: usize) -> Result<(Mapping, NonNull<[u8]>), Errno> {
    let page = page_bytes();
    let len = round_up(len, page)?;
    if !imp::HAS_GUARDS {
        let mapping = map_zeroed(len)?;
        let bytes = NonNull::slice_from_raw_parts(mapping.start, len);
        return Ok((mapping, bytes));
    }
    let whole = round_up(len + 2 * page, page)?;
    let mapping = Mapping { start: imp::map_inaccessible(whole)?, len: whole };
    // SAFETY: within the mapping, which is longer by a page before and a page after.
    let start = unsafe { mapping.start.add(page) };
    // SAFETY: `len` bytes from there lie within the mapping made above, which is ours.
    unsafe { imp::commit(start.as_ptr(), len) }?;
    Ok((mapping, NonNull::slice_from_raw_parts(start, len)))
}

/// Address space of `len` bytes on a huge-page boundary that no access may touch. Takes no memory, and counts against no
/// overcommit limit. Granted only where the system would grant twice as much: where address space is short, the rest of
/// the program needs some too.
///
/// # Errors
/// The system's, when it refuses.
pub(crate) fn reserve(len: usize) -> Result<Mapping, Errno> {
    let probe_len = len.checked_mul(2).and_then(|twice| twice.checked_add(HUGE_PAGE_BYTES)).ok_or(Errno(0))?;
    let probe = imp::map_inaccessible(probe_len)?;
    let head = probe.addr().get().next_multiple_of(HUGE_PAGE_BYTES) - probe.addr().get();
    // SAFETY: within the mapping, which is longer than both together.
    let (start, tail) = unsafe { (probe.add(head), probe.add(head + len)) };
    for (edge, edge_len) in [(probe, head), (tail, probe_len - head - len)] {
        if edge_len > 0 {
            // SAFETY: an edge of the mapping made above, of which nobody knows yet.
            unsafe { imp::unmap(edge.as_ptr(), edge_len) };
        }
    }
    Ok(Mapping { start, len })
}
