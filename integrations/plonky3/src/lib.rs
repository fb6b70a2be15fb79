// Overrides the README's own definition of this link: if a link is defined twice, rustdoc uses the first definition.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

#[cfg(debug_assertions)]
use p3_air::DebugConstraintBuilder;
use p3_air::{Air, symbolic::SymbolicExpressionExt};
use p3_batch_stark::folder::ProverConstraintFolderWithLookups;
use p3_batch_stark::{BatchProof, Domain, ProverData, StarkInstance};
use p3_challenger::GrindingChallenger;
use p3_commit::Pcs;
use p3_field::{Algebra, PrimeField64};
use p3_lookup::InteractionSymbolicBuilder;
use p3_matrix::dense::RowMajorMatrix;
use p3_uni_stark::{PcsProverError, PreprocessedProverData, Proof, ProvingError, QuotientAir, StarkGenericConfig, Val};

// Does not compile against the crate `zk-alloc` on crates.io, which belongs to another project. That crate's arena
// overwrites live memory.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;

/// Builds rayon's global thread pool, on which Plonky3 proves, outside any phase: see [`zk_alloc::pool::build_global`].
/// Call it at the start of `main`. Returns `false` if the pool already existed or if the feature `parallel` is off.
///
/// ```
/// zk_alloc_plonky3::init();
/// assert!(!zk_alloc_plonky3::init(), "the pool is built once");
/// ```
pub fn init() -> bool {
    cfg!(feature = "parallel") && zk_alloc::pool::build_global()
}

// With debug assertions on, the framework checks the trace against the AIR before it proves, which needs one more bound on `A`. The p3
// crates require the bound only if they are compiled with debug assertions, and so does this crate. So if debug assertions are on for
// `p3-uni-stark` and `p3-batch-stark`, they must be on for this crate. A profile sets debug assertions for all crates at once. A profile
// that overrides `debug-assertions` for the p3 crates alone must also name `zk-alloc-plonky3`, or this crate doesn't compile. (The reverse
// compiles, with an unused bound.)

/// Defines functions that run an expression, which calls the framework, in a phase. They have the framework's bounds.
macro_rules! in_phase {
    ($($(#[$doc:meta])* fn $name:ident($config:ident, $air:ident, $($argument:ident: $kind:ty),*) = $proof:expr;)*) => {$(
        $(#[$doc])*
        #[allow(clippy::multiple_bound_locations)] // `cfg` is not supported in where clauses.
        pub fn $name<
            SC,
            #[cfg(debug_assertions)] A: for<'a> Air<DebugConstraintBuilder<'a, Val<SC>>>,
            #[cfg(not(debug_assertions))] A,
        >(
            $config: &SC,
            $air: &A,
            $($argument: $kind),*
        ) -> Result<Proof<SC>, ProvingError<PcsProverError<SC>>>
        where
            SC: StarkGenericConfig,
            SC::Challenger: GrindingChallenger<Witness = Val<SC>>,
            A: QuotientAir<SC>,
        {
            zk_alloc::phase(|| $proof)
        }
    )*};
}

in_phase! {
    /// Calls [`p3_uni_stark::prove`] in a phase.
    ///
    /// The trace was allocated before the call, so it isn't in the arena. It is by far the largest buffer of a proof, so prefer
    /// [`prove_with_trace`].
    ///
    /// # Errors
    ///
    /// The framework's errors, unchanged: the commitment scheme refused the configuration, or the trace is too short for a
    /// hiding scheme.
    ///
    /// # Panics
    ///
    /// If the framework panics: the trace's height is not a power of two, or the AIR has preprocessed columns. With debug
    /// assertions on, also if the trace doesn't satisfy the AIR.
    ///
    /// ```
    /// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
    /// # use common::{Fibonacci, config};
    /// # assert_eq!(zk_alloc_plonky3::init(), cfg!(feature = "parallel"));
    /// let config = config();
    /// let (trace, public_values) = (Fibonacci::trace(8), Fibonacci::public_values(8));
    ///
    /// let proof = zk_alloc_plonky3::prove(&config, &Fibonacci, trace, &public_values)?;
    ///
    /// p3_uni_stark::verify(&config, &Fibonacci, &proof, &public_values)?;
    /// # // This program has another global allocator, so the adapter only calls the framework.
    /// # assert_eq!(zk_alloc::stats().arena_bytes, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn prove(config, air, trace: RowMajorMatrix<Val<SC>>, public_values: &[Val<SC>]) =
        p3_uni_stark::prove(config, air, trace, public_values);

    /// Calls `trace` and [`p3_uni_stark::prove`] in one phase.
    ///
    /// The trace is the largest buffer of a Plonky3 proof. It has capacity for its low-degree extension, which the prover computes in
    /// place. A trace that the closure builds reuses pages that the previous proof left resident. `trace` is called once, on the calling
    /// thread.
    ///
    /// # Errors
    ///
    /// Same as for [`prove`]. If your trace generator can fail, open a [`zk_alloc::phase`] around it and [`prove`].
    ///
    /// # Panics
    ///
    /// Same as for [`prove`], and if `trace` panics. The phase ends as the panic unwinds, and the next proof is not affected.
    ///
    /// ```
    /// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
    /// # use common::{Fibonacci, config};
    /// let config = config();
    /// let public_values = Fibonacci::public_values(8);
    ///
    /// let trace = || Fibonacci::trace(8);
    /// let proof = zk_alloc_plonky3::prove_with_trace(&config, &Fibonacci, trace, &public_values)?;
    ///
    /// p3_uni_stark::verify(&config, &Fibonacci, &proof, &public_values)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn prove_with_trace(config, air, trace: impl FnOnce() -> RowMajorMatrix<Val<SC>>, public_values: &[Val<SC>]) =
        p3_uni_stark::prove(config, air, trace(), public_values);

    /// Calls [`p3_uni_stark::prove_with_preprocessed`] in a phase.
    ///
    /// `preprocessed` comes from [`p3_uni_stark::setup_preprocessed`]. It outlives the proof, so create it outside any phase. As with
    /// [`prove`], the trace is in the arena only if the caller builds it inside a [`zk_alloc::phase`].
    ///
    /// # Errors
    ///
    /// Same as for [`prove`].
    ///
    /// # Panics
    ///
    /// Same as for [`prove`], but the AIR may have preprocessed columns. If it does, the framework also panics if `preprocessed` is `None`
    /// or differs in height from the trace.
    ///
    /// ```
    /// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
    /// # use common::{Squares, config};
    /// use p3_uni_stark::{setup_preprocessed, verify_with_preprocessed};
    /// use zk_alloc_plonky3::prove_with_preprocessed;
    ///
    /// let (config, air) = (config(), Squares { log_rows: 6 });
    /// let (prover_data, key) = setup_preprocessed(&config, &air, 6)?.expect("it has such columns");
    ///
    /// let proof = prove_with_preprocessed(&config, &air, air.trace(), &[], Some(&prover_data))?;
    ///
    /// verify_with_preprocessed(&config, &air, &proof, &[], Some(&key))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn prove_with_preprocessed(config, air, trace: RowMajorMatrix<Val<SC>>, public_values: &[Val<SC>], preprocessed: Option<&PreprocessedProverData<SC>>) =
        p3_uni_stark::prove_with_preprocessed(config, air, trace, public_values, preprocessed);
}

/// Calls [`p3_batch_stark::prove_batch`] in a phase.
///
/// The traces were allocated before the call, so they aren't in the arena, but the copies that the framework extends and commits to are. To
/// place both in the arena, open a [`zk_alloc::phase`] around this call and the code that builds the traces.
///
/// # Errors
///
/// The framework's errors, unchanged: the commitment scheme refused the configuration, or a trace is too short for a
/// hiding scheme.
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
    #[cfg(debug_assertions)] A: for<'a> Air<DebugConstraintBuilder<'a, Val<SC>, SC::Challenge>>,
    #[cfg(not(debug_assertions))] A,
>(
    config: &SC,
    instances: &[StarkInstance<'_, SC, A>],
    prover_data: &ProverData<SC>,
) -> Result<BatchProof<SC>, ProvingError<PcsProverError<SC>>>
where
    SC: StarkGenericConfig,
    A: Air<InteractionSymbolicBuilder<Val<SC>, SC::Challenge>>
        + for<'a> Air<ProverConstraintFolderWithLookups<'a, SC>>
        + Clone,
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
