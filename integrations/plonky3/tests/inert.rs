//! Without zk-alloc as the global allocator, the adapter is the framework and nothing else.

#[allow(dead_code)]
mod common;

use common::{Fibonacci, config};

/// The adapter is called in a process whose allocator is another one: it must prove all the same, build the pool once, and leave
/// the arena alone. (One test, so that no other one has built rayon's pool before.)
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
