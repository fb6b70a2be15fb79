//! Where the zone's blocks may be huge pages.

use std::ops::Range;

use super::Zone;

impl Zone {
    /// Whether the first touch of a granule faults in a huge page.
    pub(super) fn comes_whole(&self, granule: usize) -> bool {
        self.huge.are_asked(self.bytes(granule)) && !self.huge.is_forbidden(&self.residency, granule)
    }

    /// See [`HugePages::allow`].
    pub(super) fn allow_huge(&self, granules: Range<usize>) {
        self.huge.allow(&self.residency, granules, self.committed.granules());
    }

    /// See [`HugePages::forbid_around`].
    pub(super) fn forbid_huge_around(&self, granules: Range<usize>) {
        self.huge.forbid_around(&self.residency, granules, self.committed.granules());
    }

    /// Forbids the blocks around pages of the caller's slab to be huge. These pages are about to be purged.
    pub(crate) fn forbid_huge_at(&self, at: *mut u8, bytes: usize) {
        let start = self.granule_at(at.addr());
        self.forbid_huge_around(start..start + self.granules(bytes));
    }
}
