//! Simulates an arena under a policy: where each request goes, and how much memory is resident.
//!
//! It follows `zk-alloc/src/{allocator,route}.rs` and `arena/{mod,zone}.rs`, and takes the sizes from
//! `zk_alloc::simulation`. It does not simulate thread exits, because a trace does not record them.

use super::blocks::{self, BlockAllocator, Spot};
use super::ground::Ground;
use super::policy::Policy;
use super::zone::Zone;
use zk_alloc::simulation;

/// The place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Backing,
    Slab(Spot),
    Run { zone: usize, start: usize },
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) place: Place,
    pub(crate) size_bytes: u64,
    pub(crate) align_bytes: u64,
}

/// Requested bytes that are alive, and their peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    now: u64,
    pub(crate) most: u64,
}

impl Level {
    fn grow(&mut self, bytes: u64) {
        self.now += bytes;
        self.most = self.most.max(self.now);
    }
}

/// Totals so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) live_bytes: Level,
    /// Live bytes of small and medium sizes.
    pub(crate) slab_live_bytes: Level,
    pub(crate) arena_allocations: u64,
    /// Requests within a phase that went to the backing allocator.
    pub(crate) backing_allocations: u64,
}

/// A simulated arena; see the module's documentation.
#[derive(Debug)]
pub(crate) struct SimulatedArena<'a> {
    policy: &'a Policy,
    pub(crate) ground: Ground,
    blocks: Box<dyn BlockAllocator>,
    pub(crate) totals: Totals,
}

impl<'a> SimulatedArena<'a> {
    pub(crate) fn new(policy: &'a Policy) -> Self {
        Self { policy, ground: Ground::new(policy), blocks: blocks::of(policy), totals: Totals::default() }
    }

    /// Allocates a new block for `thread`.
    pub(crate) fn alloc(&mut self, thread: u16, size_bytes: u64, align_bytes: u64, in_phase: bool) -> Block {
        let place = if !in_phase || size_bytes < self.policy.min_bytes {
            self.totals.backing_allocations += u64::from(in_phase);
            Place::Backing
        } else {
            self.totals.arena_allocations += 1;
            if is_block(size_bytes, align_bytes) {
                Place::Slab(self.blocks.alloc(&mut self.ground, thread, size_bytes, align_bytes))
            } else {
                self.alloc_run(size_bytes, align_bytes)
            }
        };
        let block = Block { place, size_bytes, align_bytes };
        self.born(block);
        block
    }

    pub(crate) fn free(&mut self, thread: u16, block: Block) {
        match block.place {
            Place::Backing => {}
            Place::Run { zone, start } => {
                let len = self.ground.zones[zone].pages(block.size_bytes);
                self.ground.zones[zone].release(start, len);
            }
            Place::Slab(spot) => self.blocks.free(&mut self.ground, thread, spot, block.size_bytes),
        }
        self.died(block);
    }

    /// Resizes a block to `size_bytes` and returns the new block.
    pub(crate) fn resize(&mut self, thread: u16, block: Block, size_bytes: u64, in_phase: bool) -> Block {
        let resized = Block { size_bytes, ..block };
        if block.place == Place::Backing {
            let stays = size_bytes <= block.size_bytes || block.size_bytes > simulation::migrate_max_bytes() as u64;
            return if stays { resized } else { self.alloc(thread, size_bytes, block.align_bytes, in_phase) };
        }
        let in_place = self.resize_in_place(thread, block, size_bytes).then_some(resized);
        if let Some(moved) = in_place.or_else(|| self.move_pages(block, size_bytes)) {
            self.died(block);
            self.born(moved);
            return moved;
        }
        // Both blocks are alive during the copy.
        let moved = self.alloc(thread, size_bytes, block.align_bytes, in_phase);
        self.free(thread, block);
        moved
    }

    fn born(&mut self, block: Block) {
        match block.place {
            Place::Backing => return,
            Place::Slab(_) => self.totals.slab_live_bytes.grow(block.size_bytes),
            Place::Run { .. } => {}
        }
        self.totals.live_bytes.grow(block.size_bytes);
    }

    fn died(&mut self, block: Block) {
        match block.place {
            Place::Backing => return,
            Place::Slab(_) => self.totals.slab_live_bytes.now -= block.size_bytes,
            Place::Run { .. } => {}
        }
        self.totals.live_bytes.now -= block.size_bytes;
    }

    fn resize_in_place(&mut self, thread: u16, block: Block, size_bytes: u64) -> bool {
        match block.place {
            Place::Slab(spot) if is_block(size_bytes, block.align_bytes) => {
                self.blocks.resize(&mut self.ground, thread, spot, block.size_bytes, size_bytes)
            }
            Place::Run { zone, start }
                if !is_block(size_bytes, block.align_bytes) && zone == self.policy.zone(size_bytes) =>
            {
                let (old, new) = self.pages(zone, block.size_bytes, size_bytes);
                if new > old {
                    if !self.ground.zones[zone].is_free(start + old, new - old) {
                        return false;
                    }
                    self.ground.take_run(zone, start + old, new - old);
                } else if new < old {
                    self.ground.zones[zone].release(start + new, old - new);
                }
                true
            }
            _ => false,
        }
    }

    /// Grows a large run by moving its pages, so no page is resident twice.
    fn move_pages(&mut self, block: Block, size_bytes: u64) -> Option<Block> {
        let Place::Run { zone, start } = block.place else { return None };
        if block.size_bytes < simulation::move_min_bytes() as u64 || size_bytes < block.size_bytes {
            return None;
        }
        let place = self.alloc_run(size_bytes, block.align_bytes);
        let (old, _) = self.pages(zone, block.size_bytes, size_bytes);
        self.ground.release_moved_run(zone, start, old);
        Some(Block { place, size_bytes, ..block })
    }

    fn pages(&self, zone: usize, old_bytes: u64, new_bytes: u64) -> (usize, usize) {
        (self.ground.zones[zone].pages(old_bytes), self.ground.zones[zone].pages(new_bytes))
    }

    fn alloc_run(&mut self, size_bytes: u64, align_bytes: u64) -> Place {
        let (own, zones) = (self.policy.zone(size_bytes), &self.ground.zones);
        let sized = |zone: &Zone| (zone.pages(size_bytes), zone.pages(align_bytes).next_power_of_two());
        let (len, align) = sized(&zones[own]);
        let mut place = (own, zones[own].find(len, align, self.ground.runs_from(own, size_bytes)));
        let may_spill = self.policy.spill_min_bytes.is_some_and(|min| size_bytes >= min);
        if may_spill && own < self.policy.borders.len() && zones[own].fresh(place.1, len) > 0 {
            let (len, align) = sized(&zones[own + 1]);
            let spilled = zones[own + 1].find_resident_from_the_top(len, align);
            place = spilled.map_or(place, |start| (own + 1, start));
        }
        let (zone, start) = place;
        let len = zones[zone].pages(size_bytes);
        self.ground.take_run(zone, start, len);
        Place::Run { zone, start }
    }
}

/// Whether slabs serve a request. The answer is the same under every policy.
fn is_block(size_bytes: u64, align_bytes: u64) -> bool {
    simulation::Blocks::of(size_bytes as usize, align_bytes as usize).is_some()
}
