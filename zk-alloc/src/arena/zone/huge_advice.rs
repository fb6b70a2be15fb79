//! Where the zone's blocks may be huge pages.

use std::ops::Range;

use super::Zone;

impl Zone {
    /// Whether the first touch of a page faults in a huge page.
    pub(super) fn faults_huge_page(&self, page: usize) -> bool {
        self.huge.are_asked(self.bytes(page)) && !self.huge.is_forbidden(&self.residency, page)
    }

    /// See [`HugePages::allow`].
    pub(super) fn allow_huge(&self, pages: Range<usize>) {
        self.huge.allow(&self.residency, pages, self.mapped_end());
    }

    /// See [`HugePages::forbid_around`].
    pub(super) fn forbid_huge_around(&self, pages: Range<usize>) {
        self.huge.forbid_around(&self.residency, pages, self.mapped_end());
    }

    /// Forbids the blocks around pages of the caller's slab to be huge. These pages are about to be purged.
    pub(crate) fn forbid_huge_at(&self, at: *mut u8, bytes: usize) {
        let start = self.page_at(at.addr());
        self.forbid_huge_around(start..start + self.pages(bytes));
    }
}
