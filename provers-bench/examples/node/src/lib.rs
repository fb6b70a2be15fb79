//! A node with a prover in it, as a workload of prove-bench: it proves while peers send messages, a database commits,
//! and threads come and go.
//!
//! - [`InNode`]: any prover, with a node around it
//! - `node`: the node: starts its parts, asks after them, stops them
//! - `traffic`: peers that send each other messages over loopback TCP
//! - `database`: the records of the messages, on disk
//! - `jobs`: threads that live for a moment
//! - `mempool`: transactions that the node holds in memory
//! - `transaction`, `message`: what the peers send, and how it travels
//! - `health`: whether every part is busy and nothing went wrong
//! - `load`: how much of everything

mod database;
mod health;
mod jobs;
mod load;
mod mempool;
mod message;
mod node;
mod traffic;
mod transaction;

use anyhow::Context;
use load::Load;
use node::Node;
use plonky3::Poseidon2;
use provers_bench::{Prover, Workload, WorkloadSpec};

/// The same node twice, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[
    Prover {
        name: "node",
        about: "a node with a prover in it",
        init,
        workloads: &[WorkloadSpec::new::<InNode<Poseidon2, false>>(
            "node",
            "Poseidon2 proofs in a node with messages, a database and short-lived threads",
            14,
        )
        .checked_at(12)],
    },
    Prover {
        name: "node-all",
        about: "the same node, whose threads all take part in zk-alloc's phases",
        init,
        workloads: &[WorkloadSpec::new::<InNode<Poseidon2, true>>(
            "node-all",
            "Poseidon2 proofs in a node whose threads all allocate from the arena during a proof",
            14,
        )
        .checked_at(12)],
    },
];

/// Starts Rayon's pool outside any phase, so that its permanent allocations do not lie in the arena.
fn init() {
    zk_alloc::pool::build_global();
}

/// The prover `P` in a node, which runs from the set-up to the drop.
///
/// With `ALL`, every thread of the node registers as a worker of the prover. Under `Participants::Pool` it then
/// allocates from the arena while a phase is open, as all threads do under `Participants::All`.
pub struct InNode<P, const ALL: bool> {
    prover: P,
    node: Node,
}

impl<P: Workload, const ALL: bool> Workload for InNode<P, ALL> {
    type Proof = P::Proof;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let on_thread_start: fn() = if ALL { zk_alloc::pool::register_worker } else { || () };
        let prover = P::setup(log_rows)?;
        let node = Node::start(Load { on_thread_start, ..Load::NODE }).context("cannot start the node")?;
        Ok(Self { prover, node })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<P::Proof> {
        self.prover.prove(seed)
    }

    fn verify(&self, proof: &P::Proof) -> anyhow::Result<()> {
        self.prover.verify(proof)?;
        // A proof counts only if the node around it did its work, and did it right.
        self.node.check().context("the node is not well")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Workload for Nothing {
        type Proof = bool;
        fn setup(_: u32) -> anyhow::Result<Self> {
            Ok(Self)
        }
        fn prove(&self, _: u64) -> anyhow::Result<bool> {
            Ok(true)
        }
        fn verify(&self, proof: &bool) -> anyhow::Result<()> {
            anyhow::ensure!(*proof, "a wrong proof");
            Ok(())
        }
    }

    /// A node that lost a message must not yield a figure, even if the proof is right.
    #[test]
    fn a_proof_of_a_node_in_trouble_is_refused() {
        let of_node = InNode::<_, false> { prover: Nothing, node: Node::start(Load::SMALL).unwrap() };
        of_node.verify(&of_node.prove(1).unwrap()).unwrap();
        assert!(of_node.verify(&false).unwrap_err().to_string().contains("a wrong proof"));
        of_node.node.health().report(&anyhow::anyhow!("a message was lost"));
        let refusal = format!("{:#}", of_node.verify(&true).unwrap_err());
        assert!(refusal.contains("not well") && refusal.contains("a message was lost"), "{refusal}");
    }
}
