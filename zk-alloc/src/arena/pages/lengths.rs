//! The lengths of page runs, for C programs, whose `free` does not pass them. The table of size classes already gives the length of a
//! block, so small requests pay nothing.
//!
//! A run's entry is that of its first page, and belongs to the owner of the run. An entry is 0 where no run begins. So the arena detects an
//! address that is freed twice or was never handed out.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::arena::pages::bitmap::Table;
use crate::arena::pages::zone::Zone;
use crate::os::Errno;

/// The number of pages whose entries are made usable at once.
const COMMIT_PAGES: usize = 16 << 10;

/// The lengths of one zone's runs, in pages.
pub(crate) struct Lengths {
    pages: Table<AtomicU32>,
    /// The number of usable entries, from the first on. It only grows.
    committed: AtomicUsize,
}

impl Lengths {
    /// Creates the table of a zone of `pages` pages, which has no runs yet.
    ///
    /// # Errors
    /// The system's error, if it refuses address space for the table.
    pub(crate) fn new(pages: usize) -> Result<Self, Errno> {
        Ok(Self { pages: Table::reserve(pages)?, committed: AtomicUsize::new(0) })
    }

    /// Records the length of a run that the caller owns. Returns `false` if the system has no memory for the entry.
    #[inline]
    pub(crate) fn set(zone: &Zone, at: NonNull<u8>, bytes: usize) -> bool {
        let (lengths, place) = (&zone.lengths, zone.index(at));
        if place >= lengths.committed.load(Ordering::Acquire) && !lengths.commit_to(place + 1) {
            return false;
        }
        let pages = zone.run_bytes(bytes) / zone.page_bytes();
        lengths.pages.all()[place].store(pages as u32, Ordering::Relaxed);
        true
    }

    /// Returns the length in bytes of the run at an address, or `None` if no run begins there.
    #[inline]
    pub(crate) fn get(zone: &Zone, at: NonNull<u8>) -> Option<usize> {
        let entry = Self::entry(zone, at)?;
        Some(entry.load(Ordering::Relaxed) as usize * zone.page_bytes()).filter(|&bytes| bytes > 0)
    }

    /// Like [`get`](Self::get), for a caller that is about to free the run. Clears the entry.
    #[inline]
    pub(crate) fn take(zone: &Zone, at: NonNull<u8>) -> Option<usize> {
        let entry = Self::entry(zone, at)?;
        let pages = entry.load(Ordering::Relaxed) as usize;
        entry.store(0, Ordering::Relaxed);
        Some(pages * zone.page_bytes()).filter(|&bytes| bytes > 0)
    }

    /// Returns the entry of the run at an address, or `None` if no run can begin there.
    #[inline]
    fn entry(zone: &Zone, at: NonNull<u8>) -> Option<&'static AtomicU32> {
        let (lengths, place) = (&zone.lengths, zone.index(at));
        // Each zone begins at a multiple of its page size, which is a power of two.
        let begins = at.addr().get() & (zone.page_bytes() - 1) == 0;
        let is_usable = begins && place < lengths.committed.load(Ordering::Acquire);
        if is_usable { lengths.pages.all().get(place) } else { None }
    }

    #[cold]
    fn commit_to(&self, until: usize) -> bool {
        let before = self.committed.load(Ordering::Acquire);
        let target = until.next_multiple_of(COMMIT_PAGES).min(self.pages.all().len());
        let committed = until <= before || self.pages.commit(before, target).is_ok();
        if committed {
            self.committed.fetch_max(target, Ordering::AcqRel);
        }
        committed
    }
}
