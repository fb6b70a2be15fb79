//! Tracks the mappings of moved pages, and limits their number.
//!
//! The kernel numbers the pages of a mapping by the address at which they were first mapped. Pages that were moved keep their numbers, so
//! the kernel never merges their mapping with its neighbours. Each move splits the zone's mapping in three, and it stays split after the
//! run is freed. The kernel limits the mappings of a process (`vm.max_map_count`). A process at this limit can't even start a thread.

use std::ops::Range;
use std::sync::atomic::AtomicIsize;

use crate::arena::pages::bitmap::Bitmap;
use crate::sync::Ordering;
use crate::{os, tuning};

/// The number of edges of moved mappings in all zones. It may briefly be below zero, because threads change edges before they count the
/// changes.
static EDGES: AtomicIsize = AtomicIsize::new(0);

/// Whether the limit on mappings allows more moves.
pub(crate) fn may_move() -> bool {
    EDGES.load(Ordering::Relaxed) < max_edges()
}

/// Returns the number of edges at which the arena stops moving pages. Each edge adds a mapping.
fn max_edges() -> isize {
    (os::max_mappings() / tuning::moved_part()) as isize
}

/// Which pages of a zone are in moved mappings, and where those mappings begin and end. Moves add such mappings (see [`may_move`]). When
/// moved pages are purged or moved again, a fresh mapping may replace the one that they leave ([`Moved::renewed`]). The owner of a page
/// changes its bits. If the owners of neighbouring pages do so at the same time, the bit of the edge between these pages may be wrong for a
/// while, and the count is then off by one.
pub(crate) struct Moved {
    /// The pages that are in moved mappings.
    pub(crate) pages: Bitmap<'static>,
    /// The pages at which such a mapping begins, and the pages directly above its end.
    pub(crate) edges: Bitmap<'static>,
}

impl Moved {
    /// Records that pages were moved to the caller's run. `inner` yields the edges between the mappings that the pages came from, relative
    /// to the start of the run.
    pub(crate) fn moved_here(&self, start: usize, n: usize, inner: impl Iterator<Item = usize>) {
        self.pages.set(start, n);
        let gone = self.edges.clear(start, n);
        let outer = [0, n].into_iter().chain(inner);
        let new: usize = outer.map(|page| self.set_edge(start + page)).sum();
        count(new, gone);
    }

    /// Returns the edges inside a run, relative to its start.
    pub(crate) fn inner_edges(&self, start: usize, n: usize) -> impl Iterator<Item = usize> {
        let edges = if is_any_moved() { n.saturating_sub(1) } else { 0 };
        self.edges.set_runs(start + 1, edges).flat_map(|(first, len)| first..first + len).map(move |page| page - start)
    }

    /// Whether to replace the mappings of a run with a fresh one: the run has moved pages, and the replacement would not increase the
    /// number of mappings. (In the middle of a moved mapping, it would.)
    pub(crate) fn is_better_renewed(&self, start: usize, n: usize) -> bool {
        if !is_any_moved() || self.pages.count(start, n) == 0 {
            return false;
        }
        let edges = self.edges.count(start, (n + 1).min(self.edges.len() - start));
        edges >= usize::from(self.is_moved_before(start)) + usize::from(self.pages.has(start + n))
    }

    /// Finds the highest run of moved pages in `within` that are not in `used`, as `(start, length)`.
    pub(crate) fn last_free(&self, used: Bitmap<'static>, within: Range<usize>) -> Option<(usize, usize)> {
        self.pages.last_run_without(used, within.start, within.end, usize::MAX)
    }

    /// Whether to purge a freed run at once, because there are many moved mappings.
    pub(crate) fn is_to_go(&self, start: usize, n: usize) -> bool {
        EDGES.load(Ordering::Relaxed) >= max_edges() / 2 && self.is_better_renewed(start, n)
    }

    /// Records that a fresh mapping replaced all mappings in the caller's run.
    pub(crate) fn renewed(&self, start: usize, n: usize) {
        self.pages.clear(start, n);
        let mut gone = self.edges.clear(start + 1, n - 1);
        let mut new = 0;
        for (edge, is_moved) in [(start, self.is_moved_before(start)), (start + n, self.pages.has(start + n))] {
            if is_moved {
                new += self.set_edge(edge);
            } else if edge < self.edges.len() {
                gone += self.edges.clear(edge, 1);
            }
        }
        count(new, gone);
    }

    fn set_edge(&self, page: usize) -> usize {
        if page < self.edges.len() { self.edges.set(page, 1) } else { 0 }
    }

    fn is_moved_before(&self, page: usize) -> bool {
        page > 0 && self.pages.has(page - 1)
    }
}

/// Whether any zone still has moved mappings.
pub(crate) fn is_any_moved() -> bool {
    EDGES.load(Ordering::Relaxed) > 0
}

fn count(new: usize, gone: usize) {
    EDGES.fetch_add(new as isize - gone as isize, Ordering::Relaxed);
}
