//! A node with an embedded prover, as a prove-bench workload: it proves while peers send messages, a database commits,
//! and threads come and go.

mod node;

use anyhow::Context;
use node::Node;
use plonky3::Poseidon2;
use provers_bench::{Prover, Workload, WorkloadSpec};

/// The two variants of the node, as provers for the driver and every arm.
pub static PROVERS: &[Prover] = &[
    Prover::new(
        "node",
        "a node with a prover in it",
        &[spec::<false>("node", "Poseidon2 proofs in a node with messages, a database and short-lived threads")],
    ),
    Prover::new(
        "node-all",
        "the same node, with all of its threads registered as workers",
        &[spec::<true>("node-all", "Poseidon2 proofs in a node with all of its threads registered as workers")],
    ),
];

const fn spec<const ALL: bool>(name: &'static str, about: &'static str) -> WorkloadSpec {
    WorkloadSpec::new::<InNode<Poseidon2, ALL>>(name, about, 14).checked_at(12)
}

/// The prover `P` inside a node that runs from setup until the workload is dropped.
///
/// With `ALL`, every thread of the node registers as a worker of the prover. Under `Participants::Pool`, all threads of the node then
/// allocate from the arena while a phase is open, as under `Participants::All`.
pub struct InNode<P, const ALL: bool> {
    prover: P,
    node: Node,
}

impl<P: Workload, const ALL: bool> Workload for InNode<P, ALL> {
    type Proof = P::Proof;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let on_thread_start: fn() = if ALL { zk_alloc::pool::register_worker } else { || () };
        Ok(Self { prover: P::setup(log_rows)?, node: Node::start(on_thread_start).context("cannot start the node")? })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<P::Proof> {
        self.prover.prove(seed)
    }

    fn verify(&self, proof: &P::Proof) -> anyhow::Result<()> {
        self.prover.verify(proof)?;
        // A proof counts only if the node kept up with its load and reported no failure.
        self.node.check().context("the node is not well")
    }
}
