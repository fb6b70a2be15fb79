//! Proofs of the same shape as Jolt's, over the real Dory, through the adapter and across phases, with zk-alloc
//! installed. Also tests the functions of `dory-pcs` through the adapter, with its process-wide cache.

#[allow(dead_code)]
mod common;
#[path = "../../test_support.rs"]
mod support;

use std::sync::MutexGuard;

use common::{Proof, build_prover_fib, build_verifier_fib, preprocess, prove_fib, trace_fib, verify_fib};
use dory_pcs::DoryError;
use dory_pcs::backends::arkworks::{ArkFr, invalidate_cache};
use support::arena_bytes_of;
use zk_alloc_jolt::{prove, try_prove, wrap};

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

/// The phase, the statistics and Dory's cache belong to the process, so tests that use any of them take turns. The cache begins empty.
fn alone() -> MutexGuard<'static, ()> {
    let turn = support::alone();
    invalidate_cache();
    turn
}

fn phases() -> u64 {
    zk_alloc::stats().phases
}

/// Every proof reads the prover's setup, and holds vectors that its phase allocated. Later phases request the same sizes. An arena that
/// resets, or hands out memory that is in use, breaks one of these proofs. To show that, the sizes have to repeat.
#[test]
fn five_proofs_of_one_wrapped_prover_verify_at_the_end() {
    let _turn = alone();
    let (prover_setup, verifier_setup) = preprocess(14);
    let (prove_fib, verify_fib) = (wrap(build_prover_fib(prover_setup)), build_verifier_fib(verifier_setup));
    let proofs = [(50, 12), (51, 14), (52, 12), (53, 11), (54, 14)].map(|(n, log_rows)| {
        let (bytes, proved) = arena_bytes_of(|| prove_fib(n, log_rows));
        // A proof allocates and frees the coefficients.
        let coefficient_bytes = (size_of::<ArkFr>() << log_rows) as u64;
        assert!(bytes >= coefficient_bytes, "the arena served {bytes} bytes of a proof of 2^{log_rows} rows");
        (n, proved)
    });
    for (n, (output, proof, device)) in &proofs {
        assert!(verify_fib(*n, *output, device.panic, proof), "proof of {n}");
    }
}

/// If a phase changed the prover's computation, the result might still be *a* proof. It must be the proof of the
/// unwrapped prover.
#[test]
fn a_proof_in_a_phase_equals_the_one_outside() {
    let _turn = alone();
    let (setup, _) = preprocess(12);
    let unwrapped = build_prover_fib(setup.clone());
    let (theirs, outside) = (unwrapped(7, 12), phases());
    let ours = wrap(build_prover_fib(setup))(7, 12);
    assert_eq!(phases(), outside + 1, "one phase a call");
    assert_eq!((ours.0, &ours.1), (theirs.0, &theirs.1));
    assert_eq!((ours.2.inputs, ours.2.outputs), (theirs.2.inputs, theirs.2.outputs));
}

/// A verifier that accepts anything would pass every other test here.
#[test]
fn a_tampered_claim_or_proof_is_rejected() {
    let _turn = alone();
    let (prover_setup, verifier_setup) = preprocess(12);
    let verify = |n, output, proof: &Proof| verify_fib(verifier_setup.clone(), n, output, proof);
    let (output, mut proof, _) = wrap(build_prover_fib(prover_setup))(50, 12);
    assert_eq!(verify(50, output, &proof), Ok(()));

    assert_eq!(verify(50, output ^ 1, &proof), Err(DoryError::InvalidProof), "another output");
    assert_eq!(verify(51, output, &proof), Err(DoryError::InvalidProof), "another input");
    let commitment = proof.commitment;
    proof.commitment = proof.opening.vmv_message.c;
    assert_eq!(verify(50, output, &proof), Err(DoryError::InvalidProof), "another commitment");
    proof.commitment = commitment;
    proof.opening.first_messages.swap(0, 1);
    assert_eq!(verify(50, output, &proof), Err(DoryError::InvalidProof), "another opening");
}

/// Preprocessing, tracing and proving may each have a phase. Each reads data of the previous one.
#[test]
fn each_stage_of_the_pipeline_can_have_its_own_phase() {
    let _turn = alone();
    let before = phases();
    let (prover_setup, verifier_setup) = prove(|| preprocess(14));
    for n in [3, 4] {
        let (bytes, trace) = arena_bytes_of(|| prove(|| trace_fib(n, 14)));
        assert!(bytes >= (size_of::<u64>() << 14) as u64, "the arena served {bytes} bytes of the trace");
        let (output, proof) = try_prove(|| prove_fib(&prover_setup, &trace)).expect("the setup is large enough");
        verify_fib(verifier_setup.clone(), n, output, &proof).expect("it verifies");
    }
    assert_eq!(phases(), before + 5);
}

/// Threads of a service share one prover, so their phases overlap. Memory that a thread frees in its phase must not be
/// in use by another.
#[test]
fn threads_that_share_a_wrapped_prover_get_their_own_proofs() {
    let _turn = alone();
    let (prover_setup, verifier_setup) = preprocess(12);
    let (prove_fib, verify_fib) = (wrap(build_prover_fib(prover_setup)), build_verifier_fib(verifier_setup));
    let prove_and_verify = &|n| {
        let (output, proof, device) = prove_fib(n, 12);
        assert!(verify_fib(n, output, device.panic, &proof));
    };
    std::thread::scope(|scope| {
        for n in 0..3 {
            scope.spawn(move || [n, n + 100].into_iter().for_each(prove_and_verify));
        }
    });
}

/// A guest takes any number of inputs. `wrap` must infer each arity from the closure alone, keep the types and the
/// order of the arguments, and run the closure in a phase. Its result must be `Send + Sync`, so that it can be a field
/// of a service.
#[test]
fn wrap_keeps_every_arity_up_to_eight() {
    struct Service<'f> {
        prove: Box<dyn Fn(u8, u16) -> String + Send + Sync + 'f>,
    }
    fn shared<F: Send + Sync>(f: F) -> F {
        f
    }
    fn free(a: u8, b: u16) -> String {
        format!("{a} {b}")
    }
    let _turn = alone();
    let before = phases();
    let captured = String::from("0");

    assert_eq!(shared(wrap(|| captured.as_str()))(), "0");
    assert_eq!(shared(wrap(|a: &[u8]| a.len()))(b"ab"), 2);
    assert_eq!(shared(Service { prove: wrap(free) }).prove.as_ref()(1, 2), "1 2");
    assert_eq!(shared(wrap(|a: u8, b: u16, c: &str| format!("{a}{b}{c}")))(1, 2, "3"), "123");
    let eight = |a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: String| ([a, b, c, d, e, f, g], h);
    assert_eq!(shared(wrap(eight))(1, 2, 3, 4, 5, 6, 7, "8".into()), ([1, 2, 3, 4, 5, 6, 7], "8".into()));

    assert_eq!(phases(), before + 5);
}

/// The functions of `dory-pcs`.
#[cfg(feature = "dory")]
mod openings {
    use std::hint::black_box;

    use dory_pcs::backends::arkworks::{
        ArkDoryProof, ArkFr, ArkGT, ArkworksPolynomial, BN254, Blake2bTranscript, G1Routines, G2Routines,
        get_prepared_cache, init_cache,
    };
    use dory_pcs::primitives::arithmetic::Field;
    use dory_pcs::{DoryError, Polynomial, ProverSetup, Transparent, VerifierSetup};
    use zk_alloc_jolt::dory;

    use crate::{alone, arena_bytes_of};

    /// A polynomial of 2^(nu + sigma) coefficients that differ from proof to proof, and the point of its opening.
    fn statement(seed: u64, nu: usize, sigma: usize) -> (ArkworksPolynomial, Vec<ArkFr>) {
        let coefficients = (0..1u64 << (nu + sigma)).map(|i| ArkFr::from_u64(seed.wrapping_mul(i * i + 3)));
        let point = (0..(nu + sigma) as u64).map(|i| ArkFr::from_u64(seed + 7 * i + 2));
        (ArkworksPolynomial::new(coefficients.collect()), point.collect())
    }

    fn transcript() -> Blake2bTranscript<BN254> {
        Blake2bTranscript::new(b"adapter")
    }

    type Opened = (ArkGT, ArkDoryProof);
    type Setup = ProverSetup<BN254>;

    /// Commits and opens, through the adapter or without it.
    fn open(is_adapter: bool, seed: u64, nu: usize, sigma: usize, setup: &Setup) -> Result<Opened, DoryError> {
        let (polynomial, point) = statement(seed, nu, sigma);
        let (commitment, rows, blind) = if is_adapter {
            dory::commit::<BN254, Transparent, G1Routines>(&polynomial, nu, sigma, setup)?
        } else {
            polynomial.commit::<BN254, Transparent, G1Routines>(nu, sigma, setup)?
        };
        let prove = if is_adapter {
            dory::prove::<_, BN254, G1Routines, G2Routines, _, _, Transparent>
        } else {
            dory_pcs::prove::<_, BN254, G1Routines, G2Routines, _, _, Transparent>
        };
        let (proof, _) = prove(&polynomial, &point, rows, blind, nu, sigma, setup, &mut transcript())?;
        Ok((commitment, proof))
    }

    /// Verifies, through the adapter, a claim that is `offset` too large.
    fn verify(
        seed: u64,
        offset: u64,
        (commitment, proof): &Opened,
        setup: &VerifierSetup<BN254>,
    ) -> Result<(), DoryError> {
        let (polynomial, point) = statement(seed, proof.nu, proof.sigma);
        let evaluation = polynomial.evaluate(&point) + ArkFr::from_u64(offset);
        let verify = dory::verify::<_, BN254, G1Routines, G2Routines, _>;
        verify(*commitment, evaluation, &point, proof, setup.clone(), &mut transcript())
    }

    /// Every proof reads the setup. Matrices of other shapes come and go between proofs of the same shape.
    #[test]
    fn five_openings_verify_equal_the_framework_s_and_reject_another_claim() {
        let _turn = alone();
        let (prover_setup, verifier_setup) = dory_pcs::setup(12);
        for (seed, nu, sigma) in [(1, 6, 6), (2, 5, 6), (3, 6, 6), (4, 3, 5), (5, 6, 6)] {
            let before = zk_alloc::stats();
            let ours = open(true, seed, nu, sigma, &prover_setup).expect("the dimensions fit");
            let after = zk_alloc::stats();
            assert_eq!(after.phases, before.phases + 2, "one to commit, one to prove");
            if (nu, sigma) == (6, 6) {
                assert!(after.arena_bytes > before.arena_bytes, "the arena serves the larger ones");
            }

            assert_eq!(ours, open(false, seed, nu, sigma, &prover_setup).expect("the dimensions fit"));
            assert_eq!(verify(seed, 0, &ours, &verifier_setup), Ok(()));
            assert_eq!(zk_alloc::stats().phases, after.phases + 1, "one to verify");
            assert_eq!(verify(seed, 1, &ours, &verifier_setup), Err(DoryError::InvalidProof));
        }
    }

    /// The prepared points live in a static. If a program fills the cache inside a phase by mistake, it lies in the arena
    /// for the rest of the process. It must be intact after the proofs of later phases, which request the same sizes, and
    /// must serve those proofs.
    #[test]
    fn the_prepared_cache_survives_when_it_is_filled_inside_a_phase() {
        fn all_prepared<P: PartialEq + From<G>, G>(prepared: &[P], points: impl ExactSizeIterator<Item = G>) -> bool {
            prepared.len() == points.len() && prepared.iter().zip(points).all(|(p, g)| *p == P::from(g))
        }
        let _turn = alone();
        let (prover_setup, verifier_setup) = dory_pcs::setup(14);
        let theirs = open(false, 1, 7, 7, &prover_setup).expect("the dimensions fit");

        let fill = || init_cache(&prover_setup.g1_vec, &prover_setup.g2_vec);
        let (served, ()) = arena_bytes_of(|| zk_alloc::phase(fill));
        assert!(served > 0, "the cache is not in the arena, so the test shows nothing");

        for seed in [2, 3, 1] {
            // Requests memory of the cache's sizes and writes to it. If the arena hands out memory twice, this overwrites the cache.
            zk_alloc::phase(|| {
                fill();
                let cache = get_prepared_cache().expect("it was filled");
                drop((0..8).map(|_| (*cache).clone()).collect::<Vec<_>>());
                drop(black_box((10..22).map(|log| vec![0xa5u8; 1 << log]).collect::<Vec<_>>()));
            });
            let ours = open(true, seed, 7, 7, &prover_setup).expect("the dimensions fit");
            assert_eq!(verify(seed, 0, &ours, &verifier_setup), Ok(()));
            if seed == 1 {
                assert_eq!(ours, theirs, "with the cache and without");
            }
        }

        let cache = get_prepared_cache().expect("it was filled");
        let g1 = cache.g1_prepared_for(&prover_setup.g1_vec).expect("its points are the setup's");
        let g2 = cache.g2_prepared_for(&prover_setup.g2_vec).expect("its points are the setup's");
        assert!(all_prepared(g1, prover_setup.g1_vec.iter().map(|g| g.0)), "the points of G1");
        assert!(all_prepared(g2, prover_setup.g2_vec.iter().map(|g| g.0)), "the points of G2");
    }

    /// If the cache is filled before the first phase, as documented, it takes nothing from the arena.
    #[test]
    fn the_prepared_cache_filled_outside_phases_is_not_in_the_arena() {
        let _turn = alone();
        let (prover_setup, verifier_setup) = dory_pcs::setup(12);
        let (served, ()) = arena_bytes_of(|| init_cache(&prover_setup.g1_vec, &prover_setup.g2_vec));
        assert_eq!(served, 0);

        let ours = open(true, 1, 6, 6, &prover_setup).expect("the dimensions fit");
        assert_eq!(verify(1, 0, &ours, &verifier_setup), Ok(()));
    }
}
