//! Real plonky2 proofs through the adapter, with zk-alloc installed, across phases.

#[allow(dead_code)]
mod common;
#[path = "../../test_support.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::bail;
use common::{C, D, F, Proof, Recursion, Squarings, builder};
use plonky2::field::types::Field;
use plonky2::iop::generator::{GeneratedValues, SimpleGenerator, WitnessGeneratorRef, generate_partial_witness};
use plonky2::iop::target::Target;
use plonky2::iop::witness::{PartialWitness, PartitionWitness, Witness, WitnessWrite};
use plonky2::plonk::circuit_data::{CircuitData, CommonCircuitData};
use plonky2::util::serialization::{Buffer, IoResult, Read, Write};
use plonky2::util::timing::TimingTree;
use rayon::ThreadPoolBuilder;
use support::{alone, arena_bytes_of, assert_no_phase_is_open};

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
    // The wires' extension alone: 135 columns, eight times as long as the circuit.
    let wires_bytes = (135 * (8 << circuit.data.common.degree_bits()) * size_of::<F>()) as u64;
    assert!(served >= 5 * wires_bytes, "the arena served {served} bytes of five proofs, each over {wires_bytes}");
    for (proof, x) in proofs.into_iter().zip(inputs) {
        assert_eq!(proof.public_inputs, circuit.public_inputs(x));
        circuit.data.verify(proof).expect("it verified when it was made");
    }
}

/// The inner proof's buffers come from the inner phase, and the outer proof's witness is made from them. All proofs of
/// a circuit read its tables. Here one circuit is built outside any phase and the other inside one, and both must serve
/// repeatedly.
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

/// The framework refuses a witness that breaks the circuit. Its error must leave the phase unchanged, and the phase
/// must end.
#[test]
fn a_wrong_witness_is_the_framework_s_error_and_the_next_proof_works() {
    let _turn = alone();
    let circuit = Squarings::build(20 << 8);
    let wrong = || {
        let mut inputs = circuit.inputs(3);
        inputs.set_target(circuit.last, F::from_canonical_u64(9)).expect("it is set once");
        inputs
    };
    let theirs = circuit.data.prove(wrong()).expect_err("9 is not the last square");
    let ours = zk_alloc_plonky2::prove(&circuit.data, wrong()).expect_err("9 is not the last square");
    assert_eq!(ours.to_string(), theirs.to_string());
    assert!(ours.to_string().contains("set twice with different values"), "{ours}");

    let theirs = circuit.data.prove(PartialWitness::new()).expect_err("the first number is missing");
    let ours = zk_alloc_plonky2::prove(&circuit.data, PartialWitness::new()).expect_err("the first number is missing");
    assert_eq!(ours.to_string(), theirs.to_string());
    assert!(ours.to_string().contains("generators weren't run"), "{ours}");

    assert_no_phase_is_open();
    prove_and_verify(&circuit, 3);
}

/// A panic unwinds through the phase while the witness is half made. An error of a generator leaves the phase through
/// the framework. Both must end the phase, and the next proof of the same circuit must work.
#[test]
fn a_panic_or_an_error_in_a_generator_ends_the_phase() {
    let _turn = alone();
    let circuit = InverseCircuit::build();
    let prove = |x: u64| zk_alloc_plonky2::prove(&circuit.data, circuit.inputs(x));
    let outcome = catch_unwind(AssertUnwindSafe(|| prove(Inverse::PANICS)));
    let payload = outcome.expect_err("the panic passes through");
    assert_eq!(payload.downcast_ref(), Some(&"no witness for this input"));
    assert_no_phase_is_open();

    let error = prove(0).expect_err("zero has no inverse");
    assert_eq!(error.to_string(), circuit.data.prove(circuit.inputs(0)).unwrap_err().to_string());
    assert_no_phase_is_open();

    circuit.data.verify(prove(3).expect("3 has an inverse")).expect("it verifies");
}

/// Programs, libraries and tests all call `init`. Only the first call may build the pool, and no later one may fail.
#[test]
fn init_may_be_called_again_before_and_after_proofs() {
    let _turn = alone();
    zk_alloc_plonky2::init();
    assert!(!zk_alloc_plonky2::init());
    prove_and_verify(&Squarings::build(100), 2);
    assert!(!zk_alloc_plonky2::init());
}

/// A circuit with a custom generator: `x` is public, and has an inverse.
struct InverseCircuit {
    data: CircuitData<F, C, D>,
    x: Target,
}

impl InverseCircuit {
    fn build() -> Self {
        let mut builder = builder();
        let x = builder.add_virtual_public_input();
        let inverse = builder.add_virtual_target();
        builder.add_simple_generator(Inverse { x, inverse });
        let product = builder.mul(x, inverse);
        builder.assert_one(product);
        Self { data: builder.build(), x }
    }

    fn inputs(&self, x: u64) -> PartialWitness<F> {
        let mut inputs = PartialWitness::new();
        inputs.set_target(self.x, F::from_canonical_u64(x)).expect("it is set once");
        inputs
    }
}

#[derive(Debug)]
struct Inverse {
    x: Target,
    inverse: Target,
}

impl Inverse {
    const PANICS: u64 = 13;
}

impl SimpleGenerator<F, D> for Inverse {
    fn id(&self) -> String {
        "Inverse".to_string()
    }

    fn dependencies(&self) -> Vec<Target> {
        vec![self.x]
    }

    fn run_once(&self, witness: &PartitionWitness<F>, out: &mut GeneratedValues<F>) -> anyhow::Result<()> {
        let x = witness.get_target(self.x);
        if x == F::from_canonical_u64(Self::PANICS) {
            panic!("no witness for this input");
        }
        let Some(inverse) = x.try_inverse() else { bail!("{x} has no inverse") };
        out.set_target(self.inverse, inverse)
    }

    fn serialize(&self, dst: &mut Vec<u8>, _common: &CommonCircuitData<F, D>) -> IoResult<()> {
        dst.write_target(self.x)?;
        dst.write_target(self.inverse)
    }

    fn deserialize(src: &mut Buffer, _common: &CommonCircuitData<F, D>) -> IoResult<Self> {
        Ok(Self { x: src.read_target()?, inverse: src.read_target()? })
    }
}

// Proofs through the adapter equal the framework's own, byte for byte. Two proofs of one witness differ in two places even without the
// adapter, and these tests fix both. The unused wires of a row of public inputs get random values: `fixed` makes them zero. A proof
// also contains the first proof of work that *any* of rayon's threads finds, which determines its queries: `on_one_thread` makes that
// the same one every time.

fn on_one_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    let pool = ThreadPoolBuilder::new().num_threads(1).build().expect("one thread starts");
    pool.install(f)
}

/// A circuit without random wires.
fn fixed(squarings: usize) -> Squarings {
    let mut circuit = Squarings::build(squarings);
    for generator in &mut circuit.data.prover_only.generators {
        if generator.0.id() == "RandomValueGenerator" {
            *generator = WitnessGeneratorRef::new(SimpleGenerator::<F, D>::adapter(Nothing));
        }
    }
    circuit
}

/// Not `assert_eq`, because nobody reads the bytes of two proofs.
fn assert_same(ours: &Proof, theirs: &Proof, what: &str) {
    assert!(ours.to_bytes() == theirs.to_bytes(), "{what}: the proof differs from the framework's");
}

/// The adapter adds only a phase. It changes nothing in the transcript, in the first phase or in a later one.
#[test]
fn five_proofs_equal_the_framework_s_byte_for_byte() {
    let _turn = alone();
    let circuit = fixed(20 << 8);
    on_one_thread(|| {
        for x in [3, 1, 0, 1 << 40, 3] {
            let theirs = circuit.data.prove(circuit.inputs(x)).unwrap();
            let ours = zk_alloc_plonky2::prove(&circuit.data, circuit.inputs(x)).unwrap();
            assert_same(&ours, &theirs, &format!("the squarings of {x}"));
            assert_eq!(ours.public_inputs, circuit.public_inputs(x));
            circuit.data.verify(ours).expect("it verifies");
        }
    });
}

/// Every function must make the same proof: from the two halves of the circuit, from the prover's data alone, and from
/// a finished witness.
#[test]
fn every_function_of_the_adapter_makes_the_same_proof() {
    let _turn = alone();
    let circuit = fixed(20 << 8);
    on_one_thread(|| {
        let inputs = || circuit.inputs(5);
        let theirs = circuit.data.prove(inputs()).unwrap();
        let (key, common) = (&circuit.data.prover_only, &circuit.data.common);
        let mut timing = TimingTree::default();

        let ours = zk_alloc_plonky2::prove_with_timing(&circuit.data, inputs(), &mut timing).unwrap();
        assert_same(&ours, &theirs, "`prove_with_timing`");
        let ours = zk_alloc_plonky2::prover::prove(key, common, inputs(), &mut timing).unwrap();
        assert_same(&ours, &theirs, "`prover::prove`");
        let witness = generate_partial_witness(inputs(), key, common).unwrap();
        let prove = zk_alloc_plonky2::prover::prove_with_partition_witness;
        let ours = prove(key, common, witness, &mut timing).unwrap();
        assert_same(&ours, &theirs, "`prover::prove_with_partition_witness`");

        let inputs = inputs();
        let prover_data = circuit.data.prover_data();
        let ours = zk_alloc_plonky2::prove(&prover_data, inputs).unwrap();
        assert_same(&ours, &theirs, "`prove` of `ProverCircuitData`");
    });
}

/// A generator that generates nothing. A wire that no generator sets is zero.
#[derive(Debug)]
struct Nothing;

impl SimpleGenerator<F, D> for Nothing {
    fn id(&self) -> String {
        "Nothing".to_string()
    }

    fn dependencies(&self) -> Vec<Target> {
        Vec::new()
    }

    fn run_once(&self, _witness: &PartitionWitness<F>, _out: &mut GeneratedValues<F>) -> anyhow::Result<()> {
        Ok(())
    }

    fn serialize(&self, _dst: &mut Vec<u8>, _common: &CommonCircuitData<F, D>) -> IoResult<()> {
        Ok(())
    }

    fn deserialize(_src: &mut Buffer, _common: &CommonCircuitData<F, D>) -> IoResult<Self> {
        Ok(Self)
    }
}
