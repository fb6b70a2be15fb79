//! Without zk-alloc as the global allocator, the adapter only calls the framework.

#[allow(dead_code)]
mod common;

use common::{Fibonacci, config};

/// The process has another global allocator. The adapter must still prove, build the pool once, and leave the arena
/// alone. (There is one test, so that no other test has built rayon's pool before.)
#[test]
fn with_another_allocator_the_adapter_proves_and_the_arena_stays_empty() {
    assert_eq!(zk_alloc_plonky3::init(), cfg!(feature = "parallel"));
    assert!(!zk_alloc_plonky3::init());

    let config = config();
    for log_rows in [12, 8, 14] {
        let public_values = Fibonacci::public_values(log_rows);
        let trace = || Fibonacci::trace(log_rows);
        let proof = zk_alloc_plonky3::prove_with_trace(&config, &Fibonacci, trace, &public_values)
            .expect("a valid trace proves");
        p3_uni_stark::verify(&config, &Fibonacci, &proof, &public_values).expect("it verifies");
    }

    assert_eq!(zk_alloc::stats().arena_bytes, 0);
}
