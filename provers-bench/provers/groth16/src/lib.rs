//! Groth16 from arkworks as a prover for prove-bench.

use anyhow::{Context, anyhow};
use ark_bn254::{Bn254, Fr};
use ark_crypto_primitives::crh::poseidon::CRH;
use ark_crypto_primitives::crh::poseidon::constraints::{CRHGadget, CRHParametersVar};
use ark_crypto_primitives::crh::{CRHScheme, CRHSchemeGadget};
use ark_crypto_primitives::sponge::poseidon::{PoseidonConfig, find_poseidon_ark_and_mds};
use ark_ff::{PrimeField, UniformRand};
use ark_groth16::{Groth16, PreparedVerifyingKey, Proof, ProvingKey};
use ark_r1cs_std::alloc::AllocVar;
use ark_r1cs_std::eq::EqGadget;
use ark_r1cs_std::fields::fp::FpVar;
use ark_relations::gr1cs::{ConstraintSynthesizer, ConstraintSystemRef, SynthesisError};
use ark_snark::SNARK;
use ark_std::rand::{Rng, SeedableRng, rngs::StdRng};
use provers_bench::{Prover, Workload, WorkloadSpec};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "groth16",
    "Groth16 of arkworks 0.6",
    &[WorkloadSpec::new::<Poseidon>("poseidon", "the Poseidon preimage of a digest over BN254", 18)
        .sizes(10, 20)
        .checked_at(12)
        .processes_at_most(2)],
)];

/// A circuit of at most `2^log_rows` constraints, with its keys.
pub struct Poseidon {
    parameters: PoseidonConfig<Fr>,
    message_length: usize,
    proving_key: ProvingKey<Bn254>,
    verifying_key: PreparedVerifyingKey<Bn254>,
}

impl Workload for Poseidon {
    /// A proof, and the message's digest.
    type Proof = (Proof<Bn254>, Fr);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let parameters = parameters();
        let message_length = message_length(1 << log_rows);
        // These keys come from a fixed seed. Real keys come from a ceremony.
        let mut rng = StdRng::seed_from_u64(0);
        let any = Preimage::random(&parameters, message_length, &mut rng)?;
        let (proving_key, verifying_key) =
            Groth16::<Bn254>::circuit_specific_setup(any, &mut rng).context("making keys")?;
        let verifying_key = Groth16::<Bn254>::process_vk(&verifying_key)?;
        Ok(Self { parameters, message_length, proving_key, verifying_key })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        // The phase also covers the message and its circuit.
        zk_alloc::phase(|| {
            let mut rng = StdRng::seed_from_u64(seed);
            let preimage = Preimage::random(&self.parameters, self.message_length, &mut rng)?;
            let digest = preimage.digest;
            let proof = Groth16::<Bn254>::prove(&self.proving_key, preimage, &mut rng)?;
            Ok((proof, digest))
        })
    }

    fn verify(&self, (proof, digest): &Self::Proof) -> anyhow::Result<()> {
        let valid = Groth16::<Bn254>::verify_with_processed_vk(&self.verifying_key, &[*digest], proof)?;
        anyhow::ensure!(valid, "the proof is not valid for this digest");
        Ok(())
    }
}

/// Number of field elements that a permutation absorbs.
const RATE: usize = 2;
const FULL_ROUNDS: usize = 8;
const PARTIAL_ROUNDS: usize = 57;
/// The exponent of the S-box: x -> x^5 takes three constraints.
const ALPHA: u64 = 5;
const PERMUTATION_CONSTRAINTS: usize = 3 * (FULL_ROUNDS * (RATE + 1) + PARTIAL_ROUNDS);
/// Number of constraints outside the permutations: for the digest, and for the constant that every constraint system contains.
const OTHER_CONSTRAINTS: usize = 3;

/// Returns the parameters of Poseidon over the scalar field of BN254, with 128 bits of security.
fn parameters() -> PoseidonConfig<Fr> {
    let bits = u64::from(Fr::MODULUS_BIT_SIZE);
    let (constants, matrix) = find_poseidon_ark_and_mds(bits, RATE, FULL_ROUNDS as u64, PARTIAL_ROUNDS as u64, 0);
    PoseidonConfig::new(FULL_ROUNDS, PARTIAL_ROUNDS, ALPHA, matrix, constants, RATE, 1)
}

/// Returns the number of elements of the longest message whose circuit has at most `constraints` constraints.
fn message_length(constraints: usize) -> usize {
    RATE * ((constraints - OTHER_CONSTRAINTS) / PERMUTATION_CONSTRAINTS)
}

/// A message and its digest.
#[derive(Clone)]
struct Preimage {
    parameters: PoseidonConfig<Fr>,
    message: Vec<Fr>,
    digest: Fr,
}

impl Preimage {
    fn random(parameters: &PoseidonConfig<Fr>, length: usize, rng: &mut impl Rng) -> anyhow::Result<Self> {
        let message: Vec<_> = (0..length).map(|_| Fr::rand(rng)).collect();
        let digest = CRH::evaluate(parameters, &message[..]).map_err(|error| anyhow!("{error}")).context("hashing")?;
        Ok(Self { parameters: parameters.clone(), message, digest })
    }
}

impl ConstraintSynthesizer<Fr> for Preimage {
    fn generate_constraints(self, cs: ConstraintSystemRef<Fr>) -> Result<(), SynthesisError> {
        let parameters = CRHParametersVar::new_constant(cs.clone(), &self.parameters)?;
        let digest = FpVar::new_input(cs.clone(), || Ok(self.digest))?;
        let message = Vec::<FpVar<Fr>>::new_witness(cs, || Ok(self.message))?;
        CRHGadget::evaluate(&parameters, &message)?.enforce_equal(&digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ark_relations::gr1cs::ConstraintSystem;

    #[test]
    fn the_circuit_fills_its_rows() -> anyhow::Result<()> {
        for log_rows in [10, 12] {
            let length = message_length(1 << log_rows);
            let preimage = Preimage::random(&parameters(), length, &mut ark_std::test_rng())?;
            let cs = ConstraintSystem::new_ref();
            preimage.generate_constraints(cs.clone())?;
            cs.finalize();
            let rows = cs.num_constraints() + cs.num_instance_variables();
            let fill = (1 << log_rows) - PERMUTATION_CONSTRAINTS..=1 << log_rows;
            anyhow::ensure!(cs.is_satisfied()? && fill.contains(&rows), "{rows} at {log_rows}");
        }
        Ok(())
    }
}
