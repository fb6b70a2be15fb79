// Overrides the README's own definition of this link: if a link is defined twice, rustdoc uses the first definition.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

#[cfg(feature = "dory")]
pub mod dory;

// Does not compile against the crate `zk-alloc` on crates.io, which belongs to another project. That crate's arena
// overwrites live memory.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;

/// Builds rayon's global thread pool, on which Jolt and Dory prove, outside any phase: see [`zk_alloc::pool::build_global`]. Call it at the
/// start of `main`. Returns `false` if the pool already existed or if the feature `parallel` is off.
///
/// ```
/// zk_alloc_jolt::init();
/// assert!(!zk_alloc_jolt::init(), "the pool is built once");
/// ```
pub fn init() -> bool {
    cfg!(feature = "parallel") && zk_alloc::pool::build_global()
}

/// Calls `f` in a phase and returns its result, such as a proof, a trace or the preprocessing.
///
/// `f` is called once, on the calling thread. Its result may outlive the phase. If you call a prover repeatedly, wrap
/// it once with [`wrap`] instead.
///
/// # Panics
///
/// If `f` panics. The phase ends as the panic unwinds, and the next proof is not affected.
///
/// ```
/// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
/// # use common::{build_prover_fib, build_verifier_fib, preprocess};
/// // The preprocessing serves many proofs. It may be made in a phase of its own.
/// let (prover_setup, verifier_setup) = zk_alloc_jolt::prove(|| preprocess(8));
/// let (prove_fib, verify_fib) = (build_prover_fib(prover_setup), build_verifier_fib(verifier_setup));
///
/// let (output, proof, device) = zk_alloc_jolt::prove(|| prove_fib(50, 8));
///
/// assert!(verify_fib(50, output, device.panic, &proof));
/// # // This program has another global allocator, so the adapter only calls the framework.
/// # assert_eq!(zk_alloc::stats().arena_bytes, 0);
/// ```
pub fn prove<R>(f: impl FnOnce() -> R) -> R {
    zk_alloc::phase(f)
}

/// Like [`prove`], for closures that can fail. For example, Jolt's modular prover `jolt_prover::dory::prove` returns a `Result`.
///
/// The closure may use `?` with any error type.
///
/// # Errors
///
/// The errors of `f`, unchanged. The phase ends before they are returned.
///
/// # Panics
///
/// Same as for [`prove`].
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

/// Wraps a prover so that each call runs in its own phase. Intended for the provers that `#[jolt::provable]` generates.
///
/// For example, `guest::build_prover_fib(program, preprocessing)` returns an `impl Fn(u32) -> (Output, Proof, JoltDevice) + Send + Sync`.
/// The wrapped prover takes the same arguments, and threads can share it like the original. You can wrap any function or closure of up to
/// eight arguments that is `Send + Sync`. The result is a `Box`, so its type can be named, for example as the type of a field.
///
/// Arguments may be references, but their values must outlive the wrapped prover, so declare the values first. If you can't, leave the
/// prover unwrapped, and put the call in [`prove`]: `prove(|| prove_sha2(&input))`.
///
/// # Panics
///
/// `wrap` itself never panics. The wrapped prover panics if the prover does. The phase ends as the panic unwinds, and
/// the next call is not affected.
///
/// ```
/// # mod common { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/mod.rs")); }
/// # use common::{build_prover_fib, build_verifier_fib, preprocess};
/// use zk_alloc_jolt::wrap;
///
/// let (prover_setup, verifier_setup) = preprocess(8);
/// let prove_fib = wrap(build_prover_fib(prover_setup));
/// let verify_fib = build_verifier_fib(verifier_setup);
///
/// for n in [50, 60] {
///     let (output, proof, device) = prove_fib(n, 8);
///     assert!(verify_fib(n, output, device.panic, &proof));
/// }
/// ```
pub fn wrap<F: ProverFn<Args>, Args>(prover: F) -> F::Wrapped {
    prover.in_phases()
}

/// The argument of [`wrap`]: an `Fn` of up to eight arguments that is `Send` and `Sync`. Nothing else implements this
/// trait.
///
/// `Args` is inferred: a marker for the lifetime of the closure's captures, followed by the argument types.
pub trait ProverFn<Args>: sealed::Sealed<Args> {
    /// `Box<dyn Fn(..) -> R + Send + Sync>`, with the prover's arguments and result type.
    type Wrapped;

    #[doc(hidden)]
    fn in_phases(self) -> Self::Wrapped;
}

mod sealed {
    pub trait Sealed<Args> {}
}

/// Implements the trait for functions with these arguments, then repeatedly with the first argument removed, until none is left.
macro_rules! provers_of {
    ($($first:ident $($rest:ident)*)?) => {
        impl<'f, F, R, $($first $(, $rest)*)?> sealed::Sealed<(&'f (), $($first, $($rest,)*)?)> for F
        where
            F: Fn($($first $(, $rest)*)?) -> R + Send + Sync + 'f,
        {
        }

        impl<'f, F, R, $($first $(, $rest)*)?> ProverFn<(&'f (), $($first, $($rest,)*)?)> for F
        where
            F: Fn($($first $(, $rest)*)?) -> R + Send + Sync + 'f,
        {
            type Wrapped = Box<dyn Fn($($first $(, $rest)*)?) -> R + Send + Sync + 'f>;

            #[allow(non_snake_case)] // An argument has the name of its type.
            fn in_phases(self) -> Self::Wrapped {
                Box::new(move |$($first $(, $rest)*)?| zk_alloc::phase(|| self($($first $(, $rest)*)?)))
            }
        }

        $(provers_of!($($rest)*);)?
    };
}

provers_of!(A B C D G H I J);
