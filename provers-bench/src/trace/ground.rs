//! The zones of an arena, and the slabs in one of them. Residency is tracked per page of a zone, and per page of the kernel in
//! slabs in use, as in zk-alloc (`zk-alloc/src/arena/heap/slab.rs`).

use super::policy::Policy;
use super::zone::Zone;
use zk_alloc::simulation;

/// Unit of residency in a slab: the pages that a handed-out block touches are resident.
const PAGE_BYTES: u64 = 4 << 10;

/// Zones and slabs; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Ground {
    /// Zones of runs, followed by the zone of slabs if slabs have their own.
    pub(crate) zones: Vec<Zone>,
    slab_zone: usize,
    /// Bytes at the start of the slabs' zone that long runs may not use.
    small_only_bytes: u64,
    long_run_bytes: u64,
    /// Resident pages of slabs in use.
    slab_pages: u64,
    pub(crate) slab_bytes_most: u64,
    /// Bytes that became resident so far.
    pub(crate) fresh_bytes: u64,
}

/// A slab in use.
#[derive(Debug)]
pub(crate) struct Slab {
    start: usize,
    zone_pages: usize,
    /// Residency of each of its pages.
    present: Vec<bool>,
}

impl Ground {
    pub(crate) fn new(policy: &Policy) -> Self {
        let mut page_bytes = policy.page_bytes();
        let among = simulation::SLABS_AMONG_BYTES;
        page_bytes.extend(policy.slabs_apart.then_some(simulation::page_bytes(among) as u64));
        let zones: Vec<_> = page_bytes.into_iter().map(|bytes| Zone::new(bytes, policy.fit)).collect();
        let slab_zone = if policy.slabs_apart { zones.len() - 1 } else { policy.zone(among as u64) };
        let (small_only_bytes, long_run_bytes) = (policy.small_only_bytes, policy.long_run_bytes);
        Self { zones, slab_zone, small_only_bytes, long_run_bytes, slab_pages: 0, slab_bytes_most: 0, fresh_bytes: 0 }
    }

    /// Resident bytes of the whole arena.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.zones.iter().map(Zone::resident_bytes).sum::<u64>() + self.slab_bytes()
    }

    /// Resident bytes of slabs in use.
    pub(crate) fn slab_bytes(&self) -> u64 {
        self.slab_pages * PAGE_BYTES
    }

    /// The first page of a zone that a run of `size_bytes` may take.
    pub(crate) fn runs_from(&self, zone: usize, size_bytes: u64) -> usize {
        let stays_out = zone == self.slab_zone && size_bytes >= self.long_run_bytes;
        self.zones[zone].pages(if stays_out { self.small_only_bytes } else { 0 })
    }

    /// Takes a run of a zone.
    pub(crate) fn take_run(&mut self, zone: usize, start: usize, len: usize) {
        self.fresh_bytes += self.zones[zone].take(start, len);
    }

    /// Frees a run whose pages moved to another run.
    pub(crate) fn release_moved_run(&mut self, zone: usize, start: usize, len: usize) {
        let moved = self.zones[zone].forget(start, len);
        self.fresh_bytes = self.fresh_bytes.saturating_sub(moved);
        self.zones[zone].release(start, len);
    }

    /// Takes the lowest free slab of `bytes`. Returns its address and the slab.
    pub(crate) fn claim_slab(&mut self, bytes: u64) -> (u64, Slab) {
        let zone = &mut self.zones[self.slab_zone];
        let zone_pages = zone.pages(bytes);
        let start = zone.find(zone_pages, zone_pages, 0);
        let pages = (zone.page_bytes / PAGE_BYTES) as usize;
        let resident = zone.hand_over(start, zone_pages);
        let present: Vec<_> =
            resident.into_iter().flat_map(|is_resident| std::iter::repeat_n(is_resident, pages)).collect();
        self.slab_pages += count(&present);
        self.slab_bytes_most = self.slab_bytes_most.max(self.slab_bytes());
        let address = start as u64 * self.zones[self.slab_zone].page_bytes;
        (address, Slab { start, zone_pages, present })
    }

    /// Records that a block of `bytes` at `offset` of a slab is handed out.
    pub(crate) fn touch(&mut self, slab: &mut Slab, offset: u64, bytes: u64) {
        let pages = (offset / PAGE_BYTES) as usize..(offset + bytes).div_ceil(PAGE_BYTES) as usize;
        let touched = &mut slab.present[pages];
        let missing = touched.len() as u64 - count(touched);
        if missing > 0 {
            touched.fill(true);
            self.slab_pages += missing;
            self.fresh_bytes += missing * PAGE_BYTES;
            self.slab_bytes_most = self.slab_bytes_most.max(self.slab_bytes());
        }
    }

    /// Takes an empty slab back. The zone tracks its own pages only. One that is partly resident counts as resident.
    pub(crate) fn release_slab(&mut self, slab: &Slab) {
        let there = count(&slab.present);
        let pages = slab.present.len() / slab.zone_pages;
        let resident: Vec<_> = slab.present.chunks(pages).map(|pages| pages.contains(&true)).collect();
        self.fresh_bytes += (count(&resident) * pages as u64 - there) * PAGE_BYTES;
        self.slab_pages -= there;
        self.zones[self.slab_zone].take_back(slab.start, &resident);
    }
}

fn count(flags: &[bool]) -> u64 {
    flags.iter().filter(|flag| **flag).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::policy::Fit;

    /// A slab with few blocks must not count as fully resident. Its pages must not be forgotten when it is released.
    #[test]
    fn a_slab_is_resident_by_the_page_and_what_it_leaves_by_the_page_of_the_zone() {
        let mut ground = Ground::new(&Policy::ours());
        ground.zones[ground.slab_zone] = Zone::new(16 << 10, Fit::First);
        let (address, mut slab) = ground.claim_slab(64 << 10);
        assert_eq!((address, ground.resident_bytes()), (0, 0));
        ground.touch(&mut slab, 4000, 200);
        ground.touch(&mut slab, 8192, 1);
        assert_eq!((ground.resident_bytes(), ground.fresh_bytes), (12 << 10, 12 << 10));
        ground.release_slab(&slab);
        assert_eq!((ground.resident_bytes(), ground.fresh_bytes), (16 << 10, 16 << 10));
        let (_, slab) = ground.claim_slab(64 << 10);
        assert_eq!((ground.slab_bytes(), ground.resident_bytes()), (16 << 10, 16 << 10));
        ground.release_slab(&slab);
        assert_eq!(ground.slab_bytes_most, 16 << 10);
    }
}
