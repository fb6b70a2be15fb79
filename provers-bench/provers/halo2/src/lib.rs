//! Axiom's Halo2 as a prover of prove-bench, with KZG over BN256 and SHPLONK.
//!
//! `circuit` defines the statement; this file defines the workload.

mod circuit;

use anyhow::Context;
use circuit::InnerProduct;
use halo2_axiom::halo2curves::bn256::{Bn256, Fr, G1Affine};
use halo2_axiom::plonk::{ProvingKey, create_proof, keygen_pk, keygen_vk, verify_proof};
use halo2_axiom::poly::commitment::ParamsProver;
use halo2_axiom::poly::kzg::commitment::{KZGCommitmentScheme, ParamsKZG};
use halo2_axiom::poly::kzg::multiopen::{ProverSHPLONK, VerifierSHPLONK};
use halo2_axiom::poly::kzg::strategy::SingleStrategy;
use halo2_axiom::transcript::{Blake2bRead, Blake2bWrite, Challenge255, TranscriptReadBuffer, TranscriptWriterBuffer};
use provers_bench::{Prover, Workload, WorkloadSpec};
use rand::{SeedableRng, rngs::StdRng};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover {
    name: "halo2",
    about: "Halo2 of Axiom 0.5",
    // Starts Rayon's pool outside any phase, so that its permanent allocations do not lie in the arena.
    init: || _ = zk_alloc::pool::build_global(),
    workloads: &[WorkloadSpec::new::<Product>("inner-product", "the inner product of vectors of bytes, by KZG", 17)
        .sizes(10, 20)
        .checked_at(10)
        .processes_at_most(2)],
}];

/// A circuit of `2^log_rows` rows, and its keys.
pub struct Product {
    parameters: ParamsKZG<Bn256>,
    key: ProvingKey<G1Affine>,
    rows: usize,
}

/// A proof and its statement.
pub struct Statement {
    proof: Vec<u8>,
    product: Fr,
}

impl Workload for Product {
    type Proof = Statement;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let rows = 1 << log_rows;
        // These parameters come from a fixed seed; real ones come from a ceremony.
        let parameters = ParamsKZG::setup(log_rows, StdRng::seed_from_u64(0));
        let circuit = InnerProduct::unknown(rows);
        let verifying_key = keygen_vk(&parameters, &circuit).context("making the verifying key")?;
        let key = keygen_pk(&parameters, verifying_key, &circuit).context("making the proving key")?;
        Ok(Self { parameters, key, rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Statement> {
        // The phase also covers the vectors and the witness.
        zk_alloc::phase(|| {
            let mut rng = StdRng::seed_from_u64(seed);
            let (circuit, product) = InnerProduct::random(self.rows, &mut rng);
            let mut transcript = Blake2bWrite::<_, _, Challenge255<_>>::init(Vec::new());
            create_proof::<KZGCommitmentScheme<Bn256>, ProverSHPLONK<'_, Bn256>, _, _, _, _>(
                &self.parameters,
                &self.key,
                &[circuit],
                &[&[&circuit::instance(product)]],
                rng,
                &mut transcript,
            )
            .context("proving")?;
            Ok(Statement { proof: transcript.finalize(), product })
        })
    }

    fn verify(&self, statement: &Statement) -> anyhow::Result<()> {
        let parameters = self.parameters.verifier_params();
        let mut transcript = Blake2bRead::<_, _, Challenge255<_>>::init(&statement.proof[..]);
        verify_proof::<KZGCommitmentScheme<Bn256>, VerifierSHPLONK<'_, Bn256>, _, _, _>(
            parameters,
            self.key.get_vk(),
            SingleStrategy::new(parameters),
            &[&[&circuit::instance(statement.product)]],
            &mut transcript,
        )
        .context("verifying")
    }
}
