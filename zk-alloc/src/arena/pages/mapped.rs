//! Which blocks of a zone are mapped. A block is the place of a huge page.
//!
//! A block is *ready* once it was mapped for the zone. That is for good. Memory is handed out, advised on and purged in ready blocks only.
//!
//! The kernel refuses to map what is mapped already. A thread must not take another thread's mapping for a foreign one. So it claims a
//! block before it maps it: one of the threads that change the block's word from 0 has the block to itself. If the kernel then finds
//! something mapped there, it is foreign, and the block is never ready.
//!
//! Nobody waits for a claimant. It may be the very thread that a signal handler interrupted. A thread that finds a block claimed takes
//! memory elsewhere. A claim holds the [generation](crate::os::process_generation) of its process. So a forked child knows the claims of
//! threads that only its parent has, and claims these blocks anew. What its parent's thread had mapped there counts as foreign in the
//! child: no memory is lost, only addresses.

use std::ops::Range;
use std::sync::atomic::{self, AtomicIsize, AtomicUsize};

use crate::arena::pages::bitmap::Bitmap;
use crate::sync::{AtomicU64, Ordering};
use crate::{os, tuning};

/// The edges of mappings in all zones. Below zero for an instant, while one thread counts what another took away.
static EDGES: AtomicIsize = AtomicIsize::new(0);

/// Whether there may be more moved mappings.
pub(crate) fn may_move() -> bool {
    EDGES.load(Ordering::Relaxed) < max_edges()
}

/// The edges from which on nothing is moved any more. Each adds a mapping.
fn max_edges() -> isize {
    (os::max_mappings() / tuning::moved_part()) as isize
}

/// The mappings that moved pages leave behind.
///
/// The kernel numbers the pages of a mapping by their first address. Pages that were moved keep their numbers, so the kernel never merges
/// their mapping with the neighbours: each move splits the zone's mapping in three, also after the run was freed. A process may have only
/// so many mappings (`vm.max_map_count`), and without more it can't even start a thread.
///
/// So the zone knows which pages lie in such mappings, and where those begin and end. The numbers come from moves (see
/// [`may_move`]); they go when a fresh mapping replaces the old one ([`Moved::renewed`]): when moved pages are purged, or move on. The owner of pages changes their bits. The bit of an edge between two owners may be wrong for a while if
/// both change theirs at once, which costs or hides one mapping.
#[derive(Debug)]
pub(crate) struct Moved {
    /// The pages that lie in moved mappings.
    pages: Bitmap<'static>,
    /// The pages at which such a mapping begins, or behind which one ended.
    edges: Bitmap<'static>,
}

impl Moved {
    /// A zone without moved mappings.
    pub(crate) fn new(pages: Bitmap<'static>, edges: Bitmap<'static>) -> Self {
        Self { pages, edges }
    }

    /// Pages were moved to the caller's run. `inner` are the edges between the mappings that they came from, counted from the start.
    pub(crate) fn moved_here(&self, start: usize, n: usize, inner: impl Iterator<Item = usize>) {
        self.pages.set(start, n);
        let gone = self.edges.clear(start, n);
        let outer = [0, n].into_iter().chain(inner);
        let new: usize = outer.map(|page| self.set_edge(start + page)).sum();
        count(new, gone);
    }

    /// The edges inside of a run, counted from its start.
    pub(crate) fn inner_edges(&self, start: usize, n: usize) -> impl Iterator<Item = usize> {
        let edges = if is_any_moved() { n.saturating_sub(1) } else { 0 };
        self.edges.set_runs(start + 1, edges).flat_map(|(first, len)| first..first + len).map(move |page| page - start)
    }

    /// Whether a fresh mapping for a run would leave no more mappings than there are. (In the midst of a moved mapping, it would.)
    pub(crate) fn is_better_renewed(&self, start: usize, n: usize) -> bool {
        if !is_any_moved() || self.pages.count(start, n) == 0 {
            return false;
        }
        let edges = self.edges.count(start, (n + 1).min(self.edges.len() - start));
        edges >= usize::from(self.is_moved_before(start)) + usize::from(self.is_moved_at(start + n))
    }

    /// The highest run of moved pages in `within` that are not in `used`, as `(start, length)`; `None` if there is none.
    pub(crate) fn last_free(&self, used: Bitmap<'static>, within: Range<usize>) -> Option<(usize, usize)> {
        self.pages.last_run_without(used, within.start, within.end, usize::MAX)
    }

    /// Whether a run that is freed is purged at once, because there are so many moved mappings.
    pub(crate) fn is_to_go(&self, start: usize, n: usize) -> bool {
        EDGES.load(Ordering::Relaxed) >= max_edges() / 2 && self.is_better_renewed(start, n)
    }

    /// A fresh mapping replaced those of the caller's run.
    pub(crate) fn renewed(&self, start: usize, n: usize) {
        self.pages.clear(start, n);
        let mut gone = self.edges.clear(start + 1, n - 1);
        let mut new = 0;
        for (edge, is_moved) in [(start, self.is_moved_before(start)), (start + n, self.is_moved_at(start + n))] {
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

    fn is_moved_at(&self, page: usize) -> bool {
        page < self.pages.len() && self.pages.count(page, 1) == 1
    }

    fn is_moved_before(&self, page: usize) -> bool {
        page > 0 && self.is_moved_at(page - 1)
    }
}

/// Whether moved mappings are left anywhere.
pub(crate) fn is_any_moved() -> bool {
    EDGES.load(Ordering::Relaxed) > 0
}

fn count(new: usize, gone: usize) {
    EDGES.fetch_add(new as isize - gone as isize, Ordering::Relaxed);
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Mapped {
    ready: Bitmap<'static>,
    /// For each block: 0, the generation of the process whose thread claimed it last, or [`NEVER`].
    claims: &'static [AtomicU64],
    /// Blocks from here on are not ready.
    end: AtomicUsize,
    /// The last blocks that were passed over: how many, and where they end.
    passed: AtomicUsize,
    passed_until: AtomicUsize,
    /// All blocks that were passed over.
    foreign: AtomicUsize,
}

/// The claim of a block that is foreign, or was passed over: it is never ready.
const NEVER: u64 = u64::MAX;

/// A search for claims behind an obstacle ends after this many.
const MAX_PROBES: usize = 64;

/// Why the kernel maps nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmapped {
    /// Something is mapped there already.
    Occupied,
    Refused,
}

/// Why blocks are not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Another thread is mapping one of them, or one is foreign. Blocks from `behind` on may be free. `passed` are blocks that were found
    /// to be foreign, or passed over, in this call.
    Taken { behind: usize, passed: Range<usize> },
    /// The kernel refuses memory.
    Refused,
}

impl Mapped {
    /// No block is ready. `ready` and `claims` are clear, and have room for all blocks.
    pub(crate) const fn new(ready: Bitmap<'static>, claims: &'static [AtomicU64]) -> Self {
        Self {
            ready,
            claims,
            end: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
            passed_until: AtomicUsize::new(0),
            foreign: AtomicUsize::new(0),
        }
    }

    /// Blocks from here on are not ready. Those before may be.
    pub(crate) fn end(&self) -> usize {
        self.end.load(atomic::Ordering::Acquire)
    }

    /// How many blocks are foreign, or were passed over with them.
    pub(crate) fn foreign(&self) -> usize {
        self.foreign.load(atomic::Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn is_ready(&self, block: usize) -> bool {
        self.ready.has(block)
    }

    /// The ready blocks, as ranges.
    pub(crate) fn ready(&self) -> impl Iterator<Item = Range<usize>> {
        self.ready.set_runs(0, self.end()).map(|(start, len)| start..start + len)
    }

    /// Whether a block is foreign, or was passed over.
    pub(crate) fn is_foreign(&self, block: usize) -> bool {
        self.claims[block].load(Ordering::SeqCst) == NEVER
    }

    /// Makes blocks ready, and perhaps some behind them, up to a multiple of `step`. `map` maps blocks.
    ///
    /// # Errors
    /// See [`Obstacle`]. Some of the blocks may be ready then.
    pub(crate) fn reach(
        &self,
        wanted: Range<usize>,
        step: impl FnOnce() -> usize,
        generation: impl FnOnce() -> u64,
        map: impl Fn(Range<usize>) -> Result<(), Unmapped>,
    ) -> Result<(), Obstacle> {
        if self.ready.next_clear_within(wanted.start, wanted.end).is_none() {
            return Ok(());
        }
        self.grow(wanted, step(), generation(), map)
    }

    #[cold]
    fn grow(
        &self,
        wanted: Range<usize>,
        step: usize,
        generation: u64,
        map: impl Fn(Range<usize>) -> Result<(), Unmapped>,
    ) -> Result<(), Obstacle> {
        while let Some(first) = self.ready.next_clear_within(wanted.start, wanted.end) {
            let end = self.ready.next_set(first, wanted.end).unwrap_or(wanted.end);
            if end == first {
                // Another thread mapped it between the two looks.
                continue;
            }
            let claimed = self.claim(first..end, generation);
            if claimed < end {
                self.unclaim(first..claimed);
                // The thread that had claimed the block may have mapped it since the first look.
                if self.is_ready_by_now(claimed) {
                    continue;
                }
                return Err(Obstacle::Taken { behind: self.behind(claimed, generation), passed: 0..0 });
            }
            let generous = end.next_multiple_of(step.max(1)).min(self.claims.len());
            let until = self.claim(end..generous, generation);
            if until > end {
                if map(first..until).is_ok() {
                    self.publish(first..until);
                    continue;
                }
                self.unclaim(end..until);
            }
            match map(first..end) {
                Ok(()) => self.publish(first..end),
                Err(Unmapped::Refused) => {
                    self.unclaim(first..end);
                    return Err(Obstacle::Refused);
                }
                Err(Unmapped::Occupied) => return Err(self.pass_first(first..end, map)),
            }
        }
        Ok(())
    }

    /// Claims blocks from the first on, until one is claimed or ready. Returns the end of the claimed ones.
    pub(crate) fn claim(&self, blocks: Range<usize>, generation: u64) -> usize {
        let claim = |&block: &usize| {
            let claim = &self.claims[block];
            let found = claim.load(Ordering::SeqCst);
            let is_free = found == 0 || (found != generation && found != NEVER);
            // Looked at after the claim was read: a ready block keeps its claim, and a claim of an ancestor's does not tell the two apart.
            // Of the threads that see the same claim, one replaces it.
            is_free
                && !self.is_ready_by_now(block)
                && claim.compare_exchange(found, generation, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let claimed = blocks.clone().take_while(claim).count();
        blocks.start + claimed
    }

    /// Gives up claims of the caller's.
    fn unclaim(&self, blocks: Range<usize>) {
        blocks.for_each(|block| self.claims[block].store(0, Ordering::SeqCst));
    }

    /// Blocks that the caller claimed and mapped are ready from now on.
    fn publish(&self, blocks: Range<usize>) {
        let is_first = self.ready.try_claim(blocks.start, blocks.len()).is_ok();
        debug_assert!(is_first, "a block was mapped twice");
        self.end.fetch_max(blocks.end, atomic::Ordering::AcqRel);
    }

    fn is_ready_by_now(&self, block: usize) -> bool {
        self.ready.next_clear_within(block, block + 1).is_none()
    }

    /// The first block behind a claimed one that is ready or not claimed, or one that is far behind it.
    fn behind(&self, taken: usize, generation: u64) -> usize {
        let end = self.claims.len().min(taken + MAX_PROBES);
        let is_taken = |&block: &usize| {
            let claim = self.claims[block].load(Ordering::SeqCst);
            (claim == NEVER || claim == generation) && !self.is_ready_by_now(block)
        };
        (taken + 1..end).find(|block| !is_taken(block)).unwrap_or(end)
    }

    /// Finds the first foreign block among blocks of the caller's, of which one is foreign. Makes those before it ready, and passes over it.
    fn pass_first(&self, blocks: Range<usize>, map: impl Fn(Range<usize>) -> Result<(), Unmapped>) -> Obstacle {
        // `from..until` is claimed, and holds a foreign block.
        let Range { start: mut from, end: mut until } = blocks;
        while until - from > 1 {
            let middle = from + (until - from) / 2;
            match map(from..middle) {
                Ok(()) => {
                    self.publish(from..middle);
                    from = middle;
                }
                Err(Unmapped::Occupied) => {
                    self.unclaim(middle..until);
                    until = middle;
                }
                Err(Unmapped::Refused) => {
                    self.unclaim(from..until);
                    return Obstacle::Refused;
                }
            }
        }
        let passed = self.pass(from);
        Obstacle::Taken { behind: passed.end, passed }
    }

    /// Passes over a foreign block of the caller's. If it stands where the last pass ended, passes over twice as many as then, but at most
    /// half of what is left. So a mapping of any length takes a few calls, and costs at most its own length in addresses behind it.
    fn pass(&self, block: usize) -> Range<usize> {
        let continues = self.passed_until.load(atomic::Ordering::Relaxed) == block;
        let len = if continues { 2 * self.passed.load(atomic::Ordering::Relaxed) } else { 1 };
        let until = block + len.clamp(1, (self.claims.len() - block).div_ceil(2));
        self.claims[block].store(NEVER, Ordering::SeqCst);
        // Blocks that are ready, or that another thread is mapping, stay as they are.
        let is_free =
            |&block: &usize| self.claims[block].compare_exchange(0, NEVER, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let others = (block + 1..until).filter(is_free).count();
        self.foreign.fetch_add(1 + others, atomic::Ordering::Relaxed);
        self.passed.store(until - block, atomic::Ordering::Relaxed);
        self.passed_until.store(until, atomic::Ordering::Relaxed);
        block..until
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const OURS: u8 = 1;
    const FOREIGN: u8 = 2;

    /// The kernel's view of a zone.
    struct Kernel(Mutex<Vec<u8>>);

    impl Kernel {
        fn new(blocks: usize, foreign: &[Range<usize>]) -> Self {
            let mut map = vec![0; blocks];
            foreign.iter().cloned().for_each(|range| map[range].fill(FOREIGN));
            Self(Mutex::new(map))
        }

        fn map(&self, blocks: Range<usize>) -> Result<(), Unmapped> {
            let mut map = self.0.lock().unwrap();
            if map[blocks.clone()].iter().any(|&owner| owner != 0) {
                return Err(Unmapped::Occupied);
            }
            map[blocks].fill(OURS);
            Ok(())
        }
    }

    fn mapped(blocks: usize) -> Mapped {
        let words = |len: usize| -> &'static [AtomicU64] { Box::leak((0..len).map(|_| AtomicU64::new(0)).collect()) };
        Mapped::new(Bitmap::new(words(Bitmap::words_for(blocks))), words(blocks))
    }

    /// Claims a place for `len` blocks as a zone does. Returns the place, and how many calls found an obstacle.
    fn place(mapped: &Mapped, kernel: &Kernel, len: usize, mut from: usize) -> Option<(usize, usize)> {
        for obstacles in 0.. {
            if from + len > mapped.claims.len() {
                return None;
            }
            match mapped.reach(from..from + len, || 1, || 7, |blocks| kernel.map(blocks)) {
                Ok(()) => return Some((from, obstacles)),
                Err(Obstacle::Taken { behind, .. }) => from = behind,
                Err(Obstacle::Refused) => return None,
            }
        }
        None
    }

    #[test]
    fn ready_blocks_are_those_that_were_mapped() {
        let (mapped, kernel) = (mapped(4096), Kernel::new(4096, &[10..11, 40..3000, 3500..3501]));
        let mut from = 0;
        while let Some((start, _)) = place(&mapped, &kernel, 3, from) {
            from = start + 3;
        }
        let map = kernel.0.lock().unwrap();
        (0..4096).for_each(|block| assert_eq!(mapped.is_ready(block), map[block] == OURS, "{block}"));
        assert!(map[..10].iter().all(|&owner| owner == OURS) && map[11..40].iter().all(|&owner| owner == OURS));
        assert!(map[3200..3500].iter().chain(&map[3501..4090]).all(|&owner| owner == OURS));
    }

    /// Each request pays for a few calls, however long the foreign mapping is.
    #[test]
    fn a_long_foreign_mapping_is_passed_in_a_few_calls() {
        let (mapped, kernel) = (mapped(1 << 16), Kernel::new(1 << 16, &[5..6, 6..20_000]));
        let (start, obstacles) = place(&mapped, &kernel, 50, 0).expect("a place behind");
        assert!((20_000..40_050).contains(&start) && obstacles <= 16, "{start} {obstacles}");
        assert!((0..5).all(|block| mapped.is_ready(block)), "what lies before it is mapped");
        assert!(mapped.foreign() < 40_000);
    }

    #[test]
    fn a_claimed_block_is_not_waited_for_and_not_taken_for_foreign() {
        let (mapped, kernel) = (mapped(64), Kernel::new(64, &[]));
        assert_eq!(mapped.claim(3..5, 7), 5);
        let taken = mapped.reach(2..6, || 1, || 7, |blocks| kernel.map(blocks));
        assert_eq!(taken, Err(Obstacle::Taken { behind: 5, passed: 0..0 }));
        assert!(!mapped.is_foreign(3) && mapped.claims[2].load(Ordering::Relaxed) == 0);
        assert_eq!(place(&mapped, &kernel, 4, 2), Some((5, 1)));
        // The claimant goes on.
        kernel.map(3..5).unwrap();
        mapped.publish(3..5);
        assert_eq!(place(&mapped, &kernel, 4, 2), Some((2, 0)));
    }

    /// A child has the claims of its parent's threads, and not the threads. They may have mapped the blocks, or not yet.
    #[test]
    fn a_forked_child_claims_anew_what_a_thread_of_its_parent_had_claimed() {
        for is_mapped in [false, true] {
            let (mapped, kernel) = (mapped(64), Kernel::new(64, &[]));
            assert_eq!(mapped.claim(0..4, 6), 4);
            if is_mapped {
                kernel.map(0..4).unwrap();
            }
            let (start, obstacles) = place(&mapped, &kernel, 2, 0).expect("a place");
            assert!(if is_mapped { start >= 4 && obstacles <= 3 } else { (start, obstacles) == (0, 0) });
            assert_eq!(mapped.is_foreign(0), is_mapped);
        }
    }

    #[test]
    fn a_refusal_leaves_the_blocks_to_a_later_request() {
        let (mapped, kernel) = (mapped(64), Kernel::new(64, &[]));
        assert_eq!(mapped.reach(0..4, || 16, || 7, |_| Err(Unmapped::Refused)), Err(Obstacle::Refused));
        let small = |blocks: Range<usize>| if blocks.len() > 4 { Err(Unmapped::Refused) } else { kernel.map(blocks) };
        assert_eq!(mapped.reach(0..4, || 16, || 7, small), Ok(()));
        assert_eq!((mapped.end(), place(&mapped, &kernel, 1, 4)), (4, Some((4, 0))));
    }

    #[test]
    fn threads_that_grow_at_once_map_each_block_once() {
        for round in 0..100 {
            let (mapped, kernel) = (&mapped(1024), &Kernel::new(1024, &[20..25, 200..300]));
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        for len in (1..12).cycle().skip(thread + round).take(20) {
                            let (start, _) = place(mapped, kernel, len, 0).expect("a place");
                            assert!((start..start + len).all(|block| mapped.is_ready(block)));
                        }
                    });
                }
            });
            let map = kernel.0.lock().unwrap();
            (0..1024).for_each(|block| assert_eq!(mapped.is_ready(block), map[block] == OURS, "{block}"));
        }
    }
}
