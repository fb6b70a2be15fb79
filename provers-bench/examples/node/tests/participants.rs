//! The threads that allocate from the arena: under `Participants::Pool` those of the prover, and none of the node's.

use node::InNode;
use provers_bench::Workload;
use std::thread;
use std::time::Duration;
use zk_alloc::{Participants, ZkAllocator};

#[global_allocator]
static ALLOCATOR: ZkAllocator = ZkAllocator.participants(Participants::Pool);

/// A prover that opens a phase and allocates nothing in it.
struct Idle;

impl Workload for Idle {
    type Proof = ();
    fn setup(_: u32) -> anyhow::Result<Self> {
        Ok(Self)
    }
    fn prove(&self, _: u64) -> anyhow::Result<()> {
        zk_alloc::phase(|| thread::sleep(Duration::from_millis(500)));
        Ok(())
    }
    fn verify(&self, (): &()) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Requests that the arena served while a phase was open, and the node did its work.
fn served<const ALL: bool>() -> u64 {
    let of_node = InNode::<Idle, ALL>::setup(10).unwrap();
    let before = zk_alloc::stats().arena_allocations;
    of_node.prove(1).unwrap();
    let served = zk_alloc::stats().arena_allocations - before;
    of_node.verify(&()).unwrap();
    served
}

/// The memory of the node must stay out of the arena, or the arm would show another allocator than its name says.
#[test]
fn the_arena_serves_the_nodes_threads_only_where_they_take_part() {
    let (pool, all) = (served::<false>(), served::<true>());
    assert!(pool < 100, "{pool}");
    assert!(all > 1_000, "{all}");
}
