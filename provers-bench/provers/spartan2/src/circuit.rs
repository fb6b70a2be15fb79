//! The statement: the prover knows a message with this SHA-256 digest.

use bellpepper::gadgets::sha256::sha256;
use bellpepper_core::boolean::{AllocatedBit, Boolean};
use bellpepper_core::num::AllocatedNum;
use bellpepper_core::{ConstraintSystem, SynthesisError};
use ff::Field;
use sha2::{Digest, Sha256};
use spartan2::traits::Engine;
use spartan2::traits::circuit::SpartanCircuit;

/// A block of SHA-256 has fewer constraints than `2^BLOCK_LOG_ROWS`.
pub(crate) const BLOCK_LOG_ROWS: u32 = 15;
const BLOCK: usize = 64;
/// Bytes at the end of a message: a set bit, and the message's length.
const PADDING: usize = 9;

/// Bytes of the message that fills `blocks` blocks.
pub(crate) fn message_length(blocks: usize) -> usize {
    blocks * BLOCK - PADDING
}

/// The bits of a digest, as the circuit's public values.
pub(crate) fn public_bits<F: Field>(digest: &[u8]) -> Vec<F> {
    bits(digest).map(|bit| if bit { F::ONE } else { F::ZERO }).collect()
}

/// Bits of `bytes`, most significant first.
fn bits(bytes: &[u8]) -> impl Iterator<Item = bool> {
    bytes.iter().flat_map(|byte| (0..u8::BITS).rev().map(move |place| byte >> place & 1 == 1))
}

/// A message with a public digest.
#[derive(Clone)]
pub(crate) struct Preimage {
    message: Vec<u8>,
}

impl Preimage {
    pub(crate) fn of(message: Vec<u8>) -> Self {
        Self { message }
    }

    pub(crate) fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.message).into()
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
        let message = bits(&self.message).enumerate().map(|(place, bit)| {
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
