//! Winterfell as a prover of prove-bench: the AIR of its crate documentation, with several columns.
//!
//! `air` defines the computation, `prover` implements Winterfell's traits, and this file defines the workload.

mod air;
mod prover;

use air::{COLUMNS, PublicInputs, WorkAir};
use anyhow::Context;
use prover::{Hash, WorkProver};
use provers_bench::{Prover, Workload, WorkloadSpec};
use winterfell::crypto::{DefaultRandomCoin, MerkleTree};
use winterfell::{AcceptableOptions, Proof, Prover as _};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover {
    name: "winterfell",
    about: "Winterfell 0.13",
    // Starts Rayon's pool outside any phase, so that its permanent allocations do not lie in the arena.
    init: || _ = zk_alloc::pool::build_global(),
    workloads: &[WorkloadSpec::new::<Work>("work", "16 chains of x -> x^3 + 42 over f128", 16).checked_at(12)],
}];

/// A workload of `2^log_rows` steps of every chain.
pub struct Work {
    prover: WorkProver,
    rows: usize,
}

/// A proof and its statement.
pub struct Statement {
    proof: Proof,
    inputs: PublicInputs,
}

impl Workload for Work {
    type Proof = Statement;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        Ok(Self { prover: WorkProver::new(), rows: 1 << log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Statement> {
        // The phase also covers the trace.
        zk_alloc::phase(|| {
            let trace = air::trace(seed, self.rows);
            let inputs = self.prover.get_pub_inputs(&trace);
            let proof = self.prover.prove(trace).context("proving")?;
            Ok(Statement { proof, inputs })
        })
    }

    fn verify(&self, statement: &Statement) -> anyhow::Result<()> {
        let options = AcceptableOptions::MinConjecturedSecurity(95);
        let (proof, inputs) = (statement.proof.clone(), statement.inputs.clone());
        anyhow::ensure!(inputs.width() == COLUMNS, "an input for each column");
        winterfell::verify::<WorkAir, Hash, DefaultRandomCoin<Hash>, MerkleTree<Hash>>(proof, inputs, &options)
            .context("verifying")
    }
}
