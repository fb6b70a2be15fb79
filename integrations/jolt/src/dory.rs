//! Wraps `dory-pcs`, Jolt's commitment scheme, in phases. Commitments and openings take over 90% of the time of a proof.
//!
//! Jolt calls Dory inside its prover, which [`wrap`](crate::wrap) runs in a phase. The functions here are for programs
//! that call Dory directly. Each has the name, the generic arguments and the errors of the function that it wraps.
//! [`commit`] takes the polynomial first, because it wraps a method.
//!
//! # The prepared cache
//!
//! `dory_pcs::backends::arkworks::init_cache` prepares the setup's points for pairings, and stores them in a static variable for the rest
//! of the process. **Call it before the first phase**, right after `setup`. Memory that is never freed gains nothing from the arena, and
//! keeps its slabs from being purged. Calling it inside a phase is also safe: later proofs still work.
//!
//! # Setups
//!
//! `dory_pcs::setup` reads and writes files in the user's home directory only if the feature `disk-persistence` of `dory-pcs` is on. The
//! feature `backends` of `dory-pcs` turns it on; the features that this crate needs, `arkworks` and `cache`, do not.
//!
//! ```
//! use dory_pcs::backends::arkworks::{ArkFr, ArkworksPolynomial, BN254, Blake2bTranscript, G1Routines, G2Routines};
//! use dory_pcs::backends::arkworks::init_cache;
//! use dory_pcs::primitives::arithmetic::Field;
//! use dory_pcs::{Polynomial, Transparent};
//! use zk_alloc_jolt::dory;
//!
//! zk_alloc_jolt::init();
//! let (prover_setup, verifier_setup) = dory_pcs::setup::<BN254>(8);
//! init_cache(&prover_setup.g1_vec, &prover_setup.g2_vec);
//!
//! let (nu, sigma) = (4, 4);
//! let polynomial = ArkworksPolynomial::new((0..256).map(ArkFr::from_u64).collect());
//! let point: Vec<_> = (2..10).map(ArkFr::from_u64).collect();
//!
//! let (commitment, rows, blind) =
//!     dory::commit::<BN254, Transparent, G1Routines>(&polynomial, nu, sigma, &prover_setup)?;
//!
//! let mut transcript = Blake2bTranscript::new(b"example");
//! let (proof, _) = dory::prove::<_, BN254, G1Routines, G2Routines, _, _, Transparent>(
//!     &polynomial, &point, rows, blind, nu, sigma, &prover_setup, &mut transcript,
//! )?;
//!
//! let mut transcript = Blake2bTranscript::new(b"example");
//! dory::verify::<_, BN254, G1Routines, G2Routines, _>(
//!     commitment, polynomial.evaluate(&point), &point, &proof, verifier_setup, &mut transcript,
//! )?;
//! # Ok::<(), dory_pcs::DoryError>(())
//! ```

use dory_pcs::primitives::arithmetic::{DoryRoutines, Field, Group, PairingCurve};
use dory_pcs::primitives::transcript::Transcript;
use dory_pcs::{DoryError, DoryProof, Mode, MultilinearLagrange, Polynomial, ProverSetup, VerifierSetup};

/// The scalar type of a curve's groups.
type Scalar<E> = <<E as PairingCurve>::G1 as Group>::Scalar;

/// Calls [`Polynomial::commit`] in a phase. Returns the commitment, the commitments of the rows, and the blind.
///
/// The polynomial was allocated before the call, so it isn't in the arena. To place it in the arena, create it in a
/// [`prove`](crate::prove) closure that also makes this call; phases nest.
///
/// # Errors
///
/// The errors of `polynomial.commit`, unchanged: the polynomial doesn't have 2^(`nu` + `sigma`) coefficients.
///
/// # Panics
///
/// If `polynomial.commit` panics: `setup` has too few generators for the polynomial's rows or columns.
#[allow(clippy::type_complexity)] // The framework's own type.
pub fn commit<E, Mo, M1>(
    polynomial: &impl Polynomial<Scalar<E>>,
    nu: usize,
    sigma: usize,
    setup: &ProverSetup<E>,
) -> Result<(E::GT, Vec<E::G1>, Scalar<E>), DoryError>
where
    E: PairingCurve,
    E::GT: Group<Scalar = Scalar<E>>,
    Mo: Mode,
    M1: DoryRoutines<E::G1>,
{
    zk_alloc::phase(|| polynomial.commit::<E, Mo, M1>(nu, sigma, setup))
}

/// Opens a committed polynomial at `point`: calls [`dory_pcs::prove`] in a phase.
///
/// # Errors
///
/// The framework's errors, unchanged: `point` or `row_commitments` don't fit 2^`nu` rows and 2^`sigma` columns.
///
/// # Panics
///
/// If the framework panics. The phase ends as the panic unwinds, and the next proof is not affected.
#[allow(clippy::too_many_arguments, clippy::type_complexity)] // The framework's own signature.
pub fn prove<F, E, M1, M2, P, T, Mo>(
    polynomial: &P,
    point: &[F],
    row_commitments: Vec<E::G1>,
    commit_blind: F,
    nu: usize,
    sigma: usize,
    setup: &ProverSetup<E>,
    transcript: &mut T,
) -> Result<(DoryProof<E::G1, E::G2, E::GT>, Option<F>), DoryError>
where
    F: Field,
    E: PairingCurve<G1: Group<Scalar = F>, G2: Group<Scalar = F>, GT: Group<Scalar = F>>,
    M1: DoryRoutines<E::G1>,
    M2: DoryRoutines<E::G2>,
    P: MultilinearLagrange<F>,
    T: Transcript<Curve = E>,
    Mo: Mode,
{
    let prove = dory_pcs::prove::<F, E, M1, M2, P, T, Mo>;
    zk_alloc::phase(|| prove(polynomial, point, row_commitments, commit_blind, nu, sigma, setup, transcript))
}

/// Calls [`dory_pcs::verify`] in a phase.
///
/// # Errors
///
/// The framework's errors, unchanged: the proof does not show `evaluation` at `point`, or the dimensions don't fit.
pub fn verify<F, E, M1, M2, T>(
    commitment: E::GT,
    evaluation: F,
    point: &[F],
    proof: &DoryProof<E::G1, E::G2, E::GT>,
    setup: VerifierSetup<E>,
    transcript: &mut T,
) -> Result<(), DoryError>
where
    F: Field,
    E: PairingCurve<G1: Group<Scalar = F>, G2: Group<Scalar = F>, GT: Group<Scalar = F>> + Clone,
    M1: DoryRoutines<E::G1>,
    M2: DoryRoutines<E::G2>,
    T: Transcript<Curve = E>,
{
    zk_alloc::phase(|| dory_pcs::verify::<F, E, M1, M2, T>(commitment, evaluation, point, proof, setup, transcript))
}
