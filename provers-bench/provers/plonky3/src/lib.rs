//! Plonky3's own benchmark AIRs over KoalaBear with FRI: Poseidon2 with a Keccak Merkle tree, and Keccak-f with a
//! Poseidon2 Merkle tree.
//!
//! The AIRs and the FRI parameters are those of the examples in p3-poseidon2-air and p3-keccak-air. Each workload reuses one configuration
//! for all its proofs, as a service does, and builds the trace inside the phase. The trace is the only huge buffer of a proof.

mod whir;

use p3_challenger::{DuplexChallenger, HashChallenger, SerializingChallenger32};
use p3_commit::ExtensionMmcs;
use p3_dft::Radix2DitParallel;
use p3_field::{Field, extension::BinomialExtensionField};
use p3_fri::{FriParameters, TwoAdicFriPcs};
use p3_keccak::{Keccak256Hash, KeccakF};
use p3_keccak_air::{KeccakAir, NUM_ROUNDS};
use p3_koala_bear::{
    GenericPoseidon2LinearLayersKoalaBear as LinearLayers, KOALABEAR_POSEIDON2_HALF_FULL_ROUNDS as HALF_FULL_ROUNDS,
    KOALABEAR_POSEIDON2_PARTIAL_ROUNDS_16 as PARTIAL_ROUNDS, KOALABEAR_POSEIDON2_RC_16_EXTERNAL_FINAL,
    KOALABEAR_POSEIDON2_RC_16_EXTERNAL_INITIAL, KOALABEAR_POSEIDON2_RC_16_INTERNAL,
    KOALABEAR_S_BOX_DEGREE as SBOX_DEGREE, KoalaBear, Poseidon2KoalaBear, default_koalabear_poseidon2_16,
    default_koalabear_poseidon2_24,
};
use p3_merkle_tree::MerkleTreeMmcs;
use p3_poseidon2_air::{RoundConstants, VectorizedPoseidon2Air, generate_vectorized_trace_rows};
use p3_symmetric::{CompressionFunctionFromHasher, PaddingFreeSponge, SerializingHasher, TruncatedPermutation};
use p3_uni_stark::{Proof, StarkConfig, verify};
use provers_bench::{Prover, Workload, WorkloadSpec};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "plonky3",
    "Plonky3 0.8 over KoalaBear with FRI, and with WHIR",
    &[
        WorkloadSpec::new::<Poseidon2>("poseidon2", "Poseidon2 AIR, vectorised by 8, Keccak Merkle tree", 15)
            .checked_at(13),
        WorkloadSpec::new::<Keccak>("keccak", "Keccak-f AIR, Poseidon2 Merkle tree", 14).checked_at(12),
        WorkloadSpec::new::<whir::Whir>("whir", "WHIR opening of a multilinear polynomial, Poseidon2 Merkle tree", 21)
            .sizes(10, 21)
            .checked_at(20),
    ],
)];

/// KoalaBear's extension field, which all workloads share.
pub(crate) type Challenge = BinomialExtensionField<KoalaBear, 4>;
type Dft = Radix2DitParallel<KoalaBear>;
type ChallengeMmcs<ValMmcs> = ExtensionMmcs<KoalaBear, Challenge, ValMmcs>;
type Pcs<ValMmcs> = TwoAdicFriPcs<KoalaBear, Dft, ValMmcs, ChallengeMmcs<ValMmcs>>;
type Config<ValMmcs, Challenger> = StarkConfig<Pcs<ValMmcs>, Challenge, Challenger>;

type KeccakSponge = PaddingFreeSponge<KeccakF, 25, 17, 4>;
type KeccakMmcs = MerkleTreeMmcs<
    [KoalaBear; p3_keccak::VECTOR_LEN],
    [u64; p3_keccak::VECTOR_LEN],
    SerializingHasher<KeccakSponge>,
    CompressionFunctionFromHasher<KeccakSponge, 2, 4>,
    2,
    4,
>;
type KeccakChallenger = SerializingChallenger32<KoalaBear, HashChallenger<u8, Keccak256Hash, 32>>;
type KeccakConfig = Config<KeccakMmcs, KeccakChallenger>;

type Packing = <KoalaBear as Field>::Packing;
pub(crate) type Perm16 = Poseidon2KoalaBear<16>;
pub(crate) type Perm24 = Poseidon2KoalaBear<24>;
pub(crate) type Poseidon2Mmcs = MerkleTreeMmcs<
    Packing,
    Packing,
    PaddingFreeSponge<Perm24, 24, 16, 8>,
    TruncatedPermutation<Perm16, 2, 8, 16>,
    2,
    8,
>;
type Poseidon2Challenger = DuplexChallenger<KoalaBear, Perm24, 24, 16>;
type Poseidon2Config = Config<Poseidon2Mmcs, Poseidon2Challenger>;

const WIDTH: usize = 16;
const SBOX_REGISTERS: usize = 0;
/// Number of Poseidon2 permutations in a row of the trace.
const VECTOR_LEN: usize = 8;

type Poseidon2Air = VectorizedPoseidon2Air<
    KoalaBear,
    LinearLayers,
    WIDTH,
    SBOX_DEGREE,
    SBOX_REGISTERS,
    HALF_FULL_ROUNDS,
    PARTIAL_ROUNDS,
    VECTOR_LEN,
>;

/// Poseidon2 permutations of random states, eight to a row; commitments are Keccak-256 Merkle trees.
///
/// The trace is one uninitialised allocation with room for its low-degree extension.
pub struct Poseidon2 {
    config: KeccakConfig,
    air: Poseidon2Air,
    /// The AIR's constants, for the trace generator. The AIR does not expose them, and its own generator takes no seed.
    constants: RoundConstants<KoalaBear, WIDTH, HALF_FULL_ROUNDS, PARTIAL_ROUNDS>,
    permutations: usize,
}

impl Workload for Poseidon2 {
    type Proof = Proof<KeccakConfig>;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let sponge = KeccakSponge::new(KeccakF {});
        // The three top layers of every tree are part of the commitment, as in the example of p3-poseidon2-air.
        let mmcs = KeccakMmcs::new(SerializingHasher::new(sponge), CompressionFunctionFromHasher::new(sponge), 3);
        let challenger = KeccakChallenger::from_hasher(vec![], Keccak256Hash {});
        let constants = RoundConstants::new(
            KOALABEAR_POSEIDON2_RC_16_EXTERNAL_INITIAL,
            KOALABEAR_POSEIDON2_RC_16_INTERNAL,
            KOALABEAR_POSEIDON2_RC_16_EXTERNAL_FINAL,
        );
        let air = VectorizedPoseidon2Air::new(constants.clone());
        Ok(Self { config: config(mmcs, challenger), air, constants, permutations: VECTOR_LEN << log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        let trace = || {
            let mut rng = SmallRng::seed_from_u64(seed);
            let inputs = (0..self.permutations).map(|_| rng.random()).collect();
            generate_vectorized_trace_rows::<_, LinearLayers, _, SBOX_DEGREE, SBOX_REGISTERS, _, _, VECTOR_LEN>(
                inputs,
                &self.constants,
                LOG_BLOWUP,
            )
        };
        Ok(zk_alloc_plonky3::prove_with_trace(&self.config, &self.air, trace, &[])?)
    }

    fn verify(&self, proof: &Self::Proof) -> anyhow::Result<()> {
        Ok(verify(&self.config, &self.air, proof, &[])?)
    }
}

/// Keccak-f permutations of random states, 24 rows to each; commitments are Poseidon2 Merkle trees.
///
/// The trace is one zeroed allocation with room for its low-degree extension.
pub struct Keccak {
    config: Poseidon2Config,
    permutations: usize,
}

impl Workload for Keccak {
    type Proof = Proof<Poseidon2Config>;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let challenger = Poseidon2Challenger::new(default_koalabear_poseidon2_24());
        // Uses as many permutations as fit in `2^log_rows` rows. The generator pads the trace to that number of rows.
        Ok(Self { config: config(poseidon2_mmcs(), challenger), permutations: (1 << log_rows) / NUM_ROUNDS })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        let trace = || {
            let mut rng = SmallRng::seed_from_u64(seed);
            let inputs = (0..self.permutations).map(|_| rng.random()).collect();
            p3_keccak_air::generate_trace_rows(inputs, LOG_BLOWUP)
        };
        Ok(zk_alloc_plonky3::prove_with_trace(&self.config, &KeccakAir {}, trace, &[])?)
    }

    fn verify(&self, proof: &Self::Proof) -> anyhow::Result<()> {
        Ok(verify(&self.config, &KeccakAir {}, proof, &[])?)
    }
}

/// Base-2 logarithm of the blowup, as in Plonky3's benchmark parameters.
const LOG_BLOWUP: usize = 1;

/// Returns a configuration with Plonky3's benchmark parameters for FRI over `mmcs`.
fn config<ValMmcs: Clone, Challenger: Clone>(mmcs: ValMmcs, challenger: Challenger) -> Config<ValMmcs, Challenger> {
    let mmcs_of_challenges = ChallengeMmcs::new(mmcs.clone());
    let fri = FriParameters { log_blowup: LOG_BLOWUP, ..FriParameters::new_benchmark(mmcs_of_challenges) };
    StarkConfig::new(TwoAdicFriPcs::new(Dft::default(), mmcs, fri), challenger)
}

/// Returns the Merkle tree scheme of Plonky3's examples, which hashes with Poseidon2: width 24 for leaves and width 16 for nodes.
pub(crate) fn poseidon2_mmcs() -> Poseidon2Mmcs {
    let hash = PaddingFreeSponge::new(default_koalabear_poseidon2_24());
    Poseidon2Mmcs::new(hash, TruncatedPermutation::new(default_koalabear_poseidon2_16()), 0)
}
