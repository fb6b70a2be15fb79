//! Without zk-alloc as the global allocator, the adapter only calls the framework.

#[allow(dead_code)]
mod common;

use common::Squarings;

/// The process has another global allocator. The adapter must still prove, build the pool once, and leave the arena
/// alone. (There is one test, so that no other test has built rayon's pool before.)
#[test]
fn with_another_allocator_the_adapter_proves_and_the_arena_stays_empty() {
    assert_eq!(zk_alloc_plonky2::init(), cfg!(feature = "parallel"));
    assert!(!zk_alloc_plonky2::init());

    let circuit = Squarings::build(20 << 9);
    for x in [3, 1, 1 << 40] {
        let proof = zk_alloc_plonky2::prove(&circuit.data, circuit.inputs(x)).expect("a valid witness proves");
        assert_eq!(proof.public_inputs, circuit.public_inputs(x));
        circuit.data.verify(proof).expect("it verifies");
    }

    assert_eq!(zk_alloc::stats().arena_bytes, 0);
}
