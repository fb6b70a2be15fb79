//! Slabs of blocks of one size class, as zk-alloc has them (`zk-alloc/src/arena/{middle,slab,thread_cache}.rs`): the lowest
//! free block of the lowest slab first, whichever thread it was freed by; the blocks that a thread freed last stay with it;
//! and an empty slab goes back at once.

use super::super::ground::{Ground, Slab};
use super::super::policy::Classes;
use super::way::{Middle, Spot};
use std::collections::{BTreeSet, HashMap};
use zk_alloc::simulation;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Blocks {
    classes: Classes,
    slabs: HashMap<u64, Cut>,
    /// Slabs with free blocks, by the size of these.
    open: HashMap<usize, BTreeSet<u64>>,
    /// What threads keep, by thread and size.
    caches: HashMap<(u16, usize), Cache>,
}

/// A slab that is cut into blocks.
#[derive(Debug)]
struct Cut {
    memory: Slab,
    blocks: simulation::Blocks,
    /// By block.
    free: BTreeSet<u64>,
}

/// What a thread keeps of one class.
#[derive(Debug, Default)]
struct Cache {
    /// The last freed at the end.
    blocks: Vec<Spot>,
    /// How many blocks the last refill asked for.
    fetched: usize,
}

impl Blocks {
    pub(super) fn new(classes: Classes) -> Self {
        Self { classes, slabs: HashMap::new(), open: HashMap::new(), caches: HashMap::new() }
    }

    /// At most `wanted` of the lowest free blocks of the lowest slab that has any, or of a new slab; at least one.
    fn take(&mut self, ground: &mut Ground, blocks: simulation::Blocks, wanted: usize) -> Vec<Spot> {
        let open = self.open.entry(blocks.block_bytes).or_default();
        let address = open.first().copied().unwrap_or_else(|| {
            let (address, memory) = ground.claim_slab(blocks.slab_bytes as u64);
            let free = (0..blocks.of_slab as u64).collect();
            self.slabs.insert(address, Cut { memory, blocks, free });
            open.insert(address);
            address
        });
        let cut = self.slabs.get_mut(&address).expect("an open slab is in use");
        let found: Vec<_> = std::iter::from_fn(|| cut.free.pop_first()).take(wanted.max(1)).collect();
        if cut.free.is_empty() {
            open.remove(&address);
        }
        let bytes = blocks.block_bytes as u64;
        found
            .into_iter()
            .map(|block| {
                ground.touch(&mut cut.memory, block * bytes, bytes);
                Spot { slab: address, offset: block * bytes }
            })
            .collect()
    }

    /// Makes a block free for all threads.
    fn give(&mut self, ground: &mut Ground, spot: Spot) {
        let cut = self.slabs.get_mut(&spot.slab).expect("a block lies in a slab in use");
        let blocks = cut.blocks;
        let was_free = !cut.free.insert(spot.offset / blocks.block_bytes as u64);
        assert!(!was_free, "a block was freed twice");
        let open = self.open.entry(blocks.block_bytes).or_default();
        if cut.free.len() < blocks.of_slab {
            open.insert(spot.slab);
            return;
        }
        open.remove(&spot.slab);
        let cut = self.slabs.remove(&spot.slab).expect("looked up above");
        ground.release_slab(&cut.memory);
    }
}

impl Middle for Blocks {
    fn alloc(&mut self, ground: &mut Ground, thread: u16, size_bytes: u64, align_bytes: u64) -> Spot {
        let blocks = self.classes.sizes.of(size_bytes, align_bytes).expect("a middle size has a class");
        if !self.classes.caches {
            return self.take(ground, blocks, 1)[0];
        }
        let cache = self.caches.entry((thread, blocks.block_bytes)).or_default();
        if let Some(spot) = cache.blocks.pop() {
            return spot;
        }
        // Twice as many as the last time.
        let wanted = (2 * cache.fetched).clamp(1, blocks.fetched.max(1));
        cache.fetched = wanted;
        let mut found = self.take(ground, blocks, wanted);
        // The lowest is handed out first.
        found.reverse();
        let spot = found.pop().expect("at least one was taken");
        self.caches.entry((thread, blocks.block_bytes)).or_default().blocks = found;
        spot
    }

    fn free(&mut self, ground: &mut Ground, thread: u16, spot: Spot, _size_bytes: u64) {
        let blocks = self.slabs[&spot.slab].blocks;
        if !self.classes.caches {
            return self.give(ground, spot);
        }
        let cache = self.caches.entry((thread, blocks.block_bytes)).or_default();
        let too_many = if cache.blocks.len() < blocks.kept { 0 } else { blocks.kept - blocks.kept / 2 };
        let first: Vec<_> = cache.blocks.drain(..too_many).collect();
        cache.blocks.push(spot);
        for spot in first {
            self.give(ground, spot);
        }
    }

    fn resize(&mut self, _: &mut Ground, _: u16, spot: Spot, _: u64, new_bytes: u64) -> bool {
        let block_bytes = self.slabs[&spot.slab].blocks.block_bytes as u64;
        new_bytes <= block_bytes && new_bytes > block_bytes / 2
    }
}
