// A stand-in for the code that `#[jolt::provable]` generates from a guest `fn fib(n: u64) -> u64`. It has the same
// structure, and uses the real Dory.
//
// The trace of a run is a polynomial of 2^log_rows coefficients. A proof consists of the polynomial's commitment and its opening at the
// point of the last row. There, the multilinear polynomial equals its last coefficient, which is the output.

use dory_pcs::backends::arkworks::{
    ArkDoryProof, ArkFr, ArkGT, ArkworksPolynomial, BN254, Blake2bTranscript, G1Routines, G2Routines,
};
use dory_pcs::primitives::arithmetic::Field;
use dory_pcs::primitives::transcript::Transcript;
use dory_pcs::{DoryError, Polynomial, ProverSetup, Transparent, VerifierSetup};

/// A proof. Like Jolt's, it does not contain the claimed output.
#[derive(Debug, PartialEq)]
pub(crate) struct Proof {
    pub(crate) commitment: ArkGT,
    pub(crate) opening: ArkDoryProof,
}

/// Records whether the guest panicked, like `JoltDevice`.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) panic: bool,
}

pub(crate) fn preprocess(max_log_rows: usize) -> (ProverSetup<BN254>, VerifierSetup<BN254>) {
    dory_pcs::setup(max_log_rows)
}

/// Returns a prover, like `guest::build_prover_fib`. A real guest has no argument `log_rows`: its run determines the
/// length of the trace.
pub(crate) fn build_prover_fib(setup: ProverSetup<BN254>) -> impl Fn(u64, usize) -> (u64, Proof, Device) + Send + Sync {
    move |n, log_rows| {
        let trace = trace_fib(n, log_rows);
        let (output, proof) = prove_fib(&setup, &trace).expect("the setup is large enough");
        (output, proof, Device { panic: false })
    }
}

/// Returns a verifier, like `guest::build_verifier_fib`, but takes the proof by reference.
pub(crate) fn build_verifier_fib(setup: VerifierSetup<BN254>) -> impl Fn(u64, u64, bool, &Proof) -> bool + Send + Sync {
    move |n, output, panic, proof| !panic && verify_fib(setup.clone(), n, output, proof).is_ok()
}

/// Returns Fibonacci numbers modulo 2^64, starting with `n` and 1.
pub(crate) fn trace_fib(n: u64, log_rows: usize) -> Vec<u64> {
    let pairs = std::iter::successors(Some((n, 1u64)), |&(first, second)| Some((second, first.wrapping_add(second))));
    let mut trace = Vec::with_capacity(1 << log_rows);
    trace.extend(pairs.map(|(first, _)| first).take(1 << log_rows));
    trace
}

/// Proves a trace. Like `jolt_prover::dory::prove`, it can fail.
pub(crate) fn prove_fib(setup: &ProverSetup<BN254>, trace: &[u64]) -> Result<(u64, Proof), DoryError> {
    let polynomial = ArkworksPolynomial::new(trace.iter().copied().map(ArkFr::from_u64).collect());
    let log_rows = polynomial.num_vars();
    let (nu, sigma) = (log_rows / 2, log_rows.div_ceil(2));
    let (commitment, rows, blind) = polynomial.commit::<BN254, Transparent, G1Routines>(nu, sigma, setup)?;
    let prove = dory_pcs::prove::<_, BN254, G1Routines, G2Routines, _, _, Transparent>;
    let (point, mut transcript) = (point(log_rows), transcript(trace[0]));
    let (opening, _) = prove(&polynomial, &point, rows, blind, nu, sigma, setup, &mut transcript)?;
    Ok((trace[trace.len() - 1], Proof { commitment, opening }))
}

pub(crate) fn verify_fib(setup: VerifierSetup<BN254>, n: u64, output: u64, proof: &Proof) -> Result<(), DoryError> {
    let point = point(proof.opening.nu + proof.opening.sigma);
    let verify = dory_pcs::verify::<_, BN254, G1Routines, G2Routines, _>;
    verify(proof.commitment, ArkFr::from_u64(output), &point, &proof.opening, setup, &mut transcript(n))
}

/// Returns the evaluation point that corresponds to a trace's last row.
pub(crate) fn point(log_rows: usize) -> Vec<ArkFr> {
    vec![ArkFr::one(); log_rows]
}

pub(crate) fn transcript(input: u64) -> Blake2bTranscript<BN254> {
    let mut transcript = Blake2bTranscript::new(b"fib");
    transcript.append_bytes(b"input", &input.to_le_bytes());
    transcript
}
