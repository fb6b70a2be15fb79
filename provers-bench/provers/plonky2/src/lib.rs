//! Circuits over Goldilocks in plonky2's standard configuration: repeated squaring, and two levels of recursion on top
//! of it.
//!
//! Each circuit is built once and reused for all of its proofs, as in a service. Witnesses are generated inside the
//! phase.

/// The circuits, shared with the tests of the adapter.
#[path = "../../../../integrations/plonky2/tests/common/mod.rs"]
mod common;

use anyhow::{Context, ensure};
use common::{F, Proof, Recursion as VerifierCircuit, Squarings};
use plonky2::field::types::{Field64, PrimeField64};
use provers_bench::{Prover, Workload, WorkloadSpec};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "plonky2",
    "plonky2 1.1 over Goldilocks with FRI",
    &[
        WorkloadSpec::new::<Squaring>("squaring", "repeated squaring, 20 to a row", 13).checked_at(12),
        WorkloadSpec::new::<Recursion>("recursion", "squarings, a proof of the proof, and a proof of that", 13)
            .checked_at(12),
    ],
)];

/// Number of squarings in a row of arithmetic gates.
const IN_A_ROW: usize = 20;
/// Upper bound on the number of rows that the builder adds for constants, public inputs and their hash.
const ROWS_OF_THE_BUILDER: usize = 16;

/// Repeated squaring of `x`: a chain of arithmetic gates, 20 squarings per row, that fills `2^log_rows` rows.
///
/// The public inputs are `x` and the last square.
pub struct Squaring(Squarings);

impl Squaring {
    /// Repeats the squaring of the first public input natively, and checks that the result is the second public input.
    fn check_square(&self, proof: &Proof) -> anyhow::Result<()> {
        let first = proof.public_inputs.first().context("a proof without public inputs")?;
        let (expected, found) = (self.0.public_inputs(first.to_canonical_u64()), &proof.public_inputs);
        ensure!(*found == expected, "squaring gives {expected:?}, and the proof says {found:?}");
        Ok(())
    }
}

impl Workload for Squaring {
    type Proof = Proof;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let squarings = ((1 << log_rows) - ROWS_OF_THE_BUILDER) * IN_A_ROW;
        let circuit = Squarings::build(squarings);
        let built = circuit.data.common.degree_bits();
        ensure!(built == log_rows as usize, "{squarings} squarings make a circuit of 2^{built} rows, not 2^{log_rows}");
        Ok(Self(circuit))
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Proof> {
        // At least 2, because 0 and 1 are their own squares.
        zk_alloc_plonky2::prove(&self.0.data, self.0.inputs(2 + seed % (F::ORDER - 2)))
    }

    fn verify(&self, proof: &Proof) -> anyhow::Result<()> {
        self.check_square(proof)?;
        self.0.data.verify(proof.clone())
    }
}

/// A proof of [`Squaring`], a proof that verifies it, and a proof that verifies the second one: plonky2's own recursion
/// benchmark.
///
/// Each round makes all three proofs, each in its own phase, and returns the last one. The first circuit has
/// `2^log_rows` rows. The other two have as many rows as a verifier needs, about 2^12.
pub struct Recursion {
    innermost: Squaring,
    middle: VerifierCircuit,
    outer: VerifierCircuit,
}

impl Workload for Recursion {
    type Proof = Proof;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let innermost = Squaring::setup(log_rows)?;
        let middle = VerifierCircuit::build(&innermost.0.data);
        let outer = VerifierCircuit::build(&middle.data);
        Ok(Self { innermost, middle, outer })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Proof> {
        let innermost = self.innermost.prove(seed)?;
        let prove = |circuit: &VerifierCircuit, inner| zk_alloc_plonky2::prove(&circuit.data, circuit.inputs(inner));
        let middle = prove(&self.middle, &innermost).context("proving the proof")?;
        prove(&self.outer, &middle).context("proving the proof of the proof")
    }

    fn verify(&self, proof: &Proof) -> anyhow::Result<()> {
        self.innermost.check_square(proof)?;
        self.outer.data.verify(proof.clone()).context("verifying a proof of a proof of a proof")
    }
}
