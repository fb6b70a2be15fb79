//! Plonky3's example `prove_poseidon2_koala_bear_keccak` with three added lines. It prints the memory use of each stage, and writes
//! `memory.json` and `trace.json` into `target/memory`. The optional argument is the binary logarithm of the number of rows.
//!
//! ```sh
//! cargo run --release -p zk-alloc-tracing --example plonky3
//! ```

use std::error::Error;

use p3_challenger::{HashChallenger, SerializingChallenger32};
use p3_commit::ExtensionMmcs;
use p3_dft::Radix2DitParallel;
use p3_field::extension::BinomialExtensionField;
use p3_fri::{FriParameters, TwoAdicFriPcs};
use p3_keccak::{Keccak256Hash, KeccakF};
use p3_koala_bear::{
    GenericPoseidon2LinearLayersKoalaBear, KOALABEAR_POSEIDON2_HALF_FULL_ROUNDS, KOALABEAR_POSEIDON2_PARTIAL_ROUNDS_16,
    KOALABEAR_S_BOX_DEGREE, KoalaBear,
};
use p3_merkle_tree::MerkleTreeMmcs;
use p3_poseidon2_air::{RoundConstants, VectorizedPoseidon2Air};
use p3_symmetric::{CompressionFunctionFromHasher, PaddingFreeSponge, SerializingHasher};
use p3_uni_stark::{StarkConfig, prove, verify};
use rand::{SeedableRng, rngs::SmallRng};

/// The first added line: zk-alloc as the global allocator. With another allocator, only time and page faults are recorded.
#[global_allocator]
static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator::resident();

type Challenge = BinomialExtensionField<KoalaBear, 4>;
type Sponge = PaddingFreeSponge<KeccakF, 25, 17, 4>;
type Compress = CompressionFunctionFromHasher<Sponge, 2, 4>;
type Mmcs = MerkleTreeMmcs<
    [KoalaBear; p3_keccak::VECTOR_LEN],
    [u64; p3_keccak::VECTOR_LEN],
    SerializingHasher<Sponge>,
    Compress,
    2,
    4,
>;
type ChallengeMmcs = ExtensionMmcs<KoalaBear, Challenge, Mmcs>;
type Challenger = SerializingChallenger32<KoalaBear, HashChallenger<u8, Keccak256Hash, 32>>;
type Dft = Radix2DitParallel<KoalaBear>;
type Pcs = TwoAdicFriPcs<KoalaBear, Dft, Mmcs, ChallengeMmcs>;
type Config = StarkConfig<Pcs, Challenge, Challenger>;

/// The number of Poseidon2 permutations in a row of the trace.
const VECTOR_LEN: usize = 8;
type Poseidon2Air = VectorizedPoseidon2Air<
    KoalaBear,
    GenericPoseidon2LinearLayersKoalaBear,
    16,
    KOALABEAR_S_BOX_DEGREE,
    0,
    KOALABEAR_POSEIDON2_HALF_FULL_ROUNDS,
    KOALABEAR_POSEIDON2_PARTIAL_ROUNDS_16,
    VECTOR_LEN,
>;

fn main() -> Result<(), Box<dyn Error>> {
    let memory = zk_alloc_tracing::init(); // The second added line. Plonky3's example installs tracing-forest here.

    let log_rows = std::env::args().nth(1).map_or(Ok(15), |text| text.parse())?;
    prove_and_verify(log_rows)?;
    prove_and_verify(log_rows)?;

    println!("{}", memory.write("target/memory")?); // The third added line.
    Ok(())
}

/// Proves a trace of 2^`log_rows` rows with eight Poseidon2 permutations each, and verifies the proof.
pub(crate) fn prove_and_verify(log_rows: u32) -> Result<(), Box<dyn Error>> {
    let sponge = Sponge::new(KeccakF {});
    let mmcs = Mmcs::new(SerializingHasher::new(sponge), Compress::new(sponge), 3);
    let fri = FriParameters::new_benchmark(ChallengeMmcs::new(mmcs.clone()));
    let log_blowup = fri.log_blowup;
    let pcs = Pcs::new(Dft::default(), mmcs, fri);
    let config = Config::new(pcs, Challenger::from_hasher(vec![], Keccak256Hash {}));

    let constants = RoundConstants::from_rng(&mut SmallRng::seed_from_u64(1));
    let air = Poseidon2Air::new(constants);
    let trace = air.generate_vectorized_trace_rows(VECTOR_LEN << log_rows, log_blowup);
    let proof = prove(&config, &air, trace, &[])?;
    Ok(verify(&config, &air, &proof, &[])?)
}
