//! Without zk-alloc as the global allocator, the adapter only calls the framework.

#[allow(dead_code)]
mod common;

use common::{build_prover_fib, build_verifier_fib, preprocess};

/// The process has another global allocator. The adapter must still prove, build the pool once, and leave the arena
/// alone. (There is one test, so that no other test has built rayon's pool before.)
#[test]
fn with_another_allocator_the_adapter_proves_and_the_arena_stays_empty() {
    assert_eq!(zk_alloc_jolt::init(), cfg!(feature = "parallel"));
    assert!(!zk_alloc_jolt::init());

    let (prover_setup, verifier_setup) = zk_alloc_jolt::prove(|| preprocess(12));
    let prove_fib = zk_alloc_jolt::wrap(build_prover_fib(prover_setup));
    let verify_fib = build_verifier_fib(verifier_setup);
    for (n, log_rows) in [(50, 12), (51, 8)] {
        let (output, proof, device) = prove_fib(n, log_rows);
        assert!(verify_fib(n, output, device.panic, &proof));
    }

    assert_eq!(zk_alloc::stats().arena_bytes, 0);
}
