// Overrides the README's own definition of this link: if a link is defined twice, rustdoc uses the first definition.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

pub mod prover;
#[cfg(feature = "starky")]
pub mod starky;

use anyhow::Result;
use plonky2::field::extension::Extendable;
use plonky2::hash::hash_types::RichField;
use plonky2::iop::witness::PartialWitness;
use plonky2::plonk::circuit_data::{CircuitData, CommonCircuitData, ProverCircuitData, ProverOnlyCircuitData};
use plonky2::plonk::config::GenericConfig;
use plonky2::plonk::proof::ProofWithPublicInputs;
use plonky2::util::timing::TimingTree;

// Does not compile against the crate `zk-alloc` on crates.io, which belongs to another project. That crate's arena
// overwrites live memory.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;

/// Builds rayon's global thread pool, on which plonky2 proves, outside any phase: see [`zk_alloc::pool::build_global`].
/// Call it at the start of `main`. Returns `false` if the pool already existed or if the feature `parallel` is off.
///
/// ```
/// zk_alloc_plonky2::init();
/// assert!(!zk_alloc_plonky2::init(), "the pool is built once");
/// ```
pub fn init() -> bool {
    cfg!(feature = "parallel") && zk_alloc::pool::build_global()
}

/// A circuit that can be proved: [`CircuitData`], [`ProverCircuitData`], or a type of the caller's with the same two
/// parts.
pub trait Circuit<F: RichField + Extendable<D>, C: GenericConfig<D, F = F>, const D: usize> {
    /// Returns the part that only the prover needs.
    fn prover_only(&self) -> &ProverOnlyCircuitData<F, C, D>;
    /// Returns the part that the prover and the verifier share.
    fn common(&self) -> &CommonCircuitData<F, D>;
}

macro_rules! circuits {
    ($($data:ident)*) => {$(
        impl<F: RichField + Extendable<D>, C: GenericConfig<D, F = F>, const D: usize> Circuit<F, C, D>
            for $data<F, C, D>
        {
            fn prover_only(&self) -> &ProverOnlyCircuitData<F, C, D> {
                &self.prover_only
            }

            fn common(&self) -> &CommonCircuitData<F, D> {
                &self.common
            }
        }
    )*};
}

circuits!(CircuitData ProverCircuitData);

/// Calls [`CircuitData::prove`] or [`ProverCircuitData::prove`] in a phase that includes witness generation.
///
/// This function also proves circuits that verify another circuit's proof.
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
/// # assert_eq!(zk_alloc_plonky2::init(), cfg!(feature = "parallel"));
/// let circuit = Squarings::build(100);
///
/// let proof = zk_alloc_plonky2::prove(&circuit.data, circuit.inputs(3))?;
///
/// circuit.data.verify(proof)?;
/// # // This program has another global allocator, so the adapter only calls the framework.
/// # assert_eq!(zk_alloc::stats().arena_bytes, 0);
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn prove<F: RichField + Extendable<D>, C: GenericConfig<D, F = F>, const D: usize>(
    circuit: &impl Circuit<F, C, D>,
    inputs: PartialWitness<F>,
) -> Result<ProofWithPublicInputs<F, C, D>> {
    // The framework's two `prove` methods also pass an empty `TimingTree`.
    prove_with_timing(circuit, inputs, &mut TimingTree::default())
}

/// Like [`prove`], but records the times of its steps in `timing`.
///
/// plonky2 records times only if its feature `timing` is on; without it, a `TimingTree` stays empty.
///
/// # Errors
///
/// Same as for [`prove`].
///
/// # Panics
///
/// Same as for [`prove`].
///
/// ```
/// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
/// # use common::Squarings;
/// use plonky2::util::timing::TimingTree;
///
/// let circuit = Squarings::build(100);
/// let mut timing = TimingTree::default();
///
/// let proof = zk_alloc_plonky2::prove_with_timing(&circuit.data, circuit.inputs(3), &mut timing)?;
/// timing.print();
///
/// circuit.data.verify(proof)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn prove_with_timing<F: RichField + Extendable<D>, C: GenericConfig<D, F = F>, const D: usize>(
    circuit: &impl Circuit<F, C, D>,
    inputs: PartialWitness<F>,
    timing: &mut TimingTree,
) -> Result<ProofWithPublicInputs<F, C, D>> {
    crate::prover::prove(circuit.prover_only(), circuit.common(), inputs, timing)
}
