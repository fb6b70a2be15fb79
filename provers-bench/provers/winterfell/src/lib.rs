//! Winterfell as a prover for prove-bench: the AIR and the prover of the example in its crate documentation, with several columns and
//! default components.

use provers_bench::{Prover, Workload, WorkloadSpec};
use winterfell::crypto::{DefaultRandomCoin, MerkleTree, hashers::Blake3_256};
use winterfell::math::{FieldElement, ToElements, fields::f128::BaseElement};
use winterfell::matrix::ColMatrix;
use winterfell::{
    AcceptableOptions, Air, AirContext, Assertion, AuxRandElements, BatchingMethod, CompositionPoly,
    CompositionPolyTrace, ConstraintCompositionCoefficients, DefaultConstraintCommitment, DefaultConstraintEvaluator,
    DefaultTraceLde, EvaluationFrame, FieldExtension, PartitionOptions, Proof, ProofOptions, Prover as _, StarkDomain,
    TraceInfo, TracePolyTable, TraceTable, TransitionConstraintDegree,
};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "winterfell",
    "Winterfell 0.13",
    &[WorkloadSpec::new::<Work>("work", "16 chains of x -> x^3 + 42 over f128", 16).checked_at(12)],
)];

/// Number of columns of the trace, one for each chain.
const COLUMNS: usize = 16;

type Hash = Blake3_256<BaseElement>;

/// The workload: one chain per column, each with `2^log_rows` rows.
pub struct Work {
    options: ProofOptions,
    rows: usize,
}

impl Work {
    fn trace(&self, seed: u64) -> TraceTable<BaseElement> {
        let mut trace = TraceTable::new(COLUMNS, self.rows);
        trace.fill(
            |state| {
                let starts = (0..COLUMNS as u128).map(|column| BaseElement::new(u128::from(seed) + column));
                state.iter_mut().zip(starts).for_each(|(cell, start)| *cell = start);
            },
            |_, state| state.iter_mut().for_each(|cell| *cell = step(*cell)),
        );
        trace
    }
}

fn step<E: FieldElement>(cell: E) -> E {
    cell.cube() + E::from(42u32)
}

impl Workload for Work {
    type Proof = (Proof, Ends);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let (queries, blowup, grinding, folding, remainder_degree) = (32, 8, 0, 8, 31);
        let (field, batching) = (FieldExtension::None, BatchingMethod::Linear);
        let options =
            ProofOptions::new(queries, blowup, grinding, field, folding, remainder_degree, batching, batching);
        Ok(Self { options, rows: 1 << log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        // The phase also covers the trace.
        zk_alloc::phase(|| {
            let trace = self.trace(seed);
            let ends = self.get_pub_inputs(&trace);
            Ok((winterfell::Prover::prove(self, trace)?, ends))
        })
    }

    fn verify(&self, (proof, ends): &Self::Proof) -> anyhow::Result<()> {
        let options = AcceptableOptions::MinConjecturedSecurity(95);
        let (proof, ends) = (proof.clone(), ends.clone());
        Ok(winterfell::verify::<WorkAir, Hash, DefaultRandomCoin<Hash>, MerkleTree<Hash>>(proof, ends, &options)?)
    }
}

/// The statement: the first and the last elements of the chains.
#[derive(Clone)]
pub struct Ends([[BaseElement; COLUMNS]; 2]);

impl ToElements<BaseElement> for Ends {
    fn to_elements(&self) -> Vec<BaseElement> {
        self.0.concat()
    }
}

/// The AIR of the computation.
pub struct WorkAir {
    context: AirContext<BaseElement>,
    ends: Ends,
}

impl Air for WorkAir {
    type BaseField = BaseElement;
    type PublicInputs = Ends;

    fn new(trace_info: TraceInfo, ends: Ends, options: ProofOptions) -> Self {
        let degrees = vec![TransitionConstraintDegree::new(3); COLUMNS];
        let assertions = 2 * COLUMNS;
        Self { context: AirContext::new(trace_info, degrees, assertions, options), ends }
    }

    fn evaluate_transition<E: FieldElement<BaseField = BaseElement>>(
        &self,
        frame: &EvaluationFrame<E>,
        _periodic_values: &[E],
        result: &mut [E],
    ) {
        let cells = frame.current().iter().zip(frame.next());
        result.iter_mut().zip(cells).for_each(|(result, (&cell, &next))| *result = next - step(cell));
    }

    fn get_assertions(&self) -> Vec<Assertion<BaseElement>> {
        let rows = [0, self.trace_length() - 1].into_iter().zip(self.ends.0);
        let row = |(row, values): (usize, [BaseElement; COLUMNS])| {
            (0..).zip(values).map(move |(column, value)| Assertion::single(column, row, value))
        };
        rows.flat_map(row).collect()
    }

    fn context(&self) -> &AirContext<BaseElement> {
        &self.context
    }
}

impl winterfell::Prover for Work {
    type BaseField = BaseElement;
    type Air = WorkAir;
    type Trace = TraceTable<BaseElement>;
    type HashFn = Hash;
    type VC = MerkleTree<Hash>;
    type RandomCoin = DefaultRandomCoin<Hash>;
    type TraceLde<E: FieldElement<BaseField = BaseElement>> = DefaultTraceLde<E, Hash, MerkleTree<Hash>>;
    type ConstraintCommitment<E: FieldElement<BaseField = BaseElement>> =
        DefaultConstraintCommitment<E, Hash, MerkleTree<Hash>>;
    type ConstraintEvaluator<'a, E: FieldElement<BaseField = BaseElement>> = DefaultConstraintEvaluator<'a, WorkAir, E>;

    fn get_pub_inputs(&self, trace: &Self::Trace) -> Ends {
        Ends([0, self.rows - 1].map(|row| std::array::from_fn(|column| trace.get(column, row))))
    }

    fn options(&self) -> &ProofOptions {
        &self.options
    }

    fn new_trace_lde<E: FieldElement<BaseField = BaseElement>>(
        &self,
        trace_info: &TraceInfo,
        main_trace: &ColMatrix<BaseElement>,
        domain: &StarkDomain<BaseElement>,
        partition_option: PartitionOptions,
    ) -> (Self::TraceLde<E>, TracePolyTable<E>) {
        DefaultTraceLde::new(trace_info, main_trace, domain, partition_option)
    }

    fn new_evaluator<'a, E: FieldElement<BaseField = BaseElement>>(
        &self,
        air: &'a WorkAir,
        aux_rand_elements: Option<AuxRandElements<E>>,
        composition_coefficients: ConstraintCompositionCoefficients<E>,
    ) -> Self::ConstraintEvaluator<'a, E> {
        DefaultConstraintEvaluator::new(air, aux_rand_elements, composition_coefficients)
    }

    fn build_constraint_commitment<E: FieldElement<BaseField = BaseElement>>(
        &self,
        composition_poly_trace: CompositionPolyTrace<E>,
        columns: usize,
        domain: &StarkDomain<BaseElement>,
        partition_options: PartitionOptions,
    ) -> (Self::ConstraintCommitment<E>, CompositionPoly<E>) {
        DefaultConstraintCommitment::new(composition_poly_trace, columns, domain, partition_options)
    }
}
