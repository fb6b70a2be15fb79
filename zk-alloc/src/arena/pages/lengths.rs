//! The lengths of page runs, for C, whose `free` does not pass them. The table of size classes has the length of a block already, so small
//! requests pay nothing.
//!
//! The entry of a run is that of its first page, and belongs to the owner of the run. It is 0 where no run begins. So the arena detects
//! an address that is freed twice or was never handed out.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::arena::pages::bitmap::Table;
use crate::arena::pages::layout::RunKind;
use crate::arena::pages::zone::Zone;
use crate::os::Errno;

/// Entries are made usable for this many pages at once.
const COMMIT_PAGES: usize = 16 << 10;

/// The lengths of one zone's runs, in pages.
#[derive(Debug)]
struct ZoneLengths {
    pages: Table<AtomicU32>,
    /// How many entries are usable, from the first on. Only grows.
    committed: AtomicUsize,
}

/// The lengths of all runs, zone by zone in the order of [`RunKind`].
#[derive(Debug)]
pub(crate) struct Lengths([ZoneLengths; 3]);

impl Lengths {
    /// Tables for zones without a run.
    ///
    /// # Errors
    /// The system's error, if it grants no address space for the tables.
    pub(crate) fn new(zones: &[Zone; 3]) -> Result<Self, Errno> {
        let of = |zone: &Zone| -> Result<ZoneLengths, Errno> {
            let pages = Table::reserve(zone.capacity_bytes() / zone.page_bytes())?;
            Ok(ZoneLengths { pages, committed: AtomicUsize::new(0) })
        };
        let [aligned, mid, huge] = zones;
        Ok(Self([of(aligned)?, of(mid)?, of(huge)?]))
    }

    /// Notes the length of a run that the caller owns; `false` if the system has no memory for the entry.
    #[inline]
    pub(crate) fn set(&self, runs: RunKind, zone: &Zone, at: NonNull<u8>, bytes: usize) -> bool {
        let lengths = &self.0[runs as usize];
        let place = zone.index(at);
        if place >= lengths.committed.load(Ordering::Acquire) && !lengths.commit_to(place + 1) {
            return false;
        }
        let pages = zone.run_bytes(bytes) / zone.page_bytes();
        lengths.pages.all()[place].store(pages as u32, Ordering::Relaxed);
        true
    }

    /// The length in bytes of the run at an address; `None` if no run begins there.
    #[inline]
    pub(crate) fn get(&self, runs: RunKind, zone: &Zone, at: NonNull<u8>) -> Option<usize> {
        let entry = self.entry(runs, zone, at)?;
        Some(entry.load(Ordering::Relaxed) as usize * zone.page_bytes()).filter(|&bytes| bytes > 0)
    }

    /// As [`get`](Self::get), for a caller that is about to free the run. Clears the entry.
    #[inline]
    pub(crate) fn take(&self, runs: RunKind, zone: &Zone, at: NonNull<u8>) -> Option<usize> {
        let entry = self.entry(runs, zone, at)?;
        let pages = entry.load(Ordering::Relaxed) as usize;
        entry.store(0, Ordering::Relaxed);
        Some(pages * zone.page_bytes()).filter(|&bytes| bytes > 0)
    }

    /// The entry of the run at an address; `None` if no run can begin there.
    #[inline]
    fn entry(&self, runs: RunKind, zone: &Zone, at: NonNull<u8>) -> Option<&'static AtomicU32> {
        let lengths = &self.0[runs as usize];
        let place = zone.index(at);
        // All zones lie on multiples of their pages, which are powers of two.
        let begins = at.addr().get() & (zone.page_bytes() - 1) == 0;
        let is_usable = begins && place < lengths.committed.load(Ordering::Acquire);
        if is_usable { lengths.pages.all().get(place) } else { None }
    }
}

impl ZoneLengths {
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
