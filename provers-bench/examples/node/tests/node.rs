//! Uses the workload as the bench does: set up, prove, verify, drop. Under `Participants::Pool`, the prover's threads allocate from the
//! arena, and the node's own threads do not. `cargo make soak` makes real proofs in the node.

use prover::InNode;
use provers_bench::Workload;
use std::time::Duration;
use std::{fs, thread};
use zk_alloc::{Participants, ZkAllocator};

#[global_allocator]
static ALLOCATOR: ZkAllocator = ZkAllocator.participants(Participants::Pool);

/// Returns the names of this process's threads that belong to a node.
fn threads_of_a_node() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| ["node\n", "job\n"].contains(&name.as_str())).collect()
}

/// A prover that opens a phase and allocates nothing in it. Its proof is the number of requests that the arena served while the phase was
/// open.
struct Idle;

impl Workload for Idle {
    type Proof = u64;
    fn setup(_: u32) -> anyhow::Result<Self> {
        Ok(Self)
    }
    fn prove(&self, _: u64) -> anyhow::Result<u64> {
        let before = zk_alloc::stats().arena_allocations;
        zk_alloc::phase(|| thread::sleep(Duration::from_millis(500)));
        Ok(zk_alloc::stats().arena_allocations - before)
    }
    fn verify(&self, _: &u64) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Returns the number of requests that the arena served in a phase during which only the node worked. Checks that a dropped node leaves no
/// threads behind.
fn served<const ALL: bool>() -> u64 {
    let of_node = InNode::<Idle, ALL>::setup(10).unwrap();
    let threads = threads_of_a_node();
    assert!(threads.contains(&"node\n".to_owned()), "{threads:?}");
    let served = of_node.prove(1).unwrap();
    of_node.verify(&served).unwrap();
    drop(of_node);
    assert_eq!(threads_of_a_node(), Vec::<String>::new());
    served
}

/// In the arm `zk-alloc`, the node's own memory must stay out of the arena.
#[test]
fn the_arena_serves_the_nodes_threads_only_if_they_are_registered() {
    let (pool, all) = (served::<false>(), served::<true>());
    assert!(pool < 100, "{pool}");
    assert!(all > 1_000, "{all}");
}
