//! Memory of the tables. The first start maps it, so that a program that is never sampled has none.
#![allow(unsafe_code, reason = "lays tables over zeroed memory")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::os::{self, Errno};

/// A table of atomics.
///
/// # Safety
/// All-zero bytes are a valid value, and all changes to it are atomic.
pub(super) unsafe trait AllZero: Sync + 'static {}

/// A table that is mapped once, and lasts as long as the process.
pub(super) struct Mapped<T>(AtomicPtr<T>);

impl<T: AllZero> Mapped<T> {
    pub(super) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// The table; `None` before it is mapped.
    #[inline(always)]
    pub(super) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or a mapping that is never unmapped. It is long enough, aligned to a page, and all zeroes was a `T`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Maps the table, unless it is there.
    ///
    /// # Errors
    /// The system's, if it grants no memory.
    pub(super) fn map(&self) -> Result<(), Errno> {
        if self.get().is_some() {
            return Ok(());
        }
        let mapping = os::map_zeroed(os::round_up(size_of::<T>(), os::page_bytes())?)?.for_table();
        let table = mapping.start().as_ptr().cast();
        // Another thread may have been faster. Then this mapping is dropped.
        if self.0.compare_exchange(null_mut(), table, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            std::mem::forget(mapping);
        }
        Ok(())
    }
}
