//! Models of work on slabs in a real zone on real memory, run in every interleaving with a bounded number of interruptions. A thread writes
//! to each block that it takes, and checks the contents before it puts the block back.
#![allow(unsafe_code, reason = "writes to blocks, and prefaults memory")]

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::Arc;

use super::models::{Memory, Model, Uses, beside, beside_two, with_memory};
use crate::accounts::{self, Limit};
use crate::arena::heap::slab::SlabTable;
use crate::arena::pages::layout::{HugeAdvice, RunUse};
use crate::arena::pages::memory::Allowance;
use crate::arena::pages::zone::Shortage;
use crate::classes::{self, Class};

const PAGE_BYTES: usize = 4 << 10;

/// The bitmap of a slab of the short class has two words, and no block is in the slab's last page. The bitmap of a slab of the long class
/// has one word. A long block is as long as two short ones.
const SHORT: Class = Class::of(1, 1);
const LONG: Class = Class::of(classes::MAX_BYTES, 1);

/// Returns how many blocks of this class fit in a page.
fn in_a_page(class: Class) -> usize {
    PAGE_BYTES / class.block_bytes()
}

struct Slabs {
    table: SlabTable,
    model: Model,
    memory: Uses,
    /// The number of slabs that the zone has room for.
    room: usize,
    /// The number of blocks that were taken and not put back.
    alive: AtomicUsize,
}

impl Slabs {
    /// Creates a zone with room for `room` slabs.
    fn new(memory: Memory, room: usize) -> Arc<Self> {
        let model = memory.zone(HugeAdvice::Leave, room * classes::MIN_SLAB_BYTES / PAGE_BYTES);
        let table = SlabTable::new(&model.zone).expect("memory for tables");
        Arc::new(Self { table, model, memory: Uses::default(), room, alive: AtomicUsize::new(0) })
    }

    /// Prefaults all of the zone's memory.
    fn make_resident(&self) {
        let bytes = self.room * classes::MIN_SLAB_BYTES;
        assert_eq!(self.model.zone.populate(RunUse::Slab, bytes, 1), bytes);
    }

    fn write(&self, class: Class, block: usize) {
        let pieces = class.block_bytes() / SHORT.block_bytes();
        let first = block / SHORT.block_bytes();
        self.memory.write(first..first + pieces);
    }

    /// Returns a pointer to a block.
    fn at(&self, block: usize) -> *mut usize {
        self.model.zone.base().as_ptr().with_addr(block).cast()
    }

    /// Takes up to `most` blocks, and writes to all of them.
    fn try_take(&self, class: Class, most: usize) -> Result<Vec<usize>, Shortage> {
        let mut found = vec![0; most];
        let taken = self.table.take(&self.model.zone, class, Limit::Cap, &mut found)?;
        found.truncate(taken);
        assert!(!found.is_empty());
        for &block in &found {
            assert_eq!(self.table.class_at(block), Some(class), "a block of another class");
            self.write(class, block);
            // SAFETY: the block was taken above, and is committed.
            unsafe { self.at(block).write(block) };
        }
        self.alive.fetch_add(taken, Ordering::Relaxed);
        Ok(found)
    }

    fn take(&self, class: Class, most: usize) -> Vec<usize> {
        self.try_take(class, most).expect("there is room for another slab")
    }

    /// Puts blocks back, and checks that no other thread wrote to them.
    fn put(&self, class: Class, blocks: &[usize]) {
        for &block in blocks {
            assert_eq!(self.table.class_at(block), Some(class), "the slab is gone");
            // SAFETY: the caller owns the block, which is committed.
            assert_eq!(unsafe { self.at(block).read() }, block, "the block's contents are gone");
            self.write(class, block);
        }
        self.alive.fetch_sub(blocks.len(), Ordering::Relaxed);
        self.table.put(&self.model.zone, class, blocks.iter().copied());
    }

    /// Takes up to `most` blocks if there are any, and puts them back.
    fn pass(&self, class: Class, most: usize) {
        self.try_take(class, most).into_iter().for_each(|blocks| self.put(class, &blocks));
    }

    fn purge(&self) {
        self.table.purge(&self.model.zone, &mut Allowance::unlimited(usize::MAX));
    }

    /// Checks that every block that no thread owns can be taken.
    fn assert_none_lost(&self, class: Class) {
        let mut rest = Vec::new();
        while let Ok(found) = self.try_take(class, 64) {
            rest.extend(found);
        }
        assert_eq!(self.alive.load(Ordering::Relaxed), self.room * class.blocks(), "a block was lost");
        self.put(class, &rest);
    }

    /// Checks that all blocks were put back, and that their slabs are retired.
    fn assert_all_retired(&self) {
        assert_eq!(self.alive.load(Ordering::Relaxed), 0);
        assert_eq!(self.table.in_use(), (0, 0), "a slab was not freed");
        self.assert_none_lost(SHORT);
        assert_eq!(self.table.in_use(), (0, 0));
        self.model.assert_all_purged();
    }
}

/// Runs a model with a zone that has room for `room` slabs. Checks that all slabs are retired at the end.
fn with_slabs(interruptions: usize, room: usize, model: impl Fn(&Arc<Slabs>) + Sync + Send + 'static) {
    with_memory(PAGE_BYTES, interruptions, move |memory| {
        let slabs = Slabs::new(memory, room);
        model(&slabs);
        slabs.assert_all_retired();
    });
}

#[test]
fn a_block_has_one_owner() {
    with_slabs(3, 1, |slabs| {
        let kept = slabs.take(SHORT, 1);
        beside(slabs, |other| other.pass(SHORT, 1), || slabs.pass(SHORT, 1));
        slabs.put(SHORT, &kept);
    });
}

#[test]
fn two_threads_that_take_several_blocks_at_once_get_different_ones() {
    with_slabs(2, 1, |slabs| {
        let kept = slabs.take(SHORT, 63);
        let pass_two = |slabs: &Slabs| slabs.put(SHORT, &slabs.take(SHORT, 2));
        beside(slabs, pass_two, || pass_two(slabs));
        slabs.put(SHORT, &kept);
    });
}

#[test]
fn a_block_that_one_thread_takes_and_another_puts_back_serves_a_third() {
    with_slabs(2, 1, |slabs| {
        let (first, second) = (slabs.take(SHORT, 1), slabs.take(SHORT, 1));
        beside_two(slabs, move |a| a.put(SHORT, &first), |b| b.pass(SHORT, 1), || slabs.put(SHORT, &second));
    });
}

/// Each thread puts back the last block in use in one word of the bitmap: one thread in the slab's first word, the other in its last. One
/// of the threads retires the slab. If both try at the same time, one of them tries again. If the slab is reused meanwhile, the other may
/// claim words of the new slab that look like those of the old one.
#[test]
fn a_slab_whose_last_blocks_two_threads_put_back_is_retired_once_even_if_it_is_reused() {
    for (interruptions, reused_for) in [(3, None), (5, Some(LONG)), (3, Some(SHORT))] {
        with_slabs(interruptions, 1, move |slabs| {
            let blocks = [slabs.take(SHORT, 64), slabs.take(SHORT, 1)].concat();
            let (first, last) = (blocks[0], blocks[64]);
            slabs.put(SHORT, &blocks[1..64]);
            let own = || {
                slabs.put(SHORT, &[last]);
                reused_for.into_iter().for_each(|class| slabs.pass(class, 1));
            };
            beside(slabs, move |other| other.put(SHORT, &[first]), own);
        });
    }
}

#[test]
fn a_block_that_is_taken_while_another_thread_retires_the_slab_keeps_the_slab() {
    with_slabs(2, 2, |slabs| {
        let last = slabs.take(SHORT, 1);
        beside(slabs, |other| other.put(SHORT, &other.take(SHORT, 1)), || slabs.put(SHORT, &last));
    });
}

/// One thread follows a hint to a slab that becomes a slab of the other class.
#[test]
fn a_stale_hint_to_a_slab_of_another_class_does_no_harm() {
    for (from, to) in [(SHORT, LONG), (LONG, SHORT)] {
        with_slabs(3, 1, move |slabs| {
            let last = slabs.take(from, 1);
            let own = || {
                slabs.put(from, &last);
                slabs.pass(to, 1);
            };
            beside(slabs, move |other| other.pass(from, 1), own);
        });
    }
}

/// The bits of all blocks of the slab are in one word. A thread sets the last of these bits, and checks whether it can retire the slab.
/// Meanwhile, another thread may take a block and put it back, retire the slab, and reuse it for the other class. In the second case, the
/// slab's first word looks like that of an empty slab of the old class, and its second word has a block in use.
#[test]
fn retiring_a_slab_that_was_reused_for_a_smaller_class_loses_no_block() {
    for counts in [&[1][..], &[64, 1]] {
        with_slabs(3, 1, move |slabs| {
            let last = slabs.take(LONG, 1);
            let own = || {
                slabs.pass(LONG, 1);
                let taken: Vec<_> = counts.iter().map_while(|&most| slabs.try_take(SHORT, most).ok()).collect();
                taken.iter().for_each(|blocks| slabs.put(SHORT, blocks));
            };
            beside(slabs, move |other| other.put(LONG, &last), own);
        });
    }
}

/// The only slab is almost full. A block is put back while other threads find no free block and clear the hint. A later search must find
/// the block.
#[test]
fn a_block_that_is_put_back_while_other_threads_clear_the_hint_is_not_lost() {
    with_slabs(2, 1, |slabs| {
        let mut kept = [slabs.take(SHORT, 64), slabs.take(SHORT, 64)].concat();
        let most = SHORT.blocks();
        slabs.put(SHORT, &kept.split_off(most - 1));
        let last = kept.split_off(most - 2);
        beside_two(slabs, |a| a.pass(SHORT, 1), |b| b.pass(SHORT, 1), || slabs.put(SHORT, &last));
        slabs.assert_none_lost(SHORT);
        slabs.put(SHORT, &kept);
    });
}

#[test]
fn no_page_that_a_block_in_use_touches_is_purged_and_no_block_is_lost() {
    with_slabs(3, 1, |slabs| {
        let blocks = slabs.take(SHORT, in_a_page(SHORT) + 2);
        let (kept, free) = blocks.split_at(in_a_page(SHORT) + 1);
        // The second page has a block in use and free blocks. One thread takes a free block while the other purges.
        slabs.put(SHORT, free);
        beside(slabs, Slabs::purge, || slabs.pass(SHORT, 1));
        slabs.put(SHORT, &kept[in_a_page(SHORT)..]);
        slabs.purge();
        assert_eq!(slabs.model.accounted_bytes(), PAGE_BYTES, "the second page was free");
        assert_eq!(slabs.model.bytes_in_memory(), PAGE_BYTES);
        slabs.put(SHORT, &kept[..in_a_page(SHORT)]);
    });
}

#[test]
fn a_page_that_is_purged_while_its_blocks_come_and_go_is_accounted_as_long_as_it_is_resident() {
    with_slabs(2, 1, |slabs| {
        let blocks = slabs.take(SHORT, in_a_page(SHORT) + 1);
        let (kept, last) = blocks.split_at(in_a_page(SHORT));
        beside_two(slabs, Slabs::purge, |b| b.pass(SHORT, 1), || slabs.put(SHORT, last));
        assert_eq!(slabs.model.accounted_bytes(), slabs.model.bytes_in_memory());
        slabs.put(SHORT, kept);
    });
}

/// Every owner of a free block may purge the page after the last block.
#[test]
fn the_page_behind_the_last_block_is_taken_off_the_account_once() {
    with_slabs(3, 1, |slabs| {
        slabs.make_resident();
        let kept = slabs.take(SHORT, 1);
        beside(slabs, Slabs::purge, || slabs.purge());
        assert_eq!(slabs.model.accounted_bytes(), PAGE_BYTES);
        assert_eq!(slabs.model.bytes_in_memory(), PAGE_BYTES);
        slabs.put(SHORT, &kept);
    });
}

/// The last block is freed while the slab's other pages are purged. The thread that finally owns all blocks retires the slab.
#[test]
fn a_slab_that_is_retired_while_it_is_purged_is_accounted_once() {
    with_slabs(3, 1, |slabs| {
        slabs.make_resident();
        let last = slabs.take(SHORT, 1);
        beside(slabs, Slabs::purge, || slabs.put(SHORT, &last));
        assert_eq!(slabs.model.accounted_bytes(), slabs.model.bytes_in_memory());
    });
}

/// Like the test above, with a second purge of the slab.
#[test]
fn a_slab_that_is_retired_while_two_threads_purge_it_is_accounted_once() {
    with_slabs(2, 1, |slabs| {
        slabs.make_resident();
        let last = slabs.take(SHORT, 1);
        beside_two(slabs, Slabs::purge, Slabs::purge, || slabs.put(SHORT, &last));
        assert_eq!(slabs.model.accounted_bytes(), slabs.model.bytes_in_memory());
    });
}

#[test]
fn a_page_that_becomes_free_during_a_purge_is_purged_by_the_next() {
    with_slabs(2, 1, |slabs| {
        let mut kept = slabs.take(SHORT, 2 * in_a_page(SHORT) + 1);
        slabs.put(SHORT, &kept.split_off(2 * in_a_page(SHORT)));
        let second_page = kept.split_off(in_a_page(SHORT));
        beside(slabs, Slabs::purge, || slabs.put(SHORT, &second_page));
        slabs.purge();
        assert_eq!(slabs.model.accounted_bytes(), PAGE_BYTES, "a free page is never purged");
        slabs.put(SHORT, &kept);
    });
}

/// The purging thread follows a hint to a slab that becomes a slab of the other class, whose blocks are on other pages.
#[test]
fn a_purge_that_follows_a_stale_hint_spares_the_blocks_of_another_class() {
    with_slabs(3, 1, |slabs| {
        let last = slabs.take(SHORT, 1);
        let second_page = beside(slabs, Slabs::purge, || {
            slabs.put(SHORT, &last);
            let mut blocks = slabs.try_take(LONG, in_a_page(LONG) + 1).unwrap_or_default();
            let second_page = blocks.split_off(in_a_page(LONG).min(blocks.len()));
            if !blocks.is_empty() {
                slabs.put(LONG, &blocks);
            }
            second_page
        });
        slabs.put(LONG, &second_page);
    });
}

/// The cap has room for one more page, and each of two threads wants a page.
#[test]
fn memory_beyond_the_cap_is_neither_accounted_nor_left_resident() {
    with_slabs(2, 1, |slabs| {
        let kept = slabs.take(LONG, in_a_page(LONG));
        accounts::set_max(accounts::resident_bytes() + PAGE_BYTES);
        let want = |slabs: &Slabs| slabs.pass(LONG, in_a_page(LONG));
        beside(slabs, want, || want(slabs));
        assert_eq!(slabs.model.accounted_bytes(), slabs.model.bytes_in_memory());
        accounts::set_max(usize::MAX);
        slabs.put(LONG, &kept);
    });
}
