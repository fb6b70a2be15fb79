//! Winterfell as prover of prove-bench: the AIR of its crate documentation, several columns wide.
//!
//! `air` has the computation, `prover` Winterfell's traits, and this file the workload.

mod air;
mod prover;

use air::{COLUMNS, PublicInputs, WorkAir};
use anyhow::Context;
use prover::{Hash, WorkProver};
use provers_bench::{Prover, Workload, WorkloadSpec};
use winterfell::crypto::{DefaultRandomCoin, MerkleTree};
use winterfell::{AcceptableOptions, Proof, Prover as _};

/// The prover, as the driver and every arm know it.
pub static PROVERS: &[Prover] = &[Prover {
    name: "winterfell",
    about: "Winterfell 0.13",
    // Rayon's pool outside any phase: nothing that it keeps for life then lies in the arena.
    init: || _ = zk_alloc::pool::build_global(),
    workloads: &[WorkloadSpec::new::<Work>("work", "16 chains of x -> x^3 + 42 over f128", 16).checked_at(12)],
}];

/// `2^log_rows` steps of every chain.
pub struct Work {
    prover: WorkProver,
    rows: usize,
}

/// A proof, and what it is a proof of.
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
        // The phase holds the trace too.
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
