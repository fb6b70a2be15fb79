//! Tests the adapter with real proofs of the crate `starky`, across phases, with zk-alloc installed.

#[allow(dead_code)]
mod common;
#[path = "../../test_support.rs"]
mod support;

use common::{C, D, F};
use plonky2::field::extension::{Extendable, FieldExtension};
use plonky2::field::packed::PackedField;
use plonky2::field::polynomial::PolynomialValues;
use plonky2::field::types::Field;
use plonky2::hash::hash_types::RichField;
use plonky2::iop::ext_target::ExtensionTarget;
use plonky2::plonk::circuit_builder::CircuitBuilder;
use plonky2::util::timing::TimingTree;
use rayon::ThreadPoolBuilder;
use starky::config::StarkConfig;
use starky::constraint_consumer::{ConstraintConsumer, RecursiveConstraintConsumer};
use starky::evaluation_frame::{StarkEvaluationFrame, StarkFrame};
use starky::proof::StarkProofWithPublicInputs;
use starky::stark::Stark;
use starky::verifier::verify_stark_proof;
use support::arena_bytes_of;

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

type Proof = StarkProofWithPublicInputs<F, C, D>;

/// Each proof has its own phase. Earlier proofs must survive later phases, the trace must be in the arena, and each
/// proof must equal the framework's.
#[test]
fn five_starks_of_changing_size_verify_and_equal_the_framework_s() {
    // With several threads, the first proof of work that any of them finds is used. A single thread always finds the same one.
    let pool = ThreadPoolBuilder::new().num_threads(1).build().expect("one thread starts");
    pool.install(|| {
        let config = StarkConfig::standard_fast_config();
        let mut proofs: Vec<Proof> = Vec::new();
        for log_rows in [12, 15, 12, 10, 15] {
            let public_inputs = Counter::public_inputs(log_rows);
            let mut timing = TimingTree::default();

            let mut served = 0;
            let trace = || {
                let (bytes, trace) = arena_bytes_of(|| Counter::trace(log_rows));
                served = bytes;
                trace
            };
            let inside = zk_alloc_plonky2::starky::prove_with_trace;
            let proof: Proof = inside(Counter, &config, trace, &public_inputs, None, &mut timing).unwrap();
            let column_bytes = size_of::<F>() << log_rows;
            // The system allocator serves requests of fewer than `min_arena_bytes`.
            if column_bytes >= zk_alloc::min_arena_bytes() {
                assert!(served >= column_bytes as u64, "the arena served {served} bytes of 2^{log_rows} rows");
            }

            let trace = Counter::trace(log_rows);
            let prove = starky::prover::prove;
            let theirs: Proof = prove(Counter, &config, trace.clone(), &public_inputs, None, &mut timing).unwrap();
            assert!(bytes(&proof) == bytes(&theirs), "`prove_with_trace` of 2^{log_rows} rows");

            let prove = zk_alloc_plonky2::starky::prove;
            let proof: Proof = prove(Counter, &config, trace, &public_inputs, None, &mut timing).unwrap();
            assert!(bytes(&proof) == bytes(&theirs), "`prove` of 2^{log_rows} rows");
            proofs.push(proof);
        }
        for proof in proofs {
            verify_stark_proof(Counter, proof, &config, None).expect("it verifies");
        }
    });
}

fn bytes(proof: &Proof) -> Vec<u8> {
    postcard::to_allocvec(proof).expect("a proof serialises")
}

/// A STARK with one column, which counts up from 0. The public value is the last row.
#[derive(Clone, Copy)]
struct Counter;

impl Counter {
    fn trace(log_rows: usize) -> Vec<PolynomialValues<F>> {
        vec![PolynomialValues::new((0..1 << log_rows).map(F::from_canonical_u64).collect())]
    }

    fn public_inputs(log_rows: usize) -> [F; 1] {
        [F::from_canonical_u64((1 << log_rows) - 1)]
    }
}

impl<F: RichField + Extendable<D>, const D: usize> Stark<F, D> for Counter {
    type EvaluationFrame<FE, P, const D2: usize>
        = StarkFrame<P, P::Scalar, 1, 1>
    where
        FE: FieldExtension<D2, BaseField = F>,
        P: PackedField<Scalar = FE>;

    type EvaluationFrameTarget = StarkFrame<ExtensionTarget<D>, ExtensionTarget<D>, 1, 1>;

    fn eval_packed_generic<FE, P, const D2: usize>(
        &self,
        vars: &Self::EvaluationFrame<FE, P, D2>,
        constraints: &mut ConstraintConsumer<P>,
    ) where
        FE: FieldExtension<D2, BaseField = F>,
        P: PackedField<Scalar = FE>,
    {
        let (row, next, public) = (vars.get_local_values(), vars.get_next_values(), vars.get_public_inputs());
        constraints.constraint_first_row(row[0]);
        constraints.constraint_last_row(row[0] - public[0]);
        constraints.constraint_transition(next[0] - row[0] - P::ONES);
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
