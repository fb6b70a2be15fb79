//! Real plonky2 proofs through the adapter, with zk-alloc installed, across phases.

#[allow(dead_code)]
mod common;
#[path = "../../test_support.rs"]
mod support;

use common::{D, F, Proof, Recursion, Squarings};
use plonky2::iop::generator::{GeneratedValues, SimpleGenerator, WitnessGeneratorRef, generate_partial_witness};
use plonky2::iop::target::Target;
use plonky2::iop::witness::PartitionWitness;
use plonky2::plonk::circuit_data::CommonCircuitData;
use plonky2::util::serialization::{Buffer, IoResult};
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

        // Not `assert_eq`, because nobody reads the bytes of two proofs.
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

/// The prover of the crate `starky`.
#[cfg(feature = "starky")]
mod starks {
    use plonky2::field::extension::{Extendable, FieldExtension};
    use plonky2::field::packed::PackedField;
    use plonky2::field::polynomial::PolynomialValues;
    use plonky2::field::types::Field;
    use plonky2::hash::hash_types::RichField;
    use plonky2::iop::ext_target::ExtensionTarget;
    use plonky2::plonk::circuit_builder::CircuitBuilder;
    use plonky2::util::timing::TimingTree;
    use starky::config::StarkConfig;
    use starky::constraint_consumer::{ConstraintConsumer, RecursiveConstraintConsumer};
    use starky::evaluation_frame::{StarkEvaluationFrame, StarkFrame};
    use starky::proof::StarkProofWithPublicInputs;
    use starky::stark::Stark;
    use starky::verifier::verify_stark_proof;

    use crate::common::{C, D, F};
    use crate::on_one_thread;
    use crate::support::{alone, arena_bytes_of};

    type Proof = StarkProofWithPublicInputs<F, C, D>;

    /// Each proof has its own phase. Earlier proofs must survive later phases, the trace must lie in the arena, and the
    /// proof must equal the framework's.
    #[test]
    fn five_starks_of_changing_size_verify_and_equal_the_framework_s() {
        let _turn = alone();
        on_one_thread(|| {
            let config = StarkConfig::standard_fast_config();
            let mut proofs: Vec<Proof> = Vec::new();
            for log_rows in [12, 15, 12, 10, 15] {
                let public_inputs = Fibonacci::public_inputs(log_rows);
                let mut timing = TimingTree::default();

                let mut served = 0;
                let trace = || {
                    let (bytes, trace) = arena_bytes_of(|| Fibonacci::trace(log_rows));
                    served = bytes;
                    trace
                };
                let inside = zk_alloc_plonky2::starky::prove_with_trace;
                let proof: Proof = inside(Fibonacci, &config, trace, &public_inputs, None, &mut timing).unwrap();
                let column_bytes = size_of::<F>() << log_rows;
                // The system allocator serves smaller requests.
                if column_bytes >= zk_alloc::min_arena_bytes() {
                    assert!(served >= 2 * column_bytes as u64, "the arena served {served} bytes of 2^{log_rows} rows");
                }

                let trace = Fibonacci::trace(log_rows);
                let theirs: Proof =
                    starky::prover::prove(Fibonacci, &config, trace, &public_inputs, None, &mut timing).unwrap();
                assert!(bytes(&proof) == bytes(&theirs), "`prove_with_trace` of 2^{log_rows} rows");

                let trace = Fibonacci::trace(log_rows);
                let prove = zk_alloc_plonky2::starky::prove;
                let proof: Proof = prove(Fibonacci, &config, trace, &public_inputs, None, &mut timing).unwrap();
                assert!(bytes(&proof) == bytes(&theirs), "`prove` of 2^{log_rows} rows");
                proofs.push(proof);
            }
            for proof in proofs {
                verify_stark_proof(Fibonacci, proof, &config, None).expect("it verifies");
            }
        });
    }

    fn bytes(proof: &Proof) -> Vec<u8> {
        postcard::to_allocvec(proof).expect("a proof serialises")
    }

    /// Two columns of Fibonacci numbers. Public values are the first two and the last one.
    #[derive(Clone, Copy)]
    struct Fibonacci;

    impl Fibonacci {
        fn trace(log_rows: usize) -> Vec<PolynomialValues<F>> {
            let (mut left, mut right) = (F::ONE, F::ONE);
            let mut columns = [(); 2].map(|()| Vec::with_capacity(1 << log_rows));
            for _ in 0..1 << log_rows {
                columns[0].push(left);
                columns[1].push(right);
                (left, right) = (right, left + right);
            }
            columns.map(PolynomialValues::new).into()
        }

        fn public_inputs(log_rows: usize) -> [F; 3] {
            let columns = Self::trace(log_rows);
            [F::ONE, F::ONE, *columns[1].values.last().expect("it has rows")]
        }
    }

    impl<F: RichField + Extendable<D>, const D: usize> Stark<F, D> for Fibonacci {
        type EvaluationFrame<FE, P, const D2: usize>
            = StarkFrame<P, P::Scalar, 2, 3>
        where
            FE: FieldExtension<D2, BaseField = F>,
            P: PackedField<Scalar = FE>;

        type EvaluationFrameTarget = StarkFrame<ExtensionTarget<D>, ExtensionTarget<D>, 2, 3>;

        fn eval_packed_generic<FE, P, const D2: usize>(
            &self,
            vars: &Self::EvaluationFrame<FE, P, D2>,
            constraints: &mut ConstraintConsumer<P>,
        ) where
            FE: FieldExtension<D2, BaseField = F>,
            P: PackedField<Scalar = FE>,
        {
            let (row, next, public) = (vars.get_local_values(), vars.get_next_values(), vars.get_public_inputs());
            constraints.constraint_first_row(row[0] - public[0]);
            constraints.constraint_first_row(row[1] - public[1]);
            constraints.constraint_last_row(row[1] - public[2]);
            constraints.constraint_transition(next[0] - row[1]);
            constraints.constraint_transition(next[1] - row[0] - row[1]);
        }

        fn eval_ext_circuit(
            &self,
            _: &mut CircuitBuilder<F, D>,
            _: &Self::EvaluationFrameTarget,
            _: &mut RecursiveConstraintConsumer<F, D>,
        ) {
            unreachable!("no circuit verifies these proofs")
        }

        fn constraint_degree(&self) -> usize {
            2
        }
    }
}
