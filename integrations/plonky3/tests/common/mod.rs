// A small, complete use of Plonky3, which the tests and the doc examples share. The doc examples use `include!`, which
// allows no inner attributes.

use p3_air::{Air, AirBuilder, BaseAir, WindowAccess};
use p3_challenger::DuplexChallenger;
use p3_commit::ExtensionMmcs;
use p3_dft::Radix2DitParallel;
use p3_field::{Field, PrimeCharacteristicRing, extension::BinomialExtensionField};
use p3_fri::{FriParameters, TwoAdicFriPcs};
use p3_koala_bear::{KoalaBear, Poseidon2KoalaBear, default_koalabear_poseidon2_16};
use p3_matrix::dense::RowMajorMatrix;
use p3_merkle_tree::MerkleTreeMmcs;
use p3_symmetric::{PaddingFreeSponge, TruncatedPermutation};
use p3_uni_stark::StarkConfig;

pub(crate) type Val = KoalaBear;
type Challenge = BinomialExtensionField<Val, 4>;
type Packing = <Val as Field>::Packing;
type Perm = Poseidon2KoalaBear<16>;
type Hash = PaddingFreeSponge<Perm, 16, 8, 8>;
type Compress = TruncatedPermutation<Perm, 2, 8, 16>;
type ValMmcs = MerkleTreeMmcs<Packing, Packing, Hash, Compress, 2, 8>;
type ChallengeMmcs = ExtensionMmcs<Val, Challenge, ValMmcs>;
type Challenger = DuplexChallenger<Val, Perm, 16, 8>;
type Pcs = TwoAdicFriPcs<Val, Radix2DitParallel<Val>, ValMmcs, ChallengeMmcs>;
pub(crate) type Config = StarkConfig<Pcs, Challenge, Challenger>;

// The binary logarithm of the blowup factor: the low-degree extension's length divided by the trace's. A trace generator reserves capacity
// for the extension.
pub(crate) const LOG_BLOWUP: usize = 1;

// Returns a configuration without proof of work. With proof of work, two proofs of the same input could differ, because the search takes
// the first witness that any thread finds.
pub(crate) fn config() -> Config {
    let perm = default_koalabear_poseidon2_16();
    let val_mmcs = ValMmcs::new(Hash::new(perm.clone()), Compress::new(perm.clone()), 0);
    let fri = FriParameters {
        log_blowup: LOG_BLOWUP,
        log_final_poly_len: 0,
        max_log_arity: 1,
        num_queries: 256,
        batch_proof_of_work_bits: 0,
        commit_proof_of_work_bits: 0,
        query_proof_of_work_bits: 0,
        mmcs: ChallengeMmcs::new(val_mmcs.clone()),
    };
    let pcs = Pcs::new(Radix2DitParallel::default(), val_mmcs, fri);
    Config::new(pcs, Challenger::new(perm))
}

// An AIR with two columns of Fibonacci numbers. The public values are the first two numbers and the last.
#[derive(Clone, Copy)]
pub(crate) struct Fibonacci;

impl Fibonacci {
    fn rows(log_rows: usize) -> impl Iterator<Item = [Val; 2]> {
        let next = |&[left, right]: &[Val; 2]| Some([right, left + right]);
        std::iter::successors(Some([Val::ONE; 2]), next).take(1 << log_rows)
    }

    pub(crate) fn trace(log_rows: usize) -> RowMajorMatrix<Val> {
        let mut values = Vec::with_capacity((2 << log_rows) << LOG_BLOWUP);
        values.extend(Self::rows(log_rows).flatten());
        RowMajorMatrix::new(values, 2)
    }

    pub(crate) fn public_values(log_rows: usize) -> Vec<Val> {
        let [_, last] = Self::rows(log_rows).last().expect("it has rows");
        vec![Val::ONE, Val::ONE, last]
    }
}

impl<F> BaseAir<F> for Fibonacci {
    fn width(&self) -> usize {
        2
    }

    fn num_public_values(&self) -> usize {
        3
    }
}

impl<AB: AirBuilder> Air<AB> for Fibonacci {
    fn eval(&self, builder: &mut AB) {
        let main = builder.main();
        let (left, right) = (main.current_slice()[0], main.current_slice()[1]);
        let (next_left, next_right) = (main.next_slice()[0], main.next_slice()[1]);
        let public = builder.public_values();
        let (first_left, first_right, last) = (public[0], public[1], public[2]);

        let mut first_row = builder.when_first_row();
        first_row.assert_eq(left, first_left);
        first_row.assert_eq(right, first_right);
        let mut transition = builder.when_transition();
        transition.assert_eq(right, next_left);
        transition.assert_eq(left + right, next_right);
        builder.when_last_row().assert_eq(right, last);
    }
}

// An AIR with one column: the squares of the preprocessed column 0, 1, 2, ...
#[derive(Clone, Copy)]
pub(crate) struct Squares {
    pub(crate) log_rows: usize,
}

impl Squares {
    pub(crate) fn trace(&self) -> RowMajorMatrix<Val> {
        let squares = (0..1u64 << self.log_rows).map(|i| Val::from_u64(i).square());
        RowMajorMatrix::new_col(squares.collect())
    }
}

impl<F: Field> BaseAir<F> for Squares {
    fn width(&self) -> usize {
        1
    }

    fn preprocessed_trace(&self) -> Option<RowMajorMatrix<F>> {
        let count = (0..1u64 << self.log_rows).map(F::from_u64);
        Some(RowMajorMatrix::new_col(count.collect()))
    }

    fn preprocessed_width(&self) -> usize {
        1
    }
}

impl<AB: AirBuilder<F: Field>> Air<AB> for Squares {
    fn eval(&self, builder: &mut AB) {
        let square = builder.main().current_slice()[0];
        let number = builder.preprocessed().current_slice()[0];
        builder.assert_eq(number * number, square);
    }
}
