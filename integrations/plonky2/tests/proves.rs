//! Tests the adapter with real plonky2 proofs, across phases, with zk-alloc installed.

#[allow(dead_code)]
mod common;
#[path = "../../test_support.rs"]
mod support;

use common::{D, F, Proof, Recursion, Squarings};
use plonky2::iop::generator::{ConstantGenerator, SimpleGenerator, WitnessGeneratorRef, generate_partial_witness};
use plonky2::util::timing::TimingTree;
use rayon::ThreadPoolBuilder;
use support::{alone, arena_bytes_of};

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

fn prove_and_verify(circuit: &Squarings, x: u64) -> Proof {
    let proof = zk_alloc_plonky2::prove(&circuit.data, circuit.inputs(x)).expect("a valid witness proves");
    assert_eq!(proof.public_inputs, circuit.public_inputs(x));
    circuit.data.verify(proof.clone()).expect("the proof verifies");
    proof
}

/// Makes five proofs of one circuit, each in its own phase. Earlier proofs must survive later phases, whose requests have the same sizes in
/// the same order. The arena must have served these requests.
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

/// The inner proof's buffers are allocated in its own phase, and the outer proof's witness is built from them. All proofs of a circuit
/// read its tables. Here one circuit is built outside any phase and the other inside one, and both must stay usable for several proofs.
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

// Proofs made through the adapter equal the framework's own, byte for byte. Even without the adapter, two proofs of one witness differ in
// two places, so these tests make both deterministic. Unused wires in the row of public inputs get random values; in a circuit from
// `fixed`, they are zero. The queries depend on the proof of work, which is the first one that *any* of rayon's threads finds; on a single
// thread (`on_one_thread`), the search always finds the same one.

/// Runs `f` on a pool of one thread.
fn on_one_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    let pool = ThreadPoolBuilder::new().num_threads(1).build().expect("one thread starts");
    pool.install(f)
}

/// Builds a circuit without random wires. Replaces each generator of a random value by one that sets the last wire of row 0 to zero, which
/// changes nothing, because squarings do not use that wire.
fn fixed(squarings: usize) -> Squarings {
    let mut circuit = Squarings::build(squarings);
    let wire_index = circuit.data.common.config.num_wires - 1;
    for generator in &mut circuit.data.prover_only.generators {
        if generator.0.id() == "RandomValueGenerator" {
            let zero = ConstantGenerator::<F> { wire_index, ..ConstantGenerator::default() };
            *generator = WitnessGeneratorRef::new(SimpleGenerator::<F, D>::adapter(zero));
        }
    }
    circuit
}

/// Every function must produce the same proof: from the two halves of the circuit, from the prover's data alone, and
/// from a finished witness.
#[test]
fn every_function_of_the_adapter_makes_the_same_proof() {
    let _turn = alone();
    let circuit = fixed(20 << 8);
    on_one_thread(|| {
        let inputs = || circuit.inputs(5);
        let theirs = circuit.data.prove(inputs()).unwrap();
        let (key, common) = (&circuit.data.prover_only, &circuit.data.common);
        let mut timing = TimingTree::default();

        // Not `assert_eq`, which would print the bytes of both proofs.
        let assert_same = |ours: anyhow::Result<Proof>, what: &str| {
            let is_same = ours.unwrap().to_bytes() == theirs.to_bytes();
            assert!(is_same, "{what}: the proof differs from the framework's");
        };
        assert_same(zk_alloc_plonky2::prove_with_timing(&circuit.data, inputs(), &mut timing), "`prove_with_timing`");
        assert_same(zk_alloc_plonky2::prover::prove(key, common, inputs(), &mut timing), "`prover::prove`");
        let witness = generate_partial_witness(inputs(), key, common).unwrap();
        let prove = zk_alloc_plonky2::prover::prove_with_partition_witness;
        assert_same(prove(key, common, witness, &mut timing), "`prover::prove_with_partition_witness`");

        let inputs = inputs();
        assert_same(zk_alloc_plonky2::prove(&circuit.data.prover_data(), inputs), "`prove` of `ProverCircuitData`");
    });
}
