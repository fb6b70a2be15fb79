//! Spartan2 as a prover of prove-bench, over the curve T256 with Hyrax, as in its own bench.
//!
//! `circuit` defines the statement; this file defines the workload.

mod circuit;

use anyhow::Context;
use circuit::{BLOCK_LOG_ROWS, Preimage};
use provers_bench::{Prover, Workload, WorkloadSpec};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use spartan2::provider::T256HyraxEngine;
use spartan2::spartan::{SpartanProverKey, SpartanSNARK, SpartanVerifierKey};
use spartan2::traits::snark::R1CSSNARKTrait;

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover {
    name: "spartan2",
    about: "Spartan2 0.9",
    // Starts Rayon's pool outside any phase, so that its permanent allocations do not lie in the arena.
    init: || _ = zk_alloc::pool::build_global(),
    workloads: &[WorkloadSpec::new::<Sha256>("sha256", "the SHA-256 preimage of a digest over T256", 20)
        .sizes(BLOCK_LOG_ROWS, 22)
        .checked_at(17)
        .processes_at_most(2)],
}];

/// Every witness value of the circuit fits into a machine word.
const SMALL: bool = true;

type Snark = SpartanSNARK<T256HyraxEngine>;

/// A circuit of fewer than `2^log_rows` constraints, and its keys.
pub struct Sha256 {
    message_length: usize,
    proving_key: SpartanProverKey<T256HyraxEngine>,
    verifying_key: SpartanVerifierKey<T256HyraxEngine>,
}

/// A proof and its statement.
pub struct Statement {
    proof: Snark,
    digest: [u8; 32],
}

impl Workload for Sha256 {
    type Proof = Statement;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let message_length = circuit::message_length(1 << (log_rows - BLOCK_LOG_ROWS));
        let any = Preimage::of(vec![0; message_length]);
        let (proving_key, verifying_key) = Snark::setup(any).context("making keys")?;
        Ok(Self { message_length, proving_key, verifying_key })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Statement> {
        // The phase also covers the message and its witness.
        zk_alloc::phase(|| {
            let mut message = vec![0; self.message_length];
            StdRng::seed_from_u64(seed).fill_bytes(&mut message);
            let preimage = Preimage::of(message);
            let digest = preimage.digest();
            let witness =
                Snark::prep_prove(&self.proving_key, preimage.clone(), SMALL).context("making the witness")?;
            let (proof, _) = Snark::prove(&self.proving_key, preimage, witness, SMALL).context("proving")?;
            Ok(Statement { proof, digest })
        })
    }

    fn verify(&self, statement: &Statement) -> anyhow::Result<()> {
        let public = statement.proof.verify(&self.verifying_key).context("verifying")?;
        anyhow::ensure!(public == circuit::public_bits(&statement.digest), "the proof is not one of this digest");
        Ok(())
    }
}
