//! Replays a trace through a policy.

use super::arena::{Block, Place, SimulatedArena};
use super::policy::Policy;
use crate::protocol::records::{Op, Record, Trace};
use std::collections::HashMap;

/// The figures of a trace under a policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Peak resident bytes. The simulation never purges.
    pub(crate) resident_bytes: u64,
    /// Peak of the live bytes that were requested from the arena.
    pub(crate) live_peak_bytes: u64,
    /// Bytes that became resident after the first proof.
    pub(crate) fresh_later_bytes: u64,
    /// Peak of the live bytes that were requested from slabs.
    pub(crate) slab_live_bytes: u64,
    /// Peak resident bytes of slabs in use.
    pub(crate) slab_bytes: u64,
    /// Peak resident bytes of slabs in use, between two proofs or at the end.
    pub(crate) resting_slab_bytes: u64,
    pub(crate) proofs: u32,
    pub(crate) arena_allocations: u64,
    /// Recorded requests within phases that went to the backing allocator.
    pub(crate) backing_allocations: u64,
}

/// Replays `trace` through `policy`.
pub(crate) fn simulate(trace: &Trace, policy: &Policy) -> Figures {
    let mut player = Player {
        arena: SimulatedArena::new(policy),
        blocks: HashMap::new(),
        moving: HashMap::new(),
        min_bytes: trace.header.min_bytes,
    };
    let (mut proof, mut fresh_in_first, mut resting_slab_bytes, mut resident_bytes) = (0, 0, 0, 0);
    for record in &trace.records {
        if record.proof != proof {
            proof = record.proof;
            resting_slab_bytes = player.arena.ground.slab_bytes().max(resting_slab_bytes);
        }
        player.play(record);
        resident_bytes = player.arena.ground.resident_bytes().max(resident_bytes);
        if proof <= 1 {
            fresh_in_first = player.arena.ground.fresh_bytes;
        }
    }
    let SimulatedArena { ground, totals, .. } = player.arena;
    Figures {
        resident_bytes,
        live_peak_bytes: totals.live_bytes.most,
        fresh_later_bytes: ground.fresh_bytes.saturating_sub(fresh_in_first),
        slab_live_bytes: totals.slab_live_bytes.most,
        slab_bytes: ground.slab_bytes_most,
        resting_slab_bytes: resting_slab_bytes.max(ground.slab_bytes()),
        proofs: proof,
        arena_allocations: totals.arena_allocations,
        backing_allocations: totals.backing_allocations,
    }
}

struct Player<'a> {
    arena: SimulatedArena<'a>,
    /// Live blocks, by their address in the recording process.
    blocks: HashMap<u64, Block>,
    /// Blocks whose `realloc` began, by thread.
    moving: HashMap<u16, (u64, Block)>,
    min_bytes: u64,
}

impl Player<'_> {
    fn play(&mut self, record: &Record) {
        let &Record { op, thread, in_phase, size_bytes, align_bytes, address, .. } = record;
        match op {
            Op::Alloc | Op::AllocZeroed => {
                let block = self.arena.alloc(thread, size_bytes, align_bytes, in_phase);
                self.blocks.insert(address, block);
            }
            Op::Free => {
                // A block older than the recorder is unknown, and is not the arena's.
                if let Some(block) = self.blocks.remove(&address) {
                    self.arena.free(thread, block);
                }
            }
            Op::ReallocFrom => {
                // The block is too small to be recorded, or older than the recorder.
                let unknown = || Block { place: Place::Backing, size_bytes: 0, align_bytes };
                let block = self.blocks.remove(&address).unwrap_or_else(unknown);
                self.moving.insert(thread, (address, block));
            }
            Op::ReallocTo => {
                let Some((before, block)) = self.moving.remove(&thread) else { return };
                if address == 0 {
                    self.blocks.insert(before, block);
                } else if size_bytes < self.min_bytes {
                    // The free of so small a block is not recorded.
                    self.arena.free(thread, block);
                } else {
                    let block = self.arena.resize(thread, block, size_bytes, in_phase);
                    self.blocks.insert(address, block);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::trace::script::{KIB, MIB, Script};

    /// The case that zones prevent: a small block outlives a proof in the hole of a huge run and splits the hole. The
    /// next huge run finds no room there, and the process pays for two.
    #[test]
    fn small_survivors_in_the_hole_of_a_huge_run_double_the_memory_of_one_zone() {
        let mut script = Script::default();
        script.proof().alloc(1, 100 * MIB).alloc(2, 40 * KIB).free(1).alloc(3, 40 * KIB).rest();
        for _ in 0..3 {
            script.proof().alloc(1, 100 * MIB).free(1).rest();
        }
        let (ours, one_zone) = (script.simulate("zk-alloc"), script.simulate("one-zone"));
        for figures in [&ours, &one_zone] {
            assert_eq!(figures.live_peak_bytes, 100 * MIB + 80 * KIB);
        }
        assert_eq!((ours.resident_bytes, ours.fresh_later_bytes), (100 * MIB + 80 * KIB, 0));
        assert_eq!(one_zone.fresh_later_bytes, 100 * MIB);
    }

    #[test]
    fn outside_phases_and_below_the_threshold_the_backing_allocator_serves() {
        let mut script = Script::default();
        script.alloc(1, MIB).proof().alloc(2, 2 * KIB).alloc(3, 4 * KIB).rest().alloc(4, MIB).free(3);
        let figures = script.simulate("min-4k");
        assert_eq!((figures.arena_allocations, figures.backing_allocations, figures.live_peak_bytes), (1, 1, 4 * KIB));
        assert_eq!(script.simulate("min-2k").arena_allocations, 2);
    }

    #[test]
    fn growth_stays_in_place_where_it_can_and_moves_between_zones() {
        let mut script = Script::default();
        // A vector grows, starting below the recorded sizes. No block follows it.
        script.proof().realloc(9, 1, 2 * KIB).realloc(1, 2, 8 * KIB).realloc(2, 3, 64 * KIB).realloc(3, 3, 128 * KIB);
        let grown = script.simulate("zk-alloc");
        assert_eq!(grown.live_peak_bytes, 128 * KIB);
        assert_eq!((grown.slab_live_bytes, grown.slab_bytes), (10 * KIB, 12 * KIB));
        assert_eq!(grown.resident_bytes, (12 + 128) * KIB);
        // The run moves into the next zone. Both copies are alive during the move.
        script.realloc(3, 4, 256 * KIB).free(4);
        let moved = script.simulate("borders-256k-64m");
        assert_eq!(moved.live_peak_bytes, (128 + 256) * KIB);
        assert_eq!(moved.resident_bytes, (12 + 128 + 256) * KIB);
    }

    /// A large buffer that outgrows its place moves its pages.
    #[test]
    fn what_is_large_is_never_resident_twice_while_it_grows() {
        let mut script = Script::default();
        script.proof().alloc(1, 16 * MIB).alloc(2, 2 * MIB).realloc(1, 3, 32 * MIB);
        let moved = script.simulate("zk-alloc");
        assert_eq!((moved.live_peak_bytes, moved.fresh_later_bytes), (34 * MIB, 0));
        assert_eq!(moved.resident_bytes, 34 * MIB);
    }

    #[test]
    fn a_spilled_run_takes_free_memory_of_the_next_zone_instead_of_fresh() {
        let mut script = Script::default();
        script.proof().alloc(1, 100 * MIB).free(1).alloc(2, 10 * MIB).free(2).rest();
        assert_eq!(script.simulate("zk-alloc").resident_bytes, 110 * MIB);
        assert_eq!(script.simulate("spill").resident_bytes, 100 * MIB);
    }
}
