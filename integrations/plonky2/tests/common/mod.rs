// Small, complete uses of plonky2, which the tests, the bench's prover and the doc examples share. The doc examples use `include!`, which
// allows no inner attributes.

use plonky2::field::goldilocks_field::GoldilocksField;
use plonky2::field::types::Field;
use plonky2::iop::target::Target;
use plonky2::iop::witness::{PartialWitness, WitnessWrite};
use plonky2::plonk::circuit_builder::CircuitBuilder;
use plonky2::plonk::circuit_data::{CircuitConfig, CircuitData};
use plonky2::plonk::config::PoseidonGoldilocksConfig;
use plonky2::plonk::proof::{ProofWithPublicInputs, ProofWithPublicInputsTarget};

pub(crate) const D: usize = 2;
pub(crate) type F = GoldilocksField;
pub(crate) type C = PoseidonGoldilocksConfig;
pub(crate) type Proof = ProofWithPublicInputs<F, C, D>;

pub(crate) fn builder() -> CircuitBuilder<F, D> {
    CircuitBuilder::new(CircuitConfig::standard_recursion_config())
}

// A circuit that squares x repeatedly. The public values are x and the last square. A row has room for 20 squarings.
pub(crate) struct Squarings {
    pub(crate) data: CircuitData<F, C, D>,
    first: Target,
    squarings: usize,
}

impl Squarings {
    pub(crate) fn build(squarings: usize) -> Self {
        let mut builder = builder();
        let first = builder.add_virtual_public_input();
        let last = (0..squarings).fold(first, |x, _| builder.square(x));
        builder.register_public_input(last);
        Self { data: builder.build(), first, squarings }
    }

    pub(crate) fn inputs(&self, x: u64) -> PartialWitness<F> {
        let mut inputs = PartialWitness::new();
        inputs.set_target(self.first, F::from_canonical_u64(x)).expect("it is set once");
        inputs
    }

    pub(crate) fn public_inputs(&self, x: u64) -> Vec<F> {
        let x = F::from_canonical_u64(x);
        vec![x, x.exp_power_of_2(self.squarings)]
    }
}

// A circuit that verifies another circuit's proof. Both have the same public inputs.
pub(crate) struct Recursion {
    pub(crate) data: CircuitData<F, C, D>,
    proof: ProofWithPublicInputsTarget<D>,
}

impl Recursion {
    pub(crate) fn build(inner: &CircuitData<F, C, D>) -> Self {
        let mut builder = builder();
        let proof = builder.add_virtual_proof_with_pis(&inner.common);
        let key = builder.constant_verifier_data(&inner.verifier_only);
        builder.verify_proof::<C>(&proof, &key, &inner.common);
        builder.register_public_inputs(&proof.public_inputs);
        Self { data: builder.build(), proof }
    }

    pub(crate) fn inputs(&self, inner: &Proof) -> PartialWitness<F> {
        let mut inputs = PartialWitness::new();
        inputs.set_proof_with_pis_target(&self.proof, inner).expect("it is set once");
        inputs
    }
}
