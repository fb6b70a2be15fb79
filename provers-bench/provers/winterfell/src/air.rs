//! The computation: chains of x -> x^3 + 42, one per column.

use winterfell::math::fields::f128::BaseElement;
use winterfell::math::{FieldElement, ToElements};
use winterfell::{
    Air, AirContext, Assertion, EvaluationFrame, ProofOptions, Trace, TraceInfo, TraceTable, TransitionConstraintDegree,
};

pub(crate) const COLUMNS: usize = 16;

/// The first and last elements of the chains.
#[derive(Clone)]
pub(crate) struct PublicInputs {
    pub(crate) starts: Vec<BaseElement>,
    pub(crate) results: Vec<BaseElement>,
}

impl PublicInputs {
    pub(crate) fn of(trace: &TraceTable<BaseElement>) -> Self {
        let row = |step| (0..COLUMNS).map(|column| trace.get(column, step)).collect();
        Self { starts: row(0), results: row(trace.length() - 1) }
    }

    pub(crate) fn width(&self) -> usize {
        self.starts.len()
    }
}

impl ToElements<BaseElement> for PublicInputs {
    fn to_elements(&self) -> Vec<BaseElement> {
        [&self.starts[..], &self.results[..]].concat()
    }
}

/// The trace of `rows` steps of every chain.
pub(crate) fn trace(seed: u64, rows: usize) -> TraceTable<BaseElement> {
    let mut trace = TraceTable::new(COLUMNS, rows);
    trace.fill(
        |state| {
            let starts = (0..COLUMNS as u128).map(|column| BaseElement::new(u128::from(seed) + column));
            state.iter_mut().zip(starts).for_each(|(cell, start)| *cell = start);
        },
        |_, state| state.iter_mut().for_each(|cell| *cell = step(*cell)),
    );
    trace
}

fn step<E: FieldElement>(cell: E) -> E {
    cell.cube() + E::from(42u32)
}

pub(crate) struct WorkAir {
    context: AirContext<BaseElement>,
    inputs: PublicInputs,
}

impl Air for WorkAir {
    type BaseField = BaseElement;
    type PublicInputs = PublicInputs;

    fn new(trace_info: TraceInfo, inputs: PublicInputs, options: ProofOptions) -> Self {
        let degrees = vec![TransitionConstraintDegree::new(3); COLUMNS];
        let assertions = 2 * COLUMNS;
        Self { context: AirContext::new(trace_info, degrees, assertions, options), inputs }
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
        let at = |step, values: &[BaseElement]| {
            let columns = values.iter().enumerate();
            columns.map(|(column, &value)| Assertion::single(column, step, value)).collect::<Vec<_>>()
        };
        [at(0, &self.inputs.starts), at(self.trace_length() - 1, &self.inputs.results)].concat()
    }

    fn context(&self) -> &AirContext<BaseElement> {
        &self.context
    }
}
