//! Circuits over Goldilocks under plonky2's standard configuration: repeated squaring, and two levels of recursion on
//! top.
//!
//! Each circuit is built once and reused for all its proofs, as in a service. Witnesses are generated inside the phase.

use anyhow::{Context, ensure};
use plonky2::field::goldilocks_field::GoldilocksField;
use plonky2::field::types::{Field, Field64};
use plonky2::iop::target::Target;
use plonky2::iop::witness::{PartialWitness, WitnessWrite};
use plonky2::plonk::circuit_builder::CircuitBuilder;
use plonky2::plonk::circuit_data::{CircuitConfig, CircuitData};
use plonky2::plonk::config::PoseidonGoldilocksConfig;
use plonky2::plonk::proof::{ProofWithPublicInputs, ProofWithPublicInputsTarget};
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

const D: usize = 2;
type F = GoldilocksField;
type C = PoseidonGoldilocksConfig;
type Proof = ProofWithPublicInputs<F, C, D>;

/// Routed wires of a multiplication `c0 * x * y + c1 * z` in an arithmetic gate: its operands and its result.
const WIRES_OF_A_MULTIPLICATION: usize = 4;
/// Upper bound of the rows that the builder adds for constants, public inputs and their hash.
const ROWS_OF_THE_BUILDER: usize = 16;

/// Repeated squaring of `x`: a chain of arithmetic gates, 20 squarings to a row, that fills `2^log_rows` rows.
///
/// The public inputs are `x` and the last square.
pub struct Squaring {
    circuit: CircuitData<F, C, D>,
    first: Target,
    squarings: usize,
}

impl Workload for Squaring {
    type Proof = Proof;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let config = CircuitConfig::standard_recursion_config();
        let in_a_row = config.num_routed_wires / WIRES_OF_A_MULTIPLICATION;
        let squarings = ((1 << log_rows) - ROWS_OF_THE_BUILDER) * in_a_row;

        let mut builder = CircuitBuilder::<F, D>::new(config);
        let first = builder.add_virtual_public_input();
        let last = (0..squarings).fold(first, |x, _| builder.square(x));
        builder.register_public_input(last);
        let circuit = builder.build::<C>();
        ensure!(
            circuit.common.degree_bits() == log_rows as usize,
            "{squarings} squarings make a circuit of 2^{} rows, and 2^{log_rows} were asked for",
            circuit.common.degree_bits()
        );
        Ok(Self { circuit, first, squarings })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Proof> {
        let mut inputs = PartialWitness::new();
        // At least 2, because 0 and 1 are their own squares.
        inputs.set_target(self.first, F::from_canonical_u64(2 + seed % (F::ORDER - 2)))?;
        zk_alloc_plonky2::prove(&self.circuit, inputs)
    }

    fn verify(&self, proof: &Proof) -> anyhow::Result<()> {
        check_square(&proof.public_inputs, self.squarings)?;
        self.circuit.verify(proof.clone())
    }
}

/// A proof of [`Squaring`], a proof that verifies it, and a proof that verifies the second one: plonky2's own recursion
/// benchmark.
///
/// Each round makes all three, each in its own phase, and returns the last one. The first circuit has `2^log_rows`
/// rows. The other two have as many rows as a verifier needs, about 2^12.
pub struct Recursion {
    innermost: Squaring,
    middle: VerifierCircuit,
    outer: VerifierCircuit,
}

impl Workload for Recursion {
    type Proof = Proof;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let innermost = Squaring::setup(log_rows)?;
        let middle = VerifierCircuit::of(&innermost.circuit);
        let outer = VerifierCircuit::of(&middle.circuit);
        Ok(Self { innermost, middle, outer })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Proof> {
        let innermost = self.innermost.prove(seed)?;
        let middle = self.middle.prove(&innermost).context("proving the proof")?;
        self.outer.prove(&middle).context("proving the proof of the proof")
    }

    fn verify(&self, proof: &Proof) -> anyhow::Result<()> {
        check_square(&proof.public_inputs, self.innermost.squarings)?;
        self.outer.circuit.verify(proof.clone()).context("verifying a proof of a proof of a proof")
    }
}

/// A circuit that verifies proofs of one other circuit and makes their public inputs public again.
struct VerifierCircuit {
    circuit: CircuitData<F, C, D>,
    proof: ProofWithPublicInputsTarget<D>,
}

impl VerifierCircuit {
    fn of(inner: &CircuitData<F, C, D>) -> Self {
        let mut builder = CircuitBuilder::<F, D>::new(CircuitConfig::standard_recursion_config());
        let proof = builder.add_virtual_proof_with_pis(&inner.common);
        let key = builder.constant_verifier_data(&inner.verifier_only);
        builder.verify_proof::<C>(&proof, &key, &inner.common);
        builder.register_public_inputs(&proof.public_inputs);
        Self { circuit: builder.build::<C>(), proof }
    }

    fn prove(&self, inner: &Proof) -> anyhow::Result<Proof> {
        let mut inputs = PartialWitness::new();
        inputs.set_proof_with_pis_target(&self.proof, inner)?;
        zk_alloc_plonky2::prove(&self.circuit, inputs)
    }
}

/// Checks the two public inputs. The proof shows that squaring the first gives the second; this function computes it
/// again.
fn check_square(public_inputs: &[F], squarings: usize) -> anyhow::Result<()> {
    let &[first, last] = public_inputs else {
        anyhow::bail!("a proof of squarings has two public inputs, and this one has {}", public_inputs.len());
    };
    let expected = first.exp_power_of_2(squarings);
    ensure!(last == expected, "{first} squared {squarings} times is {expected}, and the proof says {last}");
    Ok(())
}
