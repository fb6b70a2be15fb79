//! Two workloads that stand in for Jolt, which is not on crates.io. Neither makes a Jolt proof.
//!
//! The first workload is Dory, Jolt's commitment scheme, because its commitments and openings take most of a Jolt proof.
//! The second is Spartan from `nova-snark`, a complete sumcheck-based SNARK on Jolt's curve.

use anyhow::{Context, ensure};
use dory_pcs::backends::arkworks::{
    ArkDoryProof, ArkFr, ArkGT, ArkworksPolynomial, BN254, Blake2bTranscript, G1Routines, G2Routines, init_cache,
};
use dory_pcs::primitives::arithmetic::Field;
use dory_pcs::primitives::transcript::Transcript;
use dory_pcs::{Polynomial, ProverSetup, Transparent, VerifierSetup};
use nova_snark::provider::{Bn256EngineKZG, hyperkzg};
use nova_snark::spartan::direct::{DirectSNARK, ProverKey, VerifierKey};
use nova_snark::spartan::snark::RelaxedR1CSSNARK;
use nova_snark::traits::{Engine, circuit::NonTrivialCircuit};
use provers_bench::{Prover, Workload, WorkloadSpec};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "jolt",
    "Jolt's commitment scheme Dory, and Spartan, over BN254",
    &[
        WorkloadSpec::new::<Dory>("dory", "Dory, one polynomial committed to and opened", 18).checked_at(16),
        WorkloadSpec::new::<Spartan>("spartan", "Spartan with HyperKZG, repeated squaring", 16)
            .sizes(10, 20)
            .checked_at(14)
            .processes_at_most(4),
    ],
)];

/// A multilinear polynomial of `2^log_rows` coefficients over BN254. Each proof commits to it and opens it at a point derived from the
/// commitment.
///
/// The coefficients are full-size field elements. Most of Jolt's own coefficients are small, so committing to them is faster.
pub struct Dory {
    prover: ProverSetup<BN254>,
    verifier: VerifierSetup<BN254>,
    log_rows: usize,
}

impl Dory {
    /// Returns the base-2 logarithms of the numbers of rows and columns of the coefficient matrix. The matrix is square, or has twice as
    /// many columns as rows.
    fn log_rows_and_columns(&self) -> (usize, usize) {
        (self.log_rows / 2, self.log_rows.div_ceil(2))
    }

    /// Returns the point at which `commitment` is opened, and the transcript after the point was drawn.
    fn point(&self, commitment: &ArkGT) -> (Vec<ArkFr>, Blake2bTranscript<BN254>) {
        let mut transcript = Blake2bTranscript::new(b"prove-bench");
        transcript.append_serde(b"commitment", commitment);
        let point = (0..self.log_rows).map(|_| transcript.challenge_scalar(b"point")).collect();
        (point, transcript)
    }
}

impl Workload for Dory {
    /// A commitment, the polynomial's value at the point derived from the commitment, and the proof of that value.
    type Proof = (ArkGT, ArkFr, ArkDoryProof);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let log_rows = log_rows as usize;
        let (prover, verifier) = dory_pcs::setup::<BN254>(log_rows);
        // Fills the cache as Jolt does. The cache lives until the process exits, so it is filled outside any phase.
        init_cache(&prover.g1_vec, &prover.g2_vec);
        Ok(Self { prover, verifier, log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        let (nu, sigma) = self.log_rows_and_columns();
        zk_alloc_jolt::try_prove(|| {
            let polynomial = ArkworksPolynomial::new(coefficients(seed, self.log_rows));
            let (commitment, rows, blind) =
                polynomial.commit::<BN254, Transparent, G1Routines>(nu, sigma, &self.prover)?;
            let (point, mut transcript) = self.point(&commitment);
            let evaluation = polynomial.evaluate(&point);
            let (proof, _) = dory_pcs::prove::<_, BN254, G1Routines, G2Routines, _, _, Transparent>(
                &polynomial,
                &point,
                rows,
                blind,
                nu,
                sigma,
                &self.prover,
                &mut transcript,
            )?;
            Ok((commitment, evaluation, proof))
        })
    }

    fn verify(&self, (commitment, evaluation, proof): &Self::Proof) -> anyhow::Result<()> {
        let (found, asked) = ((proof.nu, proof.sigma), self.log_rows_and_columns());
        ensure!(found == asked, "the opening is for a matrix with log2 rows and columns of {found:?}, not {asked:?}");
        let (point, mut transcript) = self.point(commitment);
        Ok(dory_pcs::verify::<_, BN254, G1Routines, G2Routines, _>(
            *commitment,
            *evaluation,
            &point,
            proof,
            self.verifier.clone(),
            &mut transcript,
        )?)
    }
}

/// Iterates x -> x^2 + 7 from `seed` and returns the `2^log_rows` results. They soon have full size, and each costs one multiplication.
fn coefficients(seed: u64, log_rows: usize) -> Vec<ArkFr> {
    let (mut x, seven) = (ArkFr::from_u64(seed), ArkFr::from_u64(7));
    let next = |_| {
        x = x * x + seven;
        x
    };
    (0..1 << log_rows).map(next).collect()
}

type Curve = Bn256EngineKZG;
type Scalar = <Curve as Engine>::Scalar;
type Squarings = NonTrivialCircuit<Scalar>;
type Snark = RelaxedR1CSSNARK<Curve, hyperkzg::EvaluationEngine<Curve>>;
type Direct = DirectSNARK<Curve, Snark, Squarings>;

/// Number of constraints that tie the circuit's one input and one output to the instance.
const PUBLIC_CONSTRAINTS: usize = 2;

/// Repeated squaring in `2^log_rows` constraints: Spartan's two sumchecks over R1CS, and HyperKZG on BN254.
pub struct Spartan {
    prover_key: ProverKey<Curve, Snark>,
    verifier_key: VerifierKey<Curve, Snark>,
    squarings: usize,
}

impl Workload for Spartan {
    /// A proof that repeated squaring of the first number gives the second.
    type Proof = (Direct, [Scalar; 2]);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let squarings = (1 << log_rows) - PUBLIC_CONSTRAINTS;
        let (prover_key, verifier_key) = Direct::setup(Squarings::new(squarings)).context("making keys")?;
        Ok(Self { prover_key, verifier_key, squarings })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        // At least 2, because 0 and 1 are their own squares.
        let input = Scalar::from(seed) + Scalar::from(2);
        zk_alloc_jolt::try_prove(|| {
            let proof = Direct::prove(&self.prover_key, Squarings::new(self.squarings), &[input])?;
            let output = (0..self.squarings).fold(input, |x, _| x * x);
            Ok((proof, [input, output]))
        })
    }

    fn verify(&self, (proof, ends): &Self::Proof) -> anyhow::Result<()> {
        Ok(proof.verify(&self.verifier_key, ends)?)
    }
}
