//! `p3-batch-stark`: one proof of many AIRs.

#[cfg(debug_assertions)]
use p3_air::DebugConstraintBuilder;
use p3_air::{Air, symbolic::SymbolicExpressionExt};
use p3_batch_stark::config::PcsProverError;
use p3_batch_stark::folder::ProverConstraintFolderWithLookups;
use p3_batch_stark::{BatchProof, Domain, ProverData, ProvingError, StarkGenericConfig, StarkInstance, Val};
use p3_challenger::GrindingChallenger;
use p3_commit::Pcs;
use p3_field::{Algebra, PrimeField64};
use p3_lookup::InteractionSymbolicBuilder;

/// [`p3_batch_stark::prove_batch`] in a phase.
///
/// The traces were allocated before the call, and so aren't in the arena. The copies that the framework extends and
/// commits to are. To have both there, open a [`zk_alloc::phase`] around the making of the traces and this call.
///
/// Like the framework's, the bound on `A` depends on debug assertions. If they are on for `p3-batch-stark`, they must
/// be on for this crate.
///
/// # Errors
///
/// The framework's errors, unchanged: the commitment scheme refused the configuration, or its budget is spent.
///
/// # Panics
///
/// If the framework panics: a trace's height is not a power of two, or a lookup's multiplicities could wrap. With debug
/// assertions on, also if a trace doesn't satisfy its AIR.
///
/// ```
/// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
/// # use common::{Fibonacci, config};
/// use p3_batch_stark::{ProverData, StarkInstance, verify_batch};
///
/// let config = config();
/// let airs = [Fibonacci, Fibonacci];
/// let (short, long) = (Fibonacci::trace(6), Fibonacci::trace(8));
/// let traces = [&short, &long];
/// let public_values = [6, 8].map(Fibonacci::public_values);
/// let instances = StarkInstance::new_multiple(&airs, &traces, &public_values);
/// let prover_data = ProverData::from_instances(&config, &instances)?;
///
/// let proof = zk_alloc_plonky3::prove_batch(&config, &instances, &prover_data)?;
///
/// verify_batch(&config, &airs, &proof, &public_values, &prover_data.common)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[allow(clippy::multiple_bound_locations)] // `cfg` is not supported in where clauses.
pub fn prove_batch<
    SC,
    #[cfg(debug_assertions)] A: for<'a> Air<DebugConstraintBuilder<'a, Val<SC>, SC::Challenge>>
        + Air<InteractionSymbolicBuilder<Val<SC>, SC::Challenge>>
        + for<'a> Air<ProverConstraintFolderWithLookups<'a, SC>>
        + Clone,
    #[cfg(not(debug_assertions))] A: Air<InteractionSymbolicBuilder<Val<SC>, SC::Challenge>>
        + for<'a> Air<ProverConstraintFolderWithLookups<'a, SC>>
        + Clone,
>(
    config: &SC,
    instances: &[StarkInstance<'_, SC, A>],
    prover_data: &ProverData<SC>,
) -> Result<BatchProof<SC>, ProvingError<PcsProverError<SC>>>
where
    SC: StarkGenericConfig,
    Val<SC>: PrimeField64,
    SymbolicExpressionExt<Val<SC>, SC::Challenge>: Algebra<SC::Challenge>,
    Domain<SC>: Send + Sync,
    SC::Pcs: Sync,
    PcsProverError<SC>: Send,
    SC::Challenger: GrindingChallenger<Witness = Val<SC>>,
    <SC::Pcs as Pcs<SC::Challenge, SC::Challenger>>::ProverData: Sync,
    <SC::Pcs as Pcs<SC::Challenge, SC::Challenger>>::Commitment: Sync,
{
    zk_alloc::phase(|| p3_batch_stark::prove_batch(config, instances, prover_data))
}
