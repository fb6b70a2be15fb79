//! Proofs of the same shape as Jolt's, over the real Dory, through the adapter and across phases, with zk-alloc
//! installed.

#[allow(dead_code)]
mod common;
#[path = "../../test_support.rs"]
mod support;

use common::{Proof, build_prover_fib, build_verifier_fib, preprocess, prove_fib, trace_fib, verify_fib};
use dory_pcs::DoryError;
use dory_pcs::backends::arkworks::ArkFr;
use support::{alone, arena_bytes_of};
use zk_alloc_jolt::{prove, try_prove, wrap};

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

fn phases() -> u64 {
    zk_alloc::stats().phases
}

/// The size of the coefficients, which a proof allocates and frees.
fn coefficient_bytes(log_rows: usize) -> u64 {
    (size_of::<ArkFr>() << log_rows) as u64
}

/// Every proof reads the prover's setup, and holds vectors that its phase allocated. Later phases request the same sizes. An arena that
/// resets, or hands out memory that is in use, breaks one of these proofs. So the sizes must repeat.
#[test]
fn five_proofs_of_one_wrapped_prover_verify_at_the_end() {
    let _turn = alone();
    let (prover_setup, verifier_setup) = preprocess(14);
    let (prove_fib, verify_fib) = (wrap(build_prover_fib(prover_setup)), build_verifier_fib(verifier_setup));
    let proofs = [(50, 12), (51, 14), (52, 12), (53, 11), (54, 14)].map(|(n, log_rows)| {
        let (bytes, proved) = arena_bytes_of(|| prove_fib(n, log_rows));
        assert!(bytes >= coefficient_bytes(log_rows), "the arena served {bytes} bytes of a proof of 2^{log_rows} rows");
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
    std::thread::scope(|scope| {
        for n in 0..3 {
            let (prove_fib, verify_fib) = (&prove_fib, &verify_fib);
            scope.spawn(move || {
                for n in [n, n + 100] {
                    let (output, proof, device) = prove_fib(n, 12);
                    assert!(verify_fib(n, output, device.panic, &proof));
                }
            });
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
