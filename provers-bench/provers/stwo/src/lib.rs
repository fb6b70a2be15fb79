//! Stwo as a prover for prove-bench: the wide Fibonacci AIR from its examples, with an input that the verifier knows.

use provers_bench::{Prover, Workload, WorkloadSpec};
use rayon::prelude::*;
use stwo::core::air::Component;
use stwo::core::channel::{Blake2sChannel, Channel};
use stwo::core::fields::FieldExpOps;
use stwo::core::fields::m31::{BaseField, P};
use stwo::core::fields::qm31::SecureField;
use stwo::core::fri::FriConfig;
use stwo::core::pcs::{CommitmentSchemeVerifier, PcsConfig};
use stwo::core::poly::circle::CanonicCoset;
use stwo::core::proof::StarkProof;
use stwo::core::vcs_lifted::blake2_merkle::{Blake2sMerkleChannel, Blake2sMerkleHasher};
use stwo::core::verifier;
use stwo::prover::CommitmentSchemeProver;
use stwo::prover::backend::simd::SimdBackend;
use stwo::prover::backend::simd::column::BaseColumn;
use stwo::prover::poly::BitReversedOrder;
use stwo::prover::poly::circle::{CircleEvaluation, PolyOps};
use stwo::prover::poly::twiddles::TwiddleTree;
use stwo_constraint_framework::{EvalAtRow, FrameworkComponent, FrameworkEval, TraceLocationAllocator};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "stwo",
    "Stwo 2.3",
    &[WorkloadSpec::new::<WideFibonacci>("wide-fibonacci", "100 columns of a^2 + b^2 over M31", 20).checked_at(16)],
)];

/// A workload of `2^log_rows` sequences.
pub struct WideFibonacci {
    config: PcsConfig,
    twiddles: TwiddleTree<SimdBackend>,
    log_rows: u32,
}

impl WideFibonacci {
    /// Returns the channel from which prover and verifier start.
    fn channel(&self, sequences: &Sequences) -> Blake2sChannel {
        let mut channel = Blake2sChannel::default();
        self.config.mix_into(&mut channel);
        channel.mix_u32s(&[sequences.first.0, sequences.log_rows]);
        channel
    }
}

impl Workload for WideFibonacci {
    type Proof = (StarkProof<Blake2sMerkleHasher>, Sequences);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        // 96 bits of security, 16 of them from proof of work.
        let (last_layer, log_blowup, queries, fold_step) = (0, 1, 80, 1);
        let fri_config = FriConfig::new(last_layer, log_blowup, queries, fold_step);
        let config = PcsConfig { pow_bits: 16, fri_config, lifting_log_size: None };
        // The constraints have degree two, which doubles the largest domain.
        let largest = CanonicCoset::new(log_rows + 1 + log_blowup).circle_domain();
        let twiddles = SimdBackend::precompute_twiddles(largest.half_coset);
        Ok(Self { config, twiddles, log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        // The phase also covers the trace.
        zk_alloc::phase(|| {
            let sequences = Sequences::new(seed, self.log_rows);
            let mut channel = self.channel(&sequences);
            let mut commitments = CommitmentSchemeProver::<_, Blake2sMerkleChannel>::new(self.config, &self.twiddles);
            // There are no preprocessed columns, so the first tree is empty.
            for columns in [Vec::new(), sequences.trace()] {
                let mut tree = commitments.tree_builder();
                tree.extend_evals(columns);
                tree.commit(&mut channel);
            }
            let proof = stwo::prover::prove(&[&component(sequences)], &mut channel, commitments)?;
            Ok((proof, sequences))
        })
    }

    fn verify(&self, (proof, sequences): &Self::Proof) -> anyhow::Result<()> {
        let component = component(*sequences);
        let mut channel = self.channel(sequences);
        let mut commitments = CommitmentSchemeVerifier::<Blake2sMerkleChannel>::new(self.config);
        for (&commitment, sizes) in proof.commitments.iter().zip(component.trace_log_degree_bounds().iter()) {
            commitments.commit(commitment, sizes, &mut channel);
        }
        Ok(verifier::verify(&[&component], &mut channel, &mut commitments, proof.clone())?)
    }
}

fn component(sequences: Sequences) -> FrameworkComponent<Sequences> {
    FrameworkComponent::new(&mut TraceLocationAllocator::default(), sequences, SecureField::default())
}

const COLUMNS: usize = 100;

/// The statement: each of `2^log_rows` sequences starts with `first`. Only the prover knows the sequences' second
/// elements.
#[derive(Clone, Copy)]
pub struct Sequences {
    first: BaseField,
    log_rows: u32,
}

impl Sequences {
    fn new(seed: u64, log_rows: u32) -> Self {
        Self { first: BaseField::reduce(seed % u64::from(P)), log_rows }
    }

    /// Returns the columns of the trace. The second element of each row is the row's index.
    fn trace(&self) -> Vec<CircleEvaluation<SimdBackend, BaseField, BitReversedOrder>> {
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
