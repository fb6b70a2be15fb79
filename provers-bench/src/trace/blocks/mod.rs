//! Simulates small and medium sizes: the slab and the offset of each block.

mod bump;
mod classes;
mod lines;
mod way;

use super::policy::{self, Policy};
pub(crate) use way::{BlockAllocator, Spot};

/// The allocator that a policy requests.
pub(crate) fn of(policy: &Policy) -> Box<dyn BlockAllocator> {
    match &policy.blocks {
        policy::BlockPolicy::Classes(classes) => Box::new(classes::Blocks::new(classes.clone())),
        &policy::BlockPolicy::Bump { slab_bytes } => Box::new(bump::Bump::new(slab_bytes)),
        &policy::BlockPolicy::Lines { slab_bytes, line_bytes, free_percent } => {
            Box::new(lines::Lines::new(slab_bytes, line_bytes, free_percent))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::records::Op;
    use crate::trace::script::{KIB, MIB, Script};

    /// The purpose of size classes: a surviving block pins only its own place, and new blocks fill the rest of its
    /// slab.
    #[test]
    fn a_survivor_pins_a_bump_slab_and_one_block_of_a_class() {
        let mut script = Script::default();
        for round in 0..100 {
            script.proof();
            for block in 0..400 {
                script.alloc(1000 * round + block, 2 * KIB);
            }
            for block in 0..399 {
                script.free(1000 * round + block);
            }
            script.rest();
        }
        let (ours, bump) = (script.simulate("zk-alloc"), script.simulate("bump-512k"));
        for figures in [&ours, &bump] {
            assert_eq!(figures.slab_live_bytes, (99 + 400) * 2 * KIB);
        }
        assert!(ours.resting_slab_bytes < MIB, "{ours:?}");
        assert!(ours.slab_bytes < ours.slab_live_bytes * 5 / 4, "{ours:?}");
        assert!(bump.resting_slab_bytes > 45 * MIB, "{bump:?}");
    }

    /// Every thread can use the blocks that another thread freed, except those in that thread's cache.
    #[test]
    fn a_thread_s_free_blocks_serve_other_threads_but_for_what_it_keeps() {
        let mut script = Script::default();
        script.proof();
        for block in 0..256 {
            script.alloc(block, KIB);
        }
        for block in 0..256 {
            script.free(block);
        }
        for block in 0..256 {
            script.add(Op::Alloc, 2, block, KIB);
        }
        let (ours, no_caches) = (script.simulate("zk-alloc"), script.simulate("no-caches"));
        assert_eq!(no_caches.resident_bytes, 256 * KIB);
        let cached = zk_alloc::simulation::Blocks::of(KIB as usize, 8).unwrap().cached as u64 * KIB;
        assert!(ours.resident_bytes > 256 * KIB && ours.resident_bytes <= 256 * KIB + cached + 64 * KIB, "{ours:?}");
    }

    #[test]
    fn lines_that_are_free_are_used_again_around_what_stays() {
        let mut script = Script::default();
        script.proof();
        for block in 0..256 {
            script.alloc(block, 2 * KIB);
        }
        for block in (0..256).filter(|block| block % 4 > 0) {
            script.free(block);
        }
        for block in 0..256 {
            script.alloc(1000 + block, 2 * KIB);
        }
        assert!(script.simulate("lines-1k").slab_bytes <= 704 * KIB);
        assert_eq!(script.simulate("bump-512k").slab_bytes, MIB);
    }
}
