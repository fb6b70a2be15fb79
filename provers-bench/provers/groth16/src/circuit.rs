//! The statement: the prover knows a message with this Poseidon digest.

use anyhow::{Context, anyhow};
use ark_bn254::Fr;
use ark_crypto_primitives::crh::poseidon::CRH;
use ark_crypto_primitives::crh::poseidon::constraints::{CRHGadget, CRHParametersVar};
use ark_crypto_primitives::crh::{CRHScheme, CRHSchemeGadget};
use ark_crypto_primitives::sponge::poseidon::{PoseidonConfig, find_poseidon_ark_and_mds};
use ark_ff::{PrimeField, UniformRand};
use ark_r1cs_std::alloc::AllocVar;
use ark_r1cs_std::eq::EqGadget;
use ark_r1cs_std::fields::fp::FpVar;
use ark_relations::gr1cs::{ConstraintSynthesizer, ConstraintSystemRef, SynthesisError};
use ark_std::rand::Rng;

/// Field elements that a permutation absorbs.
const RATE: usize = 2;
const FULL_ROUNDS: usize = 8;
const PARTIAL_ROUNDS: usize = 57;
/// x -> x^5 takes three constraints.
const ALPHA: u64 = 5;
const PERMUTATION_CONSTRAINTS: usize = 3 * (FULL_ROUNDS * (RATE + 1) + PARTIAL_ROUNDS);
/// Constraints of the digest, and of the constant in every constraint system.
const OTHER_CONSTRAINTS: usize = 3;

/// Poseidon over the scalars of BN254, at 128 bits of security.
pub(crate) fn parameters() -> PoseidonConfig<Fr> {
    let bits = u64::from(Fr::MODULUS_BIT_SIZE);
    let (constants, matrix) = find_poseidon_ark_and_mds(bits, RATE, FULL_ROUNDS as u64, PARTIAL_ROUNDS as u64, 0);
    PoseidonConfig::new(FULL_ROUNDS, PARTIAL_ROUNDS, ALPHA, matrix, constants, RATE, 1)
}

/// Number of elements of the longest message whose circuit has at most `constraints` constraints.
pub(crate) fn message_length(constraints: usize) -> usize {
    RATE * ((constraints - OTHER_CONSTRAINTS) / PERMUTATION_CONSTRAINTS)
}

/// A message and its digest.
#[derive(Clone)]
pub(crate) struct Preimage {
    parameters: PoseidonConfig<Fr>,
    message: Vec<Fr>,
    pub(crate) digest: Fr,
}

impl Preimage {
    pub(crate) fn random(parameters: &PoseidonConfig<Fr>, length: usize, rng: &mut impl Rng) -> anyhow::Result<Self> {
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
