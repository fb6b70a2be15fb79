//! Groth16 of arkworks as a prover of prove-bench.
//!
//! `circuit` defines the statement; this file defines the workload.

mod circuit;

use anyhow::Context;
use ark_bn254::{Bn254, Fr};
use ark_crypto_primitives::sponge::poseidon::PoseidonConfig;
use ark_groth16::{Groth16, PreparedVerifyingKey, Proof, ProvingKey};
use ark_snark::SNARK;
use ark_std::rand::{SeedableRng, rngs::StdRng};
use circuit::Preimage;
use provers_bench::{Prover, Workload, WorkloadSpec};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover {
    name: "groth16",
    about: "Groth16 of arkworks 0.6",
    // Starts Rayon's pool outside any phase, so that its permanent allocations do not lie in the arena.
    init: || _ = zk_alloc::pool::build_global(),
    workloads: &[WorkloadSpec::new::<Poseidon>("poseidon", "the Poseidon preimage of a digest over BN254", 18)
        .sizes(10, 20)
        .checked_at(12)
        .processes_at_most(2)],
}];

/// A circuit of at most `2^log_rows` constraints, and its keys.
pub struct Poseidon {
    parameters: PoseidonConfig<Fr>,
    message_length: usize,
    proving_key: ProvingKey<Bn254>,
    verifying_key: PreparedVerifyingKey<Bn254>,
}

/// A proof and its statement.
pub struct Statement {
    proof: Proof<Bn254>,
    digest: Fr,
}

impl Workload for Poseidon {
    type Proof = Statement;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let parameters = circuit::parameters();
        let message_length = circuit::message_length(1 << log_rows);
        // These keys come from a fixed seed; real ones come from a ceremony.
        let mut rng = StdRng::seed_from_u64(0);
        let any = Preimage::random(&parameters, message_length, &mut rng)?;
        let (proving_key, verifying_key) =
            Groth16::<Bn254>::circuit_specific_setup(any, &mut rng).context("making keys")?;
        let verifying_key = Groth16::<Bn254>::process_vk(&verifying_key)?;
        Ok(Self { parameters, message_length, proving_key, verifying_key })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Statement> {
        // The phase also covers the message and its circuit.
        zk_alloc::phase(|| {
            let mut rng = StdRng::seed_from_u64(seed);
            let preimage = Preimage::random(&self.parameters, self.message_length, &mut rng)?;
            let digest = preimage.digest;
            let proof = Groth16::<Bn254>::prove(&self.proving_key, preimage, &mut rng).context("proving")?;
            Ok(Statement { proof, digest })
        })
    }

    fn verify(&self, statement: &Statement) -> anyhow::Result<()> {
        let valid =
            Groth16::<Bn254>::verify_with_processed_vk(&self.verifying_key, &[statement.digest], &statement.proof)
                .context("verifying")?;
        anyhow::ensure!(valid, "the proof is not one of this digest");
        Ok(())
    }
}
