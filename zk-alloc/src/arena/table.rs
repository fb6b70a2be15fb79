//! Tables of atomics for metadata: all zeroes at first, and faulted in as they are touched.
#![allow(unsafe_code, reason = "lays atomics over zeroed memory")]

#[cfg(not(loom))]
use super::align::align_up;
use crate::os::Errno;
#[cfg(not(loom))]
use crate::os::{self, HUGE_PAGE_BYTES, Mapping};

/// An atomic integer, which may be laid over zeroed memory.
///
/// # Safety
/// All-zero bytes are a valid value, which needs no drop, and all changes to it are atomic.
pub(super) unsafe trait Zeroed: Sync + 'static {
    #[cfg(loom)]
    fn zero() -> Self;
}

macro_rules! zeroed {
    ($($atomic:ty),*) => {$(
        // SAFETY: an integer that is only changed atomically.
        unsafe impl Zeroed for $atomic {
            #[cfg(loom)]
            fn zero() -> Self {
                Self::new(0)
            }
        }
    )*};
}
zeroed!(crate::sync::AtomicU8, crate::sync::AtomicU64);
#[cfg(feature = "c-api")]
zeroed!(std::sync::atomic::AtomicU32);

/// A table. Once published, it lasts as long as the process, because threads may read it at any time.
#[derive(Debug)]
pub(super) struct Table<T: Zeroed> {
    entries: &'static [T],
    #[cfg(not(loom))]
    mapping: Mapping,
}

impl<T: Zeroed> Table<T> {
    /// A table of `len` zeroes.
    ///
    /// # Errors
    /// The system's error, if it grants no memory.
    #[cfg(not(loom))]
    pub(super) fn new(len: usize) -> Result<Self, Errno> {
        let mapping = os::map_zeroed(align_up((len * size_of::<T>()).max(1), HUGE_PAGE_BYTES))?.out_of_dumps();
        // SAFETY: the mapping is long enough, aligned to a page, zeroed, and reached through nothing else. It is unmapped
        // when the table is dropped, which happens only before anybody else saw it (`Arena::build` fails).
        let entries = unsafe { std::slice::from_raw_parts(mapping.start().cast::<T>().as_ptr(), len) };
        Ok(Self { entries, mapping })
    }

    /// As [`new`](Self::new), but only reserves address space: [`commit`](Self::commit) makes entries usable.
    ///
    /// # Errors
    /// The system's error, if it grants no address space.
    #[cfg(not(loom))]
    pub(super) fn reserve(len: usize) -> Result<Self, Errno> {
        let mapping = os::reserve(align_up((len * size_of::<T>()).max(1), HUGE_PAGE_BYTES))?.out_of_dumps();
        // SAFETY: as in `new`; no entry is read before it is committed, and it is zero then.
        let entries = unsafe { std::slice::from_raw_parts(mapping.start().cast::<T>().as_ptr(), len) };
        Ok(Self { entries, mapping })
    }

    /// Makes entries `from..to` usable. Entries that are usable already keep their values.
    ///
    /// # Errors
    /// The system's error, if it grants no memory.
    #[cfg(not(loom))]
    pub(super) fn commit(&self, from: usize, to: usize) -> Result<(), Errno> {
        let page = os::page_bytes();
        let start = from * size_of::<T>() / page * page;
        let end = align_up(to * size_of::<T>(), page).min(self.mapping.len());
        // SAFETY: within the reservation.
        unsafe { os::commit(self.mapping.start().add(start).as_ptr(), end - start) }
    }

    #[cfg(loom)]
    pub(super) fn new(len: usize) -> Result<Self, Errno> {
        let entries: Vec<T> = (0..len).map(|_| T::zero()).collect();
        Ok(Self { entries: Box::leak(entries.into_boxed_slice()) })
    }

    #[cfg(loom)]
    pub(super) fn reserve(len: usize) -> Result<Self, Errno> {
        Self::new(len)
    }

    #[cfg(loom)]
    pub(super) fn commit(&self, _from: usize, _to: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// All entries. Of a [reserved](Self::reserve) table, only those that were committed may be touched.
    #[inline(always)]
    pub(super) fn all(&self) -> &'static [T] {
        self.entries
    }
}

/// A model makes thousands of tables. No reference into a table is left when it is dropped.
#[cfg(loom)]
impl<T: Zeroed> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, and dropped together with the structure that held the table.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self.entries).cast_mut()) });
    }
}
