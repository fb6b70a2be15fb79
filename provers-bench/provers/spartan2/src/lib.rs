//! Spartan2 as a prover for prove-bench, over the curve T256 with Hyrax, as in its own benchmark.

use anyhow::Context;
use bellpepper::gadgets::sha256::sha256;
use bellpepper_core::boolean::{AllocatedBit, Boolean};
use bellpepper_core::num::AllocatedNum;
use bellpepper_core::{ConstraintSystem, SynthesisError};
use ff::Field;
use provers_bench::{Prover, Workload, WorkloadSpec};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use sha2::Digest;
use spartan2::provider::T256HyraxEngine;
use spartan2::spartan::{SpartanProverKey, SpartanSNARK, SpartanVerifierKey};
use spartan2::traits::Engine;
use spartan2::traits::circuit::SpartanCircuit;
use spartan2::traits::snark::R1CSSNARKTrait;

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "spartan2",
    "Spartan2 0.9",
    &[WorkloadSpec::new::<Sha256>("sha256", "the SHA-256 preimage of a digest over T256", 20)
        .sizes(BLOCK_LOG_ROWS, 22)
        .checked_at(17)
        .processes_at_most(2)],
)];

/// Whether every witness value of the circuit fits in a machine word.
const SMALL: bool = true;

type Snark = SpartanSNARK<T256HyraxEngine>;

/// A circuit of fewer than `2^log_rows` constraints, with its keys.
pub struct Sha256 {
    message_length: usize,
    proving_key: SpartanProverKey<T256HyraxEngine>,
    verifying_key: SpartanVerifierKey<T256HyraxEngine>,
}

impl Workload for Sha256 {
    /// A proof, and the message's digest.
    type Proof = (Snark, [u8; 32]);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let message_length = (BLOCK << (log_rows - BLOCK_LOG_ROWS)) - PADDING;
        let any = Preimage(vec![0; message_length]);
        let (proving_key, verifying_key) = Snark::setup(any).context("making keys")?;
        Ok(Self { message_length, proving_key, verifying_key })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        // The phase also covers the message and its witness.
        zk_alloc::phase(|| {
            let mut preimage = Preimage(vec![0; self.message_length]);
            StdRng::seed_from_u64(seed).fill_bytes(&mut preimage.0);
            let digest = preimage.digest();
            let witness =
                Snark::prep_prove(&self.proving_key, preimage.clone(), SMALL).context("making the witness")?;
            let (proof, _) = Snark::prove(&self.proving_key, preimage, witness, SMALL)?;
            Ok((proof, digest))
        })
    }

    fn verify(&self, (proof, digest): &Self::Proof) -> anyhow::Result<()> {
        let public = proof.verify(&self.verifying_key)?;
        anyhow::ensure!(public == public_bits(digest), "the proof is not valid for this digest");
        Ok(())
    }
}

/// A block of SHA-256 has fewer constraints than `2^BLOCK_LOG_ROWS`.
const BLOCK_LOG_ROWS: u32 = 15;
/// Number of bytes in a block.
const BLOCK: usize = 64;
/// Number of bytes of padding at the end of a message: a set bit, and the message's length.
const PADDING: usize = 9;

/// Returns the bits of a digest, as the circuit's public values.
fn public_bits<F: Field>(digest: &[u8]) -> Vec<F> {
    bits(digest).map(|bit| if bit { F::ONE } else { F::ZERO }).collect()
}

/// Returns the bits of `bytes`, most significant first.
fn bits(bytes: &[u8]) -> impl Iterator<Item = bool> {
    bytes.iter().flat_map(|byte| (0..u8::BITS).rev().map(move |place| byte >> place & 1 == 1))
}

/// A message with a public digest.
#[derive(Clone)]
struct Preimage(Vec<u8>);

impl Preimage {
    fn digest(&self) -> [u8; 32] {
        sha2::Sha256::digest(&self.0).into()
    }
}

impl<E: Engine> SpartanCircuit<E> for Preimage {
    fn public_values(&self) -> Result<Vec<E::Scalar>, SynthesisError> {
        Ok(public_bits(&self.digest()))
    }

    fn shared<CS: ConstraintSystem<E::Scalar>>(
        &self,
        _cs: &mut CS,
    ) -> Result<Vec<AllocatedNum<E::Scalar>>, SynthesisError> {
        Ok(Vec::new())
    }

    fn precommitted<CS: ConstraintSystem<E::Scalar>>(
        &self,
        cs: &mut CS,
        _shared: &[AllocatedNum<E::Scalar>],
    ) -> Result<Vec<AllocatedNum<E::Scalar>>, SynthesisError> {
        let message = bits(&self.0).enumerate().map(|(place, bit)| {
            AllocatedBit::alloc(cs.namespace(|| format!("message {place}")), Some(bit)).map(Boolean::from)
        });
        let message = message.collect::<Result<Vec<_>, _>>()?;
        let digest = sha256(cs.namespace(|| "digest"), &message)?;
        for (place, bit) in digest.iter().enumerate() {
            let value = || bit.get_value().map(|bit| E::Scalar::from(u64::from(bit)));
            let public = AllocatedNum::alloc_input(cs.namespace(|| format!("public {place}")), || {
                value().ok_or(SynthesisError::AssignmentMissing)
            })?;
            cs.enforce(
                || format!("digest {place}"),
                |_| bit.lc(CS::one(), E::Scalar::ONE),
                |one| one + CS::one(),
                |sum| sum + public.get_variable(),
            );
        }
        Ok(Vec::new())
    }

    fn num_challenges(&self) -> usize {
        0
    }

    fn synthesize<CS: ConstraintSystem<E::Scalar>>(
        &self,
        _cs: &mut CS,
        _shared: &[AllocatedNum<E::Scalar>],
        _precommitted: &[AllocatedNum<E::Scalar>],
        _challenges: Option<&[E::Scalar]>,
    ) -> Result<(), SynthesisError> {
        Ok(())
    }
}
