//! Tests the adapter with zk-alloc installed: proofs with the structure of Jolt's, made with the real Dory, across
//! phases. Also tests the adapter's wrappers of `dory-pcs` with the process-wide cache.

#[allow(dead_code)]
mod common;
#[path = "../../test_support.rs"]
mod support;

use std::sync::MutexGuard;

use common::{build_prover_fib, build_verifier_fib, preprocess, prove_fib, trace_fib, verify_fib};
use dory_pcs::backends::arkworks::{ArkFr, invalidate_cache};
use support::arena_bytes_of;
use zk_alloc_jolt::{prove, try_prove, wrap};

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

/// Waits for this test's turn, and empties Dory's cache. Phases, statistics and the cache are process-wide, so tests that use any of them
/// take turns.
fn alone() -> MutexGuard<'static, ()> {
    let turn = support::alone();
    invalidate_cache();
    turn
}

fn phases() -> u64 {
    zk_alloc::stats().phases
}

/// Every proof reads the prover's setup, and owns vectors that were allocated in its phase. Later phases request the same sizes, so an
/// arena that resets, or that hands out live memory, would corrupt an earlier proof. Each proof must equal the unwrapped prover's.
#[test]
fn five_proofs_of_one_wrapped_prover_equal_the_unwrapped_one_s_and_verify_at_the_end() {
    let _turn = alone();
    let (prover_setup, verifier_setup) = preprocess(14);
    let unwrapped = build_prover_fib(prover_setup.clone());
    let (prove_fib, verify_fib) = (wrap(build_prover_fib(prover_setup)), build_verifier_fib(verifier_setup));
    let proofs = [(50, 12), (51, 14), (52, 12), (53, 11), (54, 14)].map(|(n, log_rows)| {
        let before = phases();
        let (bytes, (output, proof, device)) = arena_bytes_of(|| prove_fib(n, log_rows));
        assert_eq!(phases(), before + 1, "one phase a call");
        // Every proof allocates the polynomial's coefficients.
        let coefficient_bytes = (size_of::<ArkFr>() << log_rows) as u64;
        assert!(bytes >= coefficient_bytes, "the arena served {bytes} bytes of a proof of 2^{log_rows} rows");
        let theirs = unwrapped(n, log_rows);
        assert_eq!((output, &proof), (theirs.0, &theirs.1));
        (n, output, proof, device)
    });
    for (n, output, proof, device) in &proofs {
        assert!(verify_fib(*n, *output, device.panic, proof), "proof of {n}");
    }
}

/// Preprocessing, tracing and proving may each have a phase. Each stage reads data of the previous one.
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

/// The threads of a service share one prover, so their phases overlap. When one thread's phase ends, the arena must not reuse memory that
/// another thread still uses.
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
/// order of the arguments, and run the closure in a phase. Its result must be `Send + Sync`, so that a service can
/// store it in a field.
#[test]
fn wrap_keeps_every_arity_up_to_eight() {
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
    let field: Box<dyn Fn(u8, u16) -> String + Send + Sync> = wrap(free);
    assert_eq!(field(1, 2), "1 2");
    assert_eq!(shared(wrap(|a: u8, b: u16, c: &str| format!("{a}{b}{c}")))(1, 2, "3"), "123");
    let eight = |a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: String| ([a, b, c, d, e, f, g], h);
    assert_eq!(shared(wrap(eight))(1, 2, 3, 4, 5, 6, 7, "8".into()), ([1, 2, 3, 4, 5, 6, 7], "8".into()));

    assert_eq!(phases(), before + 5);
}

/// Tests the adapter's wrappers of `dory-pcs`.
#[cfg(feature = "dory")]
mod openings {
    use std::hint::black_box;

    use dory_pcs::backends::arkworks::{
        ArkFr, ArkworksPolynomial, BN254, G1Routines, G2Routines, get_prepared_cache, init_cache, invalidate_cache,
    };
    use dory_pcs::primitives::arithmetic::Field;
    use dory_pcs::{DoryError, Polynomial, ProverSetup, Transparent, VerifierSetup};
    use zk_alloc_jolt::dory;

    use crate::common::{Proof, point, transcript};
    use crate::{alone, arena_bytes_of, preprocess, prove_fib, trace_fib};

    /// Like [`prove_fib`], but calls the adapter's functions.
    fn open_fib(setup: &ProverSetup<BN254>, n: u64, log_rows: usize) -> Result<(u64, Proof), DoryError> {
        let trace = trace_fib(n, log_rows);
        let polynomial = ArkworksPolynomial::new(trace.iter().copied().map(ArkFr::from_u64).collect());
        let (nu, sigma) = (log_rows / 2, log_rows.div_ceil(2));
        let (commitment, rows, blind) = dory::commit::<BN254, Transparent, G1Routines>(&polynomial, nu, sigma, setup)?;
        let prove = dory::prove::<_, BN254, G1Routines, G2Routines, _, _, Transparent>;
        let (point, mut transcript) = (point(polynomial.num_vars()), transcript(n));
        let (opening, _) = prove(&polynomial, &point, rows, blind, nu, sigma, setup, &mut transcript)?;
        Ok((trace[trace.len() - 1], Proof { commitment, opening }))
    }

    /// Like [`verify_fib`](crate::verify_fib), but calls the adapter's function.
    fn verify(setup: &VerifierSetup<BN254>, n: u64, output: u64, proof: &Proof) -> Result<(), DoryError> {
        let (opening, output) = (&proof.opening, ArkFr::from_u64(output));
        let verify = dory::verify::<_, BN254, G1Routines, G2Routines, _>;
        let point = point(opening.nu + opening.sigma);
        verify(proof.commitment, output, &point, opening, setup.clone(), &mut transcript(n))
    }

    /// Every proof reads the setup. Between proofs of the same shape, matrices of other shapes are allocated and freed.
    #[test]
    fn five_openings_verify_equal_the_framework_s_and_reject_another_claim() {
        let _turn = alone();
        let (prover_setup, verifier_setup) = preprocess(12);
        for (n, log_rows) in [(1, 12), (2, 11), (3, 12), (4, 8), (5, 12)] {
            let before = zk_alloc::stats();
            let ours = open_fib(&prover_setup, n, log_rows).expect("the dimensions fit");
            let after = zk_alloc::stats();
            assert_eq!(after.phases, before.phases + 2, "one to commit, one to prove");
            if log_rows == 12 {
                assert!(after.arena_bytes > before.arena_bytes, "the arena serves the larger ones");
            }

            assert_eq!(ours, prove_fib(&prover_setup, &trace_fib(n, log_rows)).expect("the dimensions fit"));
            let (output, proof) = ours;
            assert_eq!(verify(&verifier_setup, n, output, &proof), Ok(()));
            assert_eq!(zk_alloc::stats().phases, after.phases + 1, "one to verify");
            assert_eq!(verify(&verifier_setup, n, output ^ 1, &proof), Err(DoryError::InvalidProof));
        }
    }

    /// Dory keeps the prepared points in a static variable. If a program fills the cache before the first phase, as documented, the cache
    /// uses no arena memory. If a program fills it inside a phase by mistake, the cache stays in the arena for the rest of the process.
    /// Proofs in later phases request the same sizes and read the cache, and must equal a proof made without it.
    #[test]
    fn the_prepared_cache_serves_later_proofs_no_matter_where_it_is_filled() {
        let _turn = alone();
        let (prover_setup, verifier_setup) = preprocess(14);
        let theirs = prove_fib(&prover_setup, &trace_fib(1, 14)).expect("the dimensions fit");
        let fill = || init_cache(&prover_setup.g1_vec, &prover_setup.g2_vec);
        for (is_inside, proofs) in [(false, &[1][..]), (true, &[2, 3, 1])] {
            let (served, ()) = arena_bytes_of(|| if is_inside { zk_alloc::phase(fill) } else { fill() });
            assert_eq!(served > 0, is_inside, "the arena served {served} bytes of the cache");
            for &n in proofs {
                // Requests memory of the cache's sizes and writes to it. This would overwrite the cache if the arena handed out its memory
                // again.
                zk_alloc::phase(|| {
                    fill();
                    let cache = get_prepared_cache().expect("it was filled");
                    drop((0..8).map(|_| (*cache).clone()).collect::<Vec<_>>());
                    drop(black_box((10..22).map(|log| vec![0xa5u8; 1 << log]).collect::<Vec<_>>()));
                });
                let ours = open_fib(&prover_setup, n, 14).expect("the dimensions fit");
                assert_eq!(verify(&verifier_setup, n, ours.0, &ours.1), Ok(()));
                if n == 1 {
                    assert_eq!(ours, theirs, "with the cache and without");
                }
            }
            let cache = get_prepared_cache().expect("it was filled");
            assert!(cache.g1_prepared_for(&prover_setup.g1_vec).is_some(), "its points are the setup's");
            invalidate_cache();
        }
    }
}
