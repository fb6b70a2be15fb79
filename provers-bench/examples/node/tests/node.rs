//! The workload as the bench uses it: set up, prove, verify, drop. Under `Participants::Pool`, the threads of the prover allocate from
//! the arena, and the node's own threads do not.

use plonky3::Poseidon2;
use prover::InNode;
use provers_bench::Workload;
use std::sync::Mutex;
use std::time::Duration;
use std::{fs, thread};
use zk_alloc::{Participants, ZkAllocator};

#[global_allocator]
static ALLOCATOR: ZkAllocator = ZkAllocator.participants(Participants::Pool);

/// Held by each test, because the tests count threads and requests of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Threads of this process that belong to a node, by name.
fn threads_of_a_node() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| ["node\n", "job\n"].contains(&name.as_str())).collect()
}

/// Proofs verify while the node runs, and a dropped node leaves no threads behind.
#[test]
fn a_node_proves_and_stops() {
    let _alone = ALONE.lock();
    let of_node = InNode::<Poseidon2, false>::setup(10).unwrap();
    let threads = threads_of_a_node();
    assert!(threads.contains(&"node\n".to_owned()), "{threads:?}");
    for seed in 0..2 {
        let proof = of_node.prove(seed).unwrap();
        of_node.verify(&proof).unwrap();
    }
    drop(of_node);
    assert_eq!(threads_of_a_node(), Vec::<String>::new());
}

/// A prover that opens a phase and allocates nothing in it. Its proof is the number of requests that the arena served while the phase was open.
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

/// The requests that the arena served during a phase in which only the node worked.
fn served<const ALL: bool>() -> u64 {
    let of_node = InNode::<Idle, ALL>::setup(10).unwrap();
    let served = of_node.prove(1).unwrap();
    of_node.verify(&served).unwrap();
    served
}

/// The memory of the node must stay out of the arena, or the arm would not show what its name says.
#[test]
fn the_arena_serves_the_nodes_threads_only_if_they_are_registered() {
    let _alone = ALONE.lock();
    let (pool, all) = (served::<false>(), served::<true>());
    assert!(pool < 100, "{pool}");
    assert!(all > 1_000, "{all}");
}
