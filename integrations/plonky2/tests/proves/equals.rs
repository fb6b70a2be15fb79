//! Proofs through the adapter equal the framework's own, byte for byte.
//!
//! Two proofs of one witness differ in two places even without the adapter, and these tests fix both. The unused wires
//! of a row of public inputs get random values: `fixed` makes them zero. A proof also contains the first proof of work
//! that *any* of rayon's threads finds, which determines its queries: `on_one_thread` makes that the same one every
//! time.

use plonky2::iop::generator::{GeneratedValues, SimpleGenerator, WitnessGeneratorRef, generate_partial_witness};
use plonky2::iop::target::Target;
use plonky2::iop::witness::PartitionWitness;
use plonky2::plonk::circuit_data::CommonCircuitData;
use plonky2::plonk::proof::ProofWithPublicInputs;
use plonky2::util::serialization::{Buffer, IoResult};
use plonky2::util::timing::TimingTree;
use rayon::ThreadPoolBuilder;

use crate::alone;
use crate::common::{C, D, F, Squarings};

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
fn assert_same(ours: &ProofWithPublicInputs<F, C, D>, theirs: &ProofWithPublicInputs<F, C, D>, what: &str) {
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
