//! Real plonky2 proofs through the adapter, with zk-alloc installed, across phases.

#[allow(dead_code)]
mod common;
#[path = "../../test_support.rs"]
mod support;

use common::{F, Proof, Recursion, Squarings};
use plonky2::iop::generator::generate_partial_witness;
use plonky2::util::timing::TimingTree;
use support::{alone, arena_bytes_of};

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

fn prove_and_verify(circuit: &Squarings, x: u64) -> Proof {
    let proof = zk_alloc_plonky2::prove(&circuit.data, circuit.inputs(x)).expect("a valid witness proves");
    assert_eq!(proof.public_inputs, circuit.public_inputs(x));
    circuit.data.verify(proof.clone()).expect("the proof verifies");
    proof
}

/// Five proofs of one circuit, each in its own phase. Earlier proofs must survive later phases, whose requests have the
/// same sizes in the same order. The arena must have served them.
#[test]
fn five_proofs_of_changing_inputs_all_verify_at_the_end() {
    let _turn = alone();
    zk_alloc_plonky2::init();
    let circuit = Squarings::build(20 << 10);
    let inputs = [3, 1, 0, 1 << 40, 3];
    let (served, proofs) = arena_bytes_of(|| inputs.map(|x| prove_and_verify(&circuit, x)));
    // The lower bound counts only the wires' low-degree extension: 135 columns, eight times as long as the circuit.
    let wires_bytes = (135 * (8 << circuit.data.common.degree_bits()) * size_of::<F>()) as u64;
    assert!(served >= 5 * wires_bytes, "the arena served {served} bytes of five proofs, each over {wires_bytes}");
    for (proof, x) in proofs.into_iter().zip(inputs) {
        assert_eq!(proof.public_inputs, circuit.public_inputs(x));
        circuit.data.verify(proof).expect("it verified when it was made");
    }
}

/// The inner proof's buffers come from the inner phase, and the outer proof's witness is made from them. All proofs of
/// a circuit read its tables. Here one circuit is built outside any phase and the other inside one, and both must stay
/// usable for several proofs.
#[test]
fn a_proof_of_a_proof_verifies_with_circuits_built_inside_and_outside_a_phase() {
    let _turn = alone();
    let inner = Squarings::build(20 << 6);
    let (served, outer) = arena_bytes_of(|| zk_alloc::phase(|| Recursion::build(&inner.data)));
    assert!(served > 0, "a circuit that is built inside a phase lies in the arena");
    for x in [3, 7] {
        let inner_proof = prove_and_verify(&inner, x);
        let proof = zk_alloc_plonky2::prove(&outer.data, outer.inputs(&inner_proof)).expect("a valid proof proves");
        assert_eq!(proof.public_inputs, inner.public_inputs(x));
        outer.data.verify(proof).expect("it verifies");
    }
}

/// From the two halves of the circuit, from a finished witness, and from the prover's data alone.
#[test]
fn every_function_of_the_adapter_makes_a_proof_that_verifies() {
    let _turn = alone();
    let circuit = Squarings::build(20 << 8);
    let (key, common, verifier) = (&circuit.data.prover_only, &circuit.data.common, circuit.data.verifier_data());
    let verify = |proof: anyhow::Result<Proof>, what: &str| verifier.verify(proof.expect(what)).expect(what);
    let (inputs, mut timing) = (|| circuit.inputs(5), TimingTree::default());
    verify(zk_alloc_plonky2::prove_with_timing(&circuit.data, inputs(), &mut timing), "`prove_with_timing`");
    verify(zk_alloc_plonky2::prover::prove(key, common, inputs(), &mut timing), "`prover::prove`");
    let witness = generate_partial_witness(inputs(), key, common).unwrap();
    let prove = zk_alloc_plonky2::prover::prove_with_partition_witness;
    verify(prove(key, common, witness, &mut timing), "`prover::prove_with_partition_witness`");
    let inputs = inputs();
    verify(zk_alloc_plonky2::prove(&circuit.data.prover_data(), inputs), "`prove` of `ProverCircuitData`");
}
