//! Wraps the functions of [`plonky2::plonk::prover`] in phases, for callers that store the parts of a circuit separately.

use anyhow::Result;
use plonky2::field::extension::Extendable;
use plonky2::hash::hash_types::RichField;
use plonky2::iop::witness::{PartialWitness, PartitionWitness};
use plonky2::plonk::circuit_data::{CommonCircuitData, ProverOnlyCircuitData};
use plonky2::plonk::config::GenericConfig;
use plonky2::plonk::proof::ProofWithPublicInputs;
use plonky2::util::timing::TimingTree;

/// Calls [`plonky2::plonk::prover::prove`] in a phase that includes witness generation.
///
/// # Errors
///
/// The framework's errors, unchanged: `inputs` contradicts the circuit or leaves some of its generators without their inputs, or (with
/// negligible probability) the opening point is in the subgroup.
///
/// # Panics
///
/// If the framework or a generator of the circuit panics. The phase ends as the panic unwinds, and the next proof is
/// not affected.
///
/// ```
/// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
/// # use common::Squarings;
/// use plonky2::util::timing::TimingTree;
///
/// let circuit = Squarings::build(100);
/// let (key, common) = (&circuit.data.prover_only, &circuit.data.common);
/// let mut timing = TimingTree::default();
///
/// let proof = zk_alloc_plonky2::prover::prove(key, common, circuit.inputs(3), &mut timing)?;
///
/// circuit.data.verify(proof)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn prove<F: RichField + Extendable<D>, C: GenericConfig<D, F = F>, const D: usize>(
    prover_data: &ProverOnlyCircuitData<F, C, D>,
    common_data: &CommonCircuitData<F, D>,
    inputs: PartialWitness<F>,
    timing: &mut TimingTree,
) -> Result<ProofWithPublicInputs<F, C, D>> {
    zk_alloc::phase(|| plonky2::plonk::prover::prove(prover_data, common_data, inputs, timing))
}

/// Calls [`plonky2::plonk::prover::prove_with_partition_witness`] in a phase.
///
/// The witness was generated before the call, so it isn't in the arena, but the columns that the framework derives from it are. To place
/// both in the arena, use [`prove`], or open a [`zk_alloc::phase`] around witness generation and this call.
///
/// # Errors
///
/// Same as for [`prove`], except for contradictory inputs, which witness generation has already reported.
///
/// # Panics
///
/// If the framework panics: it may do so if the witness violates the circuit's constraints, because the quotient polynomial then need not
/// exist.
///
/// ```
/// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
/// # use common::Squarings;
/// use plonky2::iop::generator::generate_partial_witness;
/// use plonky2::util::timing::TimingTree;
///
/// let circuit = Squarings::build(100);
/// let (key, common) = (&circuit.data.prover_only, &circuit.data.common);
/// let mut timing = TimingTree::default();
///
/// let witness = generate_partial_witness(circuit.inputs(3), key, common)?;
/// let proof = zk_alloc_plonky2::prover::prove_with_partition_witness(key, common, witness, &mut timing)?;
///
/// circuit.data.verify(proof)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn prove_with_partition_witness<F: RichField + Extendable<D>, C: GenericConfig<D, F = F>, const D: usize>(
    prover_data: &ProverOnlyCircuitData<F, C, D>,
    common_data: &CommonCircuitData<F, D>,
    partition_witness: PartitionWitness<'_, F>,
    timing: &mut TimingTree,
) -> Result<ProofWithPublicInputs<F, C, D>> {
    zk_alloc::phase(|| {
        plonky2::plonk::prover::prove_with_partition_witness(prover_data, common_data, partition_witness, timing)
    })
}
