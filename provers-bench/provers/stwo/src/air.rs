//! The computation: each row is a sequence of a^2 + b^2, with one element per column.

use rayon::prelude::*;
use stwo::core::channel::Channel;
use stwo::core::fields::FieldExpOps;
use stwo::core::fields::m31::{BaseField, P};
use stwo::core::poly::circle::CanonicCoset;
use stwo::prover::backend::simd::SimdBackend;
use stwo::prover::backend::simd::column::BaseColumn;
use stwo::prover::poly::BitReversedOrder;
use stwo::prover::poly::circle::CircleEvaluation;
use stwo_constraint_framework::{EvalAtRow, FrameworkEval};

const COLUMNS: usize = 100;

/// The statement: each of `2^log_rows` sequences starts with `first`. Only the prover knows their second elements.
#[derive(Clone, Copy)]
pub(crate) struct Sequences {
    first: BaseField,
    log_rows: u32,
}

impl Sequences {
    pub(crate) fn new(seed: u64, log_rows: u32) -> Self {
        Self { first: BaseField::reduce(seed % u64::from(P)), log_rows }
    }

    pub(crate) fn mix_into(&self, channel: &mut impl Channel) {
        channel.mix_u32s(&[self.first.0, self.log_rows]);
    }

    /// The columns of the trace. The second element of each row is that row's index.
    pub(crate) fn trace(&self) -> Vec<CircleEvaluation<SimdBackend, BaseField, BitReversedOrder>> {
        let rows = 1u32 << self.log_rows;
        let mut columns = Vec::<BaseColumn>::with_capacity(COLUMNS);
        columns.push((0..rows).map(|_| self.first).collect());
        columns.push((0..rows).map(BaseField::from).collect());
        while let [.., a, b] = &columns[..]
            && columns.len() < COLUMNS
        {
            let sums = a.data.par_iter().zip(&b.data).map(|(a, b)| a.square() + b.square());
            columns.push(BaseColumn::from_simd(sums.collect()));
        }
        let domain = CanonicCoset::new(self.log_rows).circle_domain();
        columns.into_iter().map(|column| CircleEvaluation::new(domain, column)).collect()
    }
}

impl FrameworkEval for Sequences {
    fn log_size(&self) -> u32 {
        self.log_rows
    }

    fn max_constraint_log_degree_bound(&self) -> u32 {
        self.log_rows + 1
    }

    fn evaluate<E: EvalAtRow>(&self, mut row: E) -> E {
        let (mut a, mut b) = (row.next_trace_mask(), row.next_trace_mask());
        row.add_constraint(a.clone() - E::F::from(self.first));
        for _ in 2..COLUMNS {
            let next = row.next_trace_mask();
            row.add_constraint(next.clone() - (a.square() + b.square()));
            (a, b) = (b, next);
        }
        row
    }
}
