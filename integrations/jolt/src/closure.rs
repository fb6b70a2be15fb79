//! Calls any part of Jolt's pipeline once, in a phase.

/// Calls `f` in a phase and returns its result: a proof, a trace, preprocessing.
///
/// `f` is called once, on the calling thread. Its result may outlive the phase. If you call a prover more than once,
/// wrap it once instead: see [`wrap`](crate::wrap).
///
/// # Panics
///
/// If `f` panics. The phase ends as the panic unwinds, and the next proof is not affected.
///
/// ```
/// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
/// # use common::{build_prover_fib, build_verifier_fib, preprocess};
/// // Preprocessing lives across proofs. It may be made in a phase of its own.
/// let (prover_setup, verifier_setup) = zk_alloc_jolt::prove(|| preprocess(8));
/// let (prove_fib, verify_fib) = (build_prover_fib(prover_setup), build_verifier_fib(verifier_setup));
///
/// let (output, proof, device) = zk_alloc_jolt::prove(|| prove_fib(50, 8));
///
/// assert!(verify_fib(50, output, device.panic, &proof));
/// ```
pub fn prove<R>(f: impl FnOnce() -> R) -> R {
    zk_alloc::phase(f)
}

/// [`prove`] for closures that can fail: Jolt's modular prover, `jolt_prover::dory::prove`, returns a `Result`.
///
/// The closure may use `?`, with any one type of error.
///
/// # Errors
///
/// Errors of `f`, unchanged. The phase has already ended.
///
/// # Panics
///
/// As [`prove`].
///
/// ```
/// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
/// # use common::{preprocess, prove_fib, trace_fib, verify_fib};
/// let (prover_setup, verifier_setup) = preprocess(8);
///
/// let (output, proof) = zk_alloc_jolt::try_prove(|| {
///     let trace = trace_fib(50, 8); // the witness too, in the same phase
///     prove_fib(&prover_setup, &trace)
/// })?;
///
/// verify_fib(verifier_setup, 50, output, &proof)?;
/// # Ok::<(), dory_pcs::DoryError>(())
/// ```
pub fn try_prove<T, E>(f: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    zk_alloc::phase(f)
}
