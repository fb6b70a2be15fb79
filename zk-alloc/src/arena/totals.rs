//! Sums over all zones, slabs and thread caches.

use super::Arena;
use super::thread_cache::{self, Totals};
use super::zone::Zone;
use crate::counters::ZoneCounters;

impl Arena {
    /// Bytes requested since the process started.
    pub(super) fn served_bytes(&self) -> u64 {
        let by_threads = self.block_totals().bytes + thread_cache::run_totals().bytes;
        self.counters().fold(by_threads, |sum, zone| sum + zone.bytes())
    }

    /// Blocks handed out, and the bytes requested in them, since the process started.
    pub(crate) fn block_totals(&self) -> Totals {
        self.size_classes.totals()
    }

    /// Requests of the calling thread.
    pub(crate) fn thread_totals(&self) -> Totals {
        thread_cache::thread_totals()
    }

    /// Bytes of live blocks.
    pub(crate) fn live_block_bytes(&self) -> usize {
        self.size_classes.live_bytes()
    }

    /// Slabs in use, and their bytes.
    pub(crate) fn slabs(&self) -> (usize, usize) {
        self.size_classes.slabs()
    }

    /// Bytes of page runs in thread caches.
    pub(crate) fn cached_run_bytes(&self) -> usize {
        thread_cache::cached_run_bytes()
    }

    /// Bytes of the slabs that are resident.
    pub(crate) fn resident_slab_bytes(&self) -> usize {
        self.size_classes.resident_slab_bytes()
    }

    /// Bytes that were prefaulted, and not handed out since.
    pub(crate) fn prefaulted_bytes(&self) -> usize {
        self.region.zones().iter().map(Zone::prefaulted_bytes).sum()
    }

    /// Bytes for which the kernel has pages; `None` if it does not tell.
    pub(crate) fn kernel_bytes(&self) -> Option<usize> {
        self.region.zones().iter().map(Zone::kernel_bytes).sum()
    }

    /// Bytes of address space that the region spans.
    pub(crate) fn address_space_bytes(&self) -> usize {
        self.region.len()
    }

    /// The zones' counters.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &ZoneCounters> {
        self.region.zones().iter().map(|zone| zone.counters())
    }
}
