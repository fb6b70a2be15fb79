//! Halo2 of Axiom as prover of prove-bench, with KZG over BN256 and SHPLONK.
//!
//! `circuit` has the statement, and this file the workload.

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

/// The prover, as the driver and every arm know it.
pub static PROVERS: &[Prover] = &[Prover {
    name: "halo2",
    about: "Halo2 of Axiom 0.5",
    // Rayon's pool outside any phase: nothing that it keeps for life then lies in the arena.
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

/// A proof, and what it is a proof of.
pub struct Statement {
    proof: Vec<u8>,
    product: Fr,
}

impl Workload for Product {
    type Proof = Statement;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let rows = 1 << log_rows;
        // Parameters of our own making: real ones come from a ceremony.
        let parameters = ParamsKZG::setup(log_rows, StdRng::seed_from_u64(0));
        let circuit = InnerProduct::unknown(rows);
        let verifying_key = keygen_vk(&parameters, &circuit).context("making the verifying key")?;
        let key = keygen_pk(&parameters, verifying_key, &circuit).context("making the proving key")?;
        Ok(Self { parameters, key, rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Statement> {
        // The phase holds the vectors and the witness too.
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
