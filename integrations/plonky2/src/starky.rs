//! Wraps the prover of the crate `starky` in a phase.

use ::starky::config::StarkConfig;
use ::starky::proof::StarkProofWithPublicInputs;
use ::starky::stark::Stark;
use anyhow::Result;
use plonky2::field::extension::Extendable;
use plonky2::field::polynomial::PolynomialValues;
use plonky2::fri::FriParams;
use plonky2::hash::hash_types::RichField;
use plonky2::plonk::config::GenericConfig;
use plonky2::util::timing::TimingTree;

/// Defines functions that call [`starky::prover::prove`] in a phase, with a finished trace or with a closure that builds the trace in the
/// phase.
macro_rules! in_phase {
    ($($(#[$doc:meta])* fn $name:ident($trace:ident: $kind:ty) = $made:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name<F: RichField + Extendable<D>, C: GenericConfig<D, F = F>, S: Stark<F, D>, const D: usize>(
            stark: S,
            config: &StarkConfig,
            $trace: $kind,
            public_inputs: &[F],
            verifier_circuit_fri_params: Option<FriParams>,
            timing: &mut TimingTree,
        ) -> Result<StarkProofWithPublicInputs<F, C, D>> {
            zk_alloc::phase(|| {
                ::starky::prover::prove(stark, config, $made, public_inputs, verifier_circuit_fri_params, timing)
            })
        }
    )*};
}

in_phase! {
    /// Calls [`starky::prover::prove`] in a phase.
    ///
    /// The trace was allocated before the call, so it isn't in the arena, but the copies that the framework extends and commits to are. To
    /// place both in the arena, use [`prove_with_trace`].
    ///
    /// # Errors
    ///
    /// The framework's errors, unchanged: with negligible probability, the opening point is in the subgroup.
    ///
    /// # Panics
    ///
    /// If the framework panics: the trace is empty, its height is not a power of two, or it doesn't suit the FRI parameters. It may also
    /// panic if the trace violates the constraints, because the quotient polynomial then need not exist.
    fn prove(trace_poly_values: Vec<PolynomialValues<F>>) = trace_poly_values;

    /// Calls `trace` and [`starky::prover::prove`] in one phase.
    ///
    /// `trace` is called once, on the calling thread.
    ///
    /// # Errors
    ///
    /// Same as for [`prove`]. If your trace generator can fail, open a [`zk_alloc::phase`] around it and [`prove`].
    ///
    /// # Panics
    ///
    /// Same as for [`prove`], and if `trace` panics. The phase ends as the panic unwinds, and the next proof is not affected.
    fn prove_with_trace(trace: impl FnOnce() -> Vec<PolynomialValues<F>>) = trace();
}
