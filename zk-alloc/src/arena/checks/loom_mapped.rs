//! Every interleaving of threads that map blocks of a zone: a block is mapped once, and a thread's mapping never counts as foreign.

use std::ops::Range;

use loom::sync::Arc;

use super::models::{beside, bounded, words};
use crate::arena::pages::bitmap::Bitmap;
use crate::arena::pages::memory::{Mapped, Obstacle};
use crate::os::{Errno, OCCUPIED};
use crate::sync::{AtomicU64, Ordering};

const BLOCKS: usize = 6;

/// A zone's blocks, and the kernel's view of them: a bit for each mapped block.
struct Model {
    mapped: Mapped,
    kernel: AtomicU64,
    foreign: u64,
}

impl Model {
    fn new(foreign: u64) -> Arc<Self> {
        let mapped = Mapped::new(Bitmap::new(words(1)), words(BLOCKS));
        Arc::new(Self { mapped, kernel: AtomicU64::new(foreign), foreign })
    }

    fn map(&self, blocks: Range<usize>) -> Result<(), Errno> {
        assert!(!blocks.is_empty(), "the kernel refuses to map nothing");
        let bits = blocks.fold(0, |bits, block| bits | 1 << block);
        let mut found = self.kernel.load(Ordering::SeqCst);
        while found & bits == 0 {
            match self.kernel.compare_exchange(found, found | bits, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Ok(()),
                Err(now) => found = now,
            }
        }
        Err(OCCUPIED)
    }

    /// Makes blocks ready, the first free ones at or above `from`.
    fn reach(&self, mut from: usize, len: usize, generation: u64) {
        while from + len <= BLOCKS {
            match self.mapped.reach(from..from + len, || 2, || generation, |blocks| self.map(blocks)) {
                Ok(()) => {
                    assert!((from..from + len).all(|block| self.mapped.is_ready(block)));
                    return;
                }
                Err(Obstacle::Taken { behind, .. }) => from = behind,
                Err(Obstacle::Refused) => unreachable!("the kernel refuses nothing"),
            }
        }
    }

    fn assert_whole(&self) {
        let mapped = self.kernel.load(Ordering::SeqCst) & !self.foreign;
        for block in 0..BLOCKS {
            assert_eq!(self.mapped.is_ready(block), mapped >> block & 1 == 1, "block {block}");
        }
    }
}

#[test]
fn threads_that_grow_a_zone_at_once_map_each_block_once() {
    bounded(3, || {
        let model = Model::new(0);
        beside(&model, |other| other.reach(0, 2, 1), || model.reach(1, 2, 1));
        model.assert_whole();
        assert!((0..BLOCKS).all(|block| !model.mapped.is_foreign(block)), "a thread's mapping passed for foreign");
    });
}

#[test]
fn threads_that_meet_a_foreign_mapping_pass_it_and_no_mapping_of_a_thread() {
    bounded(2, || {
        let model = Model::new(0b10);
        beside(&model, |other| other.reach(0, 1, 1), || model.reach(0, 2, 1));
        model.assert_whole();
        assert!(model.mapped.is_ready(0) || !model.mapped.is_foreign(0), "a thread's mapping passed for foreign");
    });
}

/// The claims are those of a process that forked, with threads that the child has not.
#[test]
fn threads_of_a_child_that_find_claims_of_its_parent_map_each_block_once() {
    bounded(3, || {
        let model = Model::new(0);
        model.mapped.claim(0..3, 1);
        beside(&model, |other| other.reach(0, 2, 2), || model.reach(1, 2, 2));
        model.assert_whole();
    });
}
