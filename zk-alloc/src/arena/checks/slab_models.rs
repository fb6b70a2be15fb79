//! Slabs for the models. A thread writes to a block when it takes it, and checks the block when it puts it back.
#![allow(unsafe_code, reason = "writes to blocks")]

use loom::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::models::{Memory, Model, Uses};
use crate::arena::heap::slab::SlabTable;
use crate::arena::pages::layout::HugeAdvice;
use crate::arena::pages::residency::Allowance;
use crate::arena::pages::zone::{Contents, Shortage};
use crate::arena::purge::budget::Limit;
use crate::classes::{self, Class};

pub(super) const ZONE_PAGE_BYTES: usize = 16 << 10;
const SLAB_ZONE_PAGES: usize = classes::MIN_SLAB_BYTES / ZONE_PAGE_BYTES;
pub(super) const PAGE_BYTES: usize = 4 << 10;

/// A slab of the short class has two words of blocks, and ends with a page without blocks. A slab of the long class has one word. A long
/// block is as long as two short ones.
pub(super) fn short() -> Class {
    Class::of(1, 1)
}

pub(super) fn long() -> Class {
    Class::of(classes::MAX_BYTES, 1)
}

/// How many blocks of this class lie in a page.
pub(super) fn in_a_page(class: Class) -> usize {
    PAGE_BYTES / class.block_bytes()
}

pub(super) struct Slabs {
    pub(super) table: SlabTable,
    pub(super) model: Model,
    pub(super) memory: Uses,
    /// Slabs that the zone has room for.
    pub(super) room: usize,
    /// Blocks that were taken and not put back.
    pub(super) alive: AtomicUsize,
}

impl Slabs {
    /// A zone with room for `room` slabs.
    pub(super) fn new(memory: Memory, room: usize) -> Arc<Self> {
        let model = memory.zone(HugeAdvice::Leave, room * SLAB_ZONE_PAGES);
        let table = SlabTable::new(&model.zone).expect("memory for tables");
        Arc::new(Self { table, model, memory: Uses::default(), room, alive: AtomicUsize::new(0) })
    }

    /// As [`new`](Self::new), with all of the zone's memory resident.
    pub(super) fn with_resident_memory(memory: Memory, room: usize) -> Arc<Self> {
        let slabs = Self::new(memory, room);
        let bytes = room * classes::MIN_SLAB_BYTES;
        let at = slabs.model.zone.claim(bytes, 1, Contents::Any, Limit::Cap, || None).expect("the zone is empty");
        // SAFETY: claimed above, and given up here.
        unsafe {
            at.write_bytes(1, bytes);
            slabs.model.zone.release(at, bytes);
        }
        slabs
    }

    pub(super) fn write(&self, class: Class, block: usize) {
        let pieces = class.block_bytes() / short().block_bytes();
        let first = block / short().block_bytes();
        self.memory.write(first..first + pieces);
    }

    pub(super) fn word(block: usize) -> *mut usize {
        std::ptr::without_provenance_mut::<usize>(block)
    }

    /// Takes up to `most` blocks, and writes to all of them.
    pub(super) fn try_take(&self, class: Class, most: usize) -> Result<Vec<usize>, Shortage> {
        let mut found = vec![0; most];
        let taken = self.table.take(&self.model.zone, class, Limit::Cap, &mut found)?;
        found.truncate(taken);
        assert!(!found.is_empty());
        for &block in &found {
            assert_eq!(self.table.class_at(block), Some(class), "a block of another class");
            self.write(class, block);
            let at = self.model.zone.base().as_ptr().with_addr(Self::word(block).addr()).cast::<usize>();
            // SAFETY: the block was taken above, and is committed.
            unsafe { at.write(block) };
        }
        self.alive.fetch_add(taken, Ordering::Relaxed);
        Ok(found)
    }

    pub(super) fn take(&self, class: Class, most: usize) -> Vec<usize> {
        self.try_take(class, most).expect("there is room for another slab")
    }

    /// Puts blocks back, and checks that nobody else wrote to them.
    pub(super) fn put(&self, class: Class, blocks: &[usize]) {
        for &block in blocks {
            assert_eq!(self.table.class_at(block), Some(class), "the slab is gone");
            let at = self.model.zone.base().as_ptr().with_addr(block).cast::<usize>();
            // SAFETY: the caller owns the block, which is committed.
            assert_eq!(unsafe { at.read() }, block, "the block's contents are gone");
            self.write(class, block);
        }
        self.alive.fetch_sub(blocks.len(), Ordering::Relaxed);
        self.table.put(&self.model.zone, class, blocks.iter().copied());
    }

    /// Takes a block if there is one, and puts it back.
    pub(super) fn pass(&self, class: Class) {
        if let Ok(blocks) = self.try_take(class, 1) {
            self.put(class, &blocks);
        }
    }

    pub(super) fn purge(&self) {
        self.table.purge(&self.model.zone, &mut Allowance::unlimited(usize::MAX));
    }

    /// Every block that no thread owns can be taken.
    pub(super) fn assert_none_lost(&self, class: Class) {
        let mut rest = Vec::new();
        while let Ok(found) = self.try_take(class, 64) {
            rest.extend(found);
        }
        assert_eq!(self.alive.load(Ordering::Relaxed), self.room * class.blocks(), "a block was lost");
        self.put(class, &rest);
    }

    /// All blocks were put back, and their slabs are retired.
    pub(super) fn assert_all_retired(&self) {
        assert_eq!(self.alive.load(Ordering::Relaxed), 0);
        assert_eq!(self.table.in_use(), (0, 0), "a slab was not freed");
        self.assert_none_lost(short());
        assert_eq!(self.table.in_use(), (0, 0));
        self.model.assert_all_purged();
    }
}
