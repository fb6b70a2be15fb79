//! Your own prover as a prove-bench workload: here a small Plonky3 STARK.
//!
//! The measured code is in this library, so it is compiled once for all binaries. `src/main.rs` is the driver, and each file in `src/bin`
//! is an arm.

use anyhow::Context;
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
use provers_bench::{Prover, Workload, WorkloadSpec};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "mine",
    "a prover of my own",
    &[WorkloadSpec::new::<Cubes>("cubes", "64 chains of x -> x^3 + 1", 15).checked_at(12)],
)];

type Perm = Poseidon2KoalaBear<16>;
type Packing = <KoalaBear as Field>::Packing;
type Hash = PaddingFreeSponge<Perm, 16, 8, 8>;
type Compress = TruncatedPermutation<Perm, 2, 8, 16>;
type Mmcs = MerkleTreeMmcs<Packing, Packing, Hash, Compress, 2, 8>;
type Challenge = BinomialExtensionField<KoalaBear, 4>;
type ChallengeMmcs = ExtensionMmcs<KoalaBear, Challenge, Mmcs>;
type Pcs = TwoAdicFriPcs<KoalaBear, Radix2DitParallel<KoalaBear>, Mmcs, ChallengeMmcs>;
type Config = StarkConfig<Pcs, Challenge, DuplexChallenger<KoalaBear, Perm, 16, 8>>;

const CHAINS: usize = 64;

/// The workload: parallel chains of x -> x^3 + 1, each `2^log_rows` rows long.
pub struct Cubes {
    config: Config,
    log_blowup: usize,
    rows: usize,
}

impl Workload for Cubes {
    /// A proof and its statement: the first and last elements of the chains.
    type Proof = (p3_uni_stark::Proof<Config>, Vec<KoalaBear>);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let perm = default_koalabear_poseidon2_16();
        let mmcs = Mmcs::new(Hash::new(perm.clone()), Compress::new(perm.clone()), 0);
        let fri = FriParameters::new_benchmark(ChallengeMmcs::new(mmcs.clone()));
        let log_blowup = fri.log_blowup;
        let pcs = Pcs::new(Radix2DitParallel::default(), mmcs, fri);
        Ok(Self { config: Config::new(pcs, DuplexChallenger::new(perm)), log_blowup, rows: 1 << log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        // The phase also covers the trace, the largest buffer of a proof.
        zk_alloc::phase(|| {
            let trace = self.trace(seed);
            let (first, last) = (&trace.values[..CHAINS], &trace.values[trace.values.len() - CHAINS..]);
            let ends = [first, last].concat();
            let proof = p3_uni_stark::prove(&self.config, &CubesAir, trace, &ends).context("proving")?;
            Ok((proof, ends))
        })
    }

    fn verify(&self, (proof, ends): &Self::Proof) -> anyhow::Result<()> {
        p3_uni_stark::verify(&self.config, &CubesAir, proof, ends).context("verifying")
    }
}

impl Cubes {
    /// Returns the trace. Each row is one step, computed from the row above it.
    fn trace(&self, seed: u64) -> RowMajorMatrix<KoalaBear> {
        // The buffer has room for the low-degree extension, which the prover computes in place.
        let mut values = Vec::with_capacity((self.rows * CHAINS) << self.log_blowup);
        values.extend((0..CHAINS as u64).map(|chain| KoalaBear::from_u64(seed % (1 << 32) + chain)));
        for cell in CHAINS..self.rows * CHAINS {
            values.push(values[cell - CHAINS].cube() + KoalaBear::ONE);
        }
        RowMajorMatrix::new(values, CHAINS)
    }
}

struct CubesAir;

impl<F> BaseAir<F> for CubesAir {
    fn width(&self) -> usize {
        CHAINS
    }

    fn num_public_values(&self) -> usize {
        2 * CHAINS
    }
}

impl<AB: AirBuilder> Air<AB> for CubesAir {
    fn eval(&self, builder: &mut AB) {
        let main = builder.main();
        for chain in 0..CHAINS {
            let (x, next) = (main.current_slice()[chain], main.next_slice()[chain]);
            let (first, last) = (builder.public_values()[chain], builder.public_values()[CHAINS + chain]);
            builder.when_first_row().assert_eq(x, first);
            builder.when_transition().assert_eq(x * x * x + AB::Expr::ONE, next);
            builder.when_last_row().assert_eq(x, last);
        }
    }
}
