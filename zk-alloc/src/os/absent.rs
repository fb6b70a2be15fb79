//! Calls that only Linux has: other systems refuse them or do not answer.
#![allow(unsafe_code, reason = "the signatures of Linux")]

use super::imp::UNSUPPORTED;
use super::{HostHugePages, NotMoved};

/// Refused.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn move_pages(_from: *mut u8, _to: *mut u8, _len: usize) -> Result<(), NotMoved> {
    Err(UNSUPPORTED.into())
}

/// Refused: no pages move.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn renew(_at: *mut u8, _len: usize) -> Result<(), NotMoved> {
    Err(UNSUPPORTED.into())
}

/// `false`: these systems do not tell what was touched.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn copy_held(_from: *const u8, _to: *mut u8, _len: usize) -> bool {
    false
}

/// Unknown: mincore(2) answers differently on each Unix system.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn count_resident(_at: *const u8, _len: usize) -> Option<usize> {
    None
}

/// Unknown.
pub(crate) fn max_mappings() -> Option<usize> {
    None
}

/// There are no control groups.
pub(crate) fn missing_memory(_spare_part: usize, _stall_percent: usize) -> usize {
    0
}

/// Unavailable: a program can't ask for huge pages.
pub(crate) fn host_huge_pages() -> HostHugePages {
    HostHugePages::Unavailable
}

/// Does nothing: only glibc can trim its heap.
pub(crate) fn trim_heap() {}
