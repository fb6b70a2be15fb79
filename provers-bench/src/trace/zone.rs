//! Simulates a zone: its free runs of pages, and its resident pages.

use super::policy::Fit;
use std::collections::BTreeMap;

/// A simulated zone. Indices and lengths are in pages from the zone's start. The start satisfies every alignment.
#[derive(Clone, Debug)]
pub(crate) struct Zone {
    pub(crate) page_bytes: u64,
    fit: Fit,
    /// Free runs below `frontier`, by their start. They touch neither each other nor `frontier`.
    holes: BTreeMap<usize, usize>,
    /// All pages from here on are free.
    frontier: usize,
    /// Resident pages. A page stays resident after its first use, because the simulation never purges. Pages
    /// of slabs in use are clear.
    dirty: Vec<bool>,
    dirty_count: usize,
}

impl Zone {
    pub(crate) fn new(page_bytes: u64, fit: Fit) -> Self {
        Self { page_bytes, fit, holes: BTreeMap::new(), frontier: 0, dirty: Vec::new(), dirty_count: 0 }
    }

    /// Number of pages that `bytes` need.
    pub(crate) fn pages(&self, bytes: u64) -> usize {
        bytes.div_ceil(self.page_bytes) as usize
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.dirty_count as u64 * self.page_bytes
    }

    /// The place for a run: the lowest hole with room, or the smallest, depending on the policy; otherwise the
    /// frontier. Never below page `from`.
    pub(crate) fn find(&self, len: usize, align: usize, from: usize) -> usize {
        let fits = |&(&start, &hole): &(&usize, &usize)| start.max(from).next_multiple_of(align) + len <= start + hole;
        let hole = match self.fit {
            Fit::First => self.holes.iter().find(fits),
            Fit::Best => self.holes.iter().filter(fits).min_by_key(|&(_, &hole)| hole),
        };
        hole.map_or(self.frontier, |(&start, _)| start).max(from).next_multiple_of(align)
    }

    /// The highest place for a run whose pages are all resident.
    pub(crate) fn find_resident_from_the_top(&self, len: usize, align: usize) -> Option<usize> {
        let tail = (self.frontier, self.dirty.len().saturating_sub(self.frontier));
        let holes = self.holes.iter().rev().map(|(&start, &hole)| (start, hole));
        [tail].into_iter().chain(holes).find_map(|(start, hole)| {
            let place = (start + hole).checked_sub(len)? / align * align;
            (place >= start && self.fresh(place, len) == 0).then_some(place)
        })
    }

    /// Number of pages of a run that are not resident.
    pub(crate) fn fresh(&self, start: usize, len: usize) -> usize {
        let known = self.dirty.get(start.min(self.dirty.len())..(start + len).min(self.dirty.len()));
        len - known.map_or(0, |pages| pages.iter().filter(|dirty| **dirty).count())
    }

    /// Takes a free run and returns how many of its bytes were not resident.
    pub(crate) fn take(&mut self, start: usize, len: usize) -> u64 {
        self.claim(start, len);
        let fresh = self.fresh(start, len);
        self.dirty[start..start + len].fill(true);
        self.dirty_count += fresh;
        fresh as u64 * self.page_bytes
    }

    /// Takes a free run for a slab, which tracks its residency from then on. Returns which of its pages are
    /// resident.
    pub(crate) fn hand_over(&mut self, start: usize, len: usize) -> Vec<bool> {
        self.claim(start, len);
        let resident = self.dirty[start..start + len].to_vec();
        self.forget(start, len);
        resident
    }

    /// Takes a slab's run back. `resident` says which of its pages are resident.
    pub(crate) fn take_back(&mut self, start: usize, resident: &[bool]) {
        self.dirty[start..start + resident.len()].copy_from_slice(resident);
        self.dirty_count += resident.iter().filter(|resident| **resident).count();
        self.release(start, resident.len());
    }

    /// Marks a run as not resident, because its memory moved elsewhere. Returns how many bytes were resident.
    pub(crate) fn forget(&mut self, start: usize, len: usize) -> u64 {
        let gone = len - self.fresh(start, len);
        self.dirty[start..start + len].fill(false);
        self.dirty_count -= gone;
        gone as u64 * self.page_bytes
    }

    fn claim(&mut self, start: usize, len: usize) {
        let end = start + len;
        if start >= self.frontier {
            if start > self.frontier {
                self.holes.insert(self.frontier, start - self.frontier);
            }
            self.frontier = end;
        } else if let Some((&hole_start, &hole)) = self.holes.range(..=start).next_back() {
            let hole_end = hole_start + hole;
            assert!(end <= hole_end, "a run that is not free was taken");
            self.holes.remove(&hole_start);
            if start > hole_start {
                self.holes.insert(hole_start, start - hole_start);
            }
            if hole_end > end {
                self.holes.insert(end, hole_end - end);
            }
        }
        if self.dirty.len() < end {
            self.dirty.resize(end, false);
        }
    }

    /// Whether a run is free.
    pub(crate) fn is_free(&self, start: usize, len: usize) -> bool {
        start >= self.frontier
            || self
                .holes
                .range(..=start)
                .next_back()
                .is_some_and(|(&hole_start, &hole)| start + len <= hole_start + hole)
    }

    /// Frees a run and merges it with the free runs next to it.
    pub(crate) fn release(&mut self, start: usize, len: usize) {
        let (mut start, mut end) = (start, start + len);
        if let Some((&before, &hole)) = self.holes.range(..start).next_back()
            && before + hole == start
        {
            self.holes.remove(&before);
            start = before;
        }
        if let Some(after) = self.holes.remove(&end) {
            end += after;
        }
        if end == self.frontier {
            self.frontier = start;
        } else {
            self.holes.insert(start, end - start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(zone: &mut Zone, len: usize, align: usize) -> (usize, u64) {
        let start = zone.find(len, align, 0);
        (start, zone.take(start, len))
    }

    #[test]
    fn freed_neighbours_join_and_are_used_again_without_fresh_memory() {
        let mut zone = Zone::new(1, Fit::First);
        assert_eq!([1, 2, 3, 4].map(|len| claim(&mut zone, len, 1)), [(0, 1), (1, 2), (3, 3), (6, 4)]);
        zone.release(1, 2);
        zone.release(3, 3);
        assert_eq!(claim(&mut zone, 5, 1), (1, 0));
        zone.release(6, 4);
        assert_eq!(claim(&mut zone, 6, 1), (6, 2));
        assert_eq!(zone.resident_bytes(), 12);
    }

    #[test]
    fn first_fit_takes_the_lowest_hole_and_best_fit_the_smallest() {
        for (fit, place) in [(Fit::First, 0), (Fit::Best, 6)] {
            let mut zone = Zone::new(1, fit);
            for len in [5, 1, 2, 1] {
                claim(&mut zone, len, 1);
            }
            zone.release(0, 5);
            zone.release(6, 2);
            assert_eq!(claim(&mut zone, 2, 1), (place, 0), "{fit:?}");
        }
    }

    #[test]
    fn an_aligned_run_leaves_the_room_before_it_free() {
        let mut zone = Zone::new(1, Fit::First);
        claim(&mut zone, 1, 1);
        assert_eq!(claim(&mut zone, 4, 4), (4, 4));
        assert!(zone.is_free(1, 3) && !zone.is_free(1, 4));
        assert_eq!(claim(&mut zone, 3, 1), (1, 3));
    }

    /// A slab may return with one resident page of the kernel in a page of the zone. Then the zone owns that page as resident,
    /// and no other.
    #[test]
    fn what_a_slab_made_resident_is_the_zone_s_again_when_it_comes_back() {
        let mut zone = Zone::new(1, Fit::First);
        zone.take(0, 2);
        zone.release(0, 2);
        assert_eq!(zone.hand_over(0, 4), [true, true, false, false]);
        assert_eq!(zone.resident_bytes(), 0);
        zone.take_back(0, &[true, true, true, false]);
        assert_eq!((zone.resident_bytes(), claim(&mut zone, 4, 1)), (3, (0, 1)));
        assert_eq!((zone.forget(0, 4), zone.resident_bytes()), (4, 0));
    }

    #[test]
    fn a_spilled_run_comes_from_the_top_of_what_is_resident() {
        let mut zone = Zone::new(1, Fit::First);
        claim(&mut zone, 10, 1);
        assert_eq!(zone.find_resident_from_the_top(3, 1), None);
        zone.release(0, 10);
        assert_eq!(zone.find_resident_from_the_top(3, 2), Some(6));
        assert_eq!(zone.find_resident_from_the_top(11, 1), None);
    }
}
