//! Slabs of blocks of one size class, as in zk-alloc (`zk-alloc/src/arena/{size_classes,slab,thread_cache}.rs`). An
//! allocation takes the lowest free block of the lowest slab, no matter which thread freed it. A thread caches the
//! blocks that it freed last. An empty slab returns to the zone at once.

use super::super::ground::{Ground, Slab};
use super::super::policy::Classes;
use super::way::{BlockAllocator, Spot};
use std::collections::{BTreeSet, HashMap};
use zk_alloc::simulation;

/// Slabs of size classes; see the module's documentation.
#[derive(Debug)]
pub(super) struct Blocks {
    classes: Classes,
    slabs: HashMap<u64, Cut>,
    /// Slabs with free blocks, by block size.
    open: HashMap<usize, BTreeSet<u64>>,
    /// Thread caches, by thread and block size.
    caches: HashMap<(u16, usize), Cache>,
}

/// A slab that is cut into blocks.
#[derive(Debug)]
struct Cut {
    memory: Slab,
    blocks: simulation::Blocks,
    /// Free blocks, by index.
    free: BTreeSet<u64>,
}

/// A thread's cache of one class.
#[derive(Debug, Default)]
struct Cache {
    /// Cached blocks; the last freed one comes last.
    blocks: Vec<Spot>,
    /// Number of blocks that the last refill requested.
    fetched: usize,
}

impl Blocks {
    pub(super) fn new(classes: Classes) -> Self {
        Self { classes, slabs: HashMap::new(), open: HashMap::new(), caches: HashMap::new() }
    }

    /// Takes up to `wanted` of the lowest free blocks, and at least one. They come from the lowest slab with free
    /// blocks, or from a new slab.
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

impl BlockAllocator for Blocks {
    fn alloc(&mut self, ground: &mut Ground, thread: u16, size_bytes: u64, align_bytes: u64) -> Spot {
        let blocks = self.classes.sizes.of(size_bytes, align_bytes).expect("a small or medium size has a class");
        if !self.classes.caches {
            return self.take(ground, blocks, 1)[0];
        }
        let cache = self.caches.entry((thread, blocks.block_bytes)).or_default();
        if let Some(spot) = cache.blocks.pop() {
            return spot;
        }
        // Each refill requests twice as many blocks as the last one.
        let wanted = (2 * cache.fetched).clamp(1, blocks.fetched.max(1));
        cache.fetched = wanted;
        let mut found = self.take(ground, blocks, wanted);
        // The lowest block is handed out first.
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
        let too_many = if cache.blocks.len() < blocks.cached { 0 } else { blocks.cached - blocks.cached / 2 };
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
