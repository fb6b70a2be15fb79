//! The workload as the bench uses it: set up, prove, verify, drop.

use node::InNode;
use plonky3::Poseidon2;
use provers_bench::Workload;
use std::fs;

/// Threads of this process that belong to a node, by name.
fn threads_of_a_node() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let names = names.map(|name| name.trim().to_owned());
    names.filter(|name| ["node", "job"].contains(&name.as_str())).collect()
}

/// A proof is right while the node runs, and a node leaves nothing behind that would disturb the next process.
#[test]
fn a_node_proves_and_stops() {
    let of_node = InNode::<Poseidon2, false>::setup(10).unwrap();
    let threads = threads_of_a_node();
    assert!(threads.contains(&"node".to_owned()), "{threads:?}");
    for seed in 0..2 {
        let proof = of_node.prove(seed).unwrap();
        of_node.verify(&proof).unwrap();
    }
    drop(of_node);
    assert_eq!(threads_of_a_node(), Vec::<String>::new());
}
