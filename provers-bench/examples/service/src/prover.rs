//! Proofs of Plonky3: Poseidon2 and Keccak-f permutations over KoalaBear, with FRI.

use std::error::Error;
use std::time::Instant;

use anyhow::{Context, ensure};
use p3_challenger::DuplexChallenger;
use p3_commit::ExtensionMmcs;
use p3_dft::Radix2DitParallel;
use p3_field::{Field, extension::BinomialExtensionField};
use p3_fri::{FriParameters, TwoAdicFriPcs};
use p3_keccak::Keccak256Hash;
use p3_keccak_air::{KeccakAir, NUM_ROUNDS};
use p3_koala_bear::{
    GenericPoseidon2LinearLayersKoalaBear, KOALABEAR_POSEIDON2_HALF_FULL_ROUNDS, KOALABEAR_POSEIDON2_PARTIAL_ROUNDS_16,
    KOALABEAR_POSEIDON2_RC_16_EXTERNAL_FINAL, KOALABEAR_POSEIDON2_RC_16_EXTERNAL_INITIAL,
    KOALABEAR_POSEIDON2_RC_16_INTERNAL, KOALABEAR_S_BOX_DEGREE, KoalaBear, Poseidon2KoalaBear,
    default_koalabear_poseidon2_16,
};
use p3_matrix::dense::RowMajorMatrix;
use p3_merkle_tree::MerkleTreeMmcs;
use p3_poseidon2_air::{RoundConstants, VectorizedPoseidon2Air, generate_vectorized_trace_rows};
use p3_symmetric::{CryptographicHasher, PaddingFreeSponge, TruncatedPermutation};
use p3_uni_stark::{StarkConfig, verify};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde::{Deserialize, Serialize};
use zk_alloc::Phase;
use zk_alloc_plonky3::prove_with_trace;

use crate::request::{Fault, Kind, Request};

type Perm = Poseidon2KoalaBear<16>;
type Packing = <KoalaBear as Field>::Packing;
type Hash = PaddingFreeSponge<Perm, 16, 8, 8>;
type Compress = TruncatedPermutation<Perm, 2, 8, 16>;
type Mmcs = MerkleTreeMmcs<Packing, Packing, Hash, Compress, 2, 8>;
type Challenge = BinomialExtensionField<KoalaBear, 4>;
type ChallengeMmcs = ExtensionMmcs<KoalaBear, Challenge, Mmcs>;
type Dft = Radix2DitParallel<KoalaBear>;
type Pcs = TwoAdicFriPcs<KoalaBear, Dft, Mmcs, ChallengeMmcs>;
type Config = StarkConfig<Pcs, Challenge, DuplexChallenger<KoalaBear, Perm, 16, 8>>;

const LOG_BLOWUP: usize = 1;

const WIDTH: usize = 16;
const SBOX_REGISTERS: usize = 0;
const HALF_FULL_ROUNDS: usize = KOALABEAR_POSEIDON2_HALF_FULL_ROUNDS;
const PARTIAL_ROUNDS: usize = KOALABEAR_POSEIDON2_PARTIAL_ROUNDS_16;
/// Poseidon2 permutations in a row of the trace.
const VECTOR_LEN: usize = 8;

type LinearLayers = GenericPoseidon2LinearLayersKoalaBear;
type Constants = RoundConstants<KoalaBear, WIDTH, HALF_FULL_ROUNDS, PARTIAL_ROUNDS>;
type Poseidon2Air = VectorizedPoseidon2Air<
    KoalaBear,
    LinearLayers,
    WIDTH,
    KOALABEAR_S_BOX_DEGREE,
    SBOX_REGISTERS,
    HALF_FULL_ROUNDS,
    PARTIAL_ROUNDS,
    VECTOR_LEN,
>;

/// A proof that was made and verified: its figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Made {
    pub proof_bytes: usize,
    /// Keccak-256 of the serialised proof. The same request gives the same proof.
    pub digest: String,
    pub proved_ms: f64,
    pub verified_ms: f64,
    /// The most bytes that were live in the arena at once, without those that were live before. If other proofs ran in the
    /// same process, it counts theirs as well.
    pub peak_bytes: usize,
    /// Bytes that the arena handed out from resident memory, and those that took page faults.
    pub reused_bytes: u64,
    pub fresh_bytes: u64,
}

/// The configuration that all proofs share, with its caches.
pub struct Prover {
    config: Config,
    poseidon2: Poseidon2Air,
    /// The AIR's constants, for the trace generator. The AIR does not expose them.
    constants: Constants,
}

impl Default for Prover {
    fn default() -> Self {
        let perm = default_koalabear_poseidon2_16();
        let mmcs = Mmcs::new(Hash::new(perm.clone()), Compress::new(perm.clone()), 0);
        // 116 queries without proofs of work: as secure as Plonky3's 100 queries with 16 bits of work. The search for a
        // witness takes the first that any thread finds, and so two proofs of one input would differ.
        let fri = FriParameters {
            log_blowup: LOG_BLOWUP,
            num_queries: 116,
            query_proof_of_work_bits: 0,
            ..FriParameters::new_benchmark(ChallengeMmcs::new(mmcs.clone()))
        };
        let constants = Constants::new(
            KOALABEAR_POSEIDON2_RC_16_EXTERNAL_INITIAL,
            KOALABEAR_POSEIDON2_RC_16_INTERNAL,
            KOALABEAR_POSEIDON2_RC_16_EXTERNAL_FINAL,
        );
        Self {
            config: Config::new(Pcs::new(Dft::default(), mmcs, fri), DuplexChallenger::new(perm)),
            poseidon2: Poseidon2Air::new(constants.clone()),
            constants,
        }
    }
}

impl Prover {
    /// Makes a proof and verifies it.
    ///
    /// # Errors
    /// The framework refused, or the proof does not verify.
    ///
    /// # Panics
    /// If the framework panics, or if the request asks for that.
    pub fn make(&self, request: &Request) -> anyhow::Result<Made> {
        let air = KeccakAir {};
        match request.size.kind {
            Kind::Poseidon2 => measured(
                || prove_with_trace(&self.config, &self.poseidon2, || self.poseidon2_trace(request), &[]),
                |proof| verify(&self.config, &self.poseidon2, proof, &[]),
            ),
            Kind::Keccak => measured(
                || prove_with_trace(&self.config, &air, || keccak_trace(request), &[]),
                |proof| verify(&self.config, &air, proof, &[]),
            ),
        }
        .with_context(|| request.size.to_string())
    }

    fn poseidon2_trace(&self, request: &Request) -> RowMajorMatrix<KoalaBear> {
        let mut rng = SmallRng::seed_from_u64(request.seed);
        let inputs = (0..VECTOR_LEN << request.size.log_rows).map(|_| rng.random()).collect();
        let trace = generate_vectorized_trace_rows::<
            _,
            LinearLayers,
            WIDTH,
            KOALABEAR_S_BOX_DEGREE,
            SBOX_REGISTERS,
            HALF_FULL_ROUNDS,
            PARTIAL_ROUNDS,
            VECTOR_LEN,
        >(inputs, &self.constants, LOG_BLOWUP);
        play(request.fault);
        trace
    }
}

fn keccak_trace(request: &Request) -> RowMajorMatrix<KoalaBear> {
    let mut rng = SmallRng::seed_from_u64(request.seed);
    // As many permutations as fit. The generator pads the rows to the next power of two.
    let permutations = (1usize << request.size.log_rows) / NUM_ROUNDS;
    let inputs = (0..permutations).map(|_| rng.random()).collect();
    let trace = p3_keccak_air::generate_trace_rows(inputs, LOG_BLOWUP);
    play(request.fault);
    trace
}

/// Plays a fault of a request, while its trace is alive.
fn play(fault: Option<Fault>) {
    match fault {
        None => {}
        Some(Fault::Panic) => panic!("the request asked for this panic"),
    }
}

/// Makes a proof, verifies and serialises it, all in one phase. So its memory comes from the arena, and the report has all
/// of it.
fn measured<P, E, V>(
    prove: impl FnOnce() -> Result<P, E>,
    verify: impl FnOnce(&P) -> Result<(), V>,
) -> anyhow::Result<Made>
where
    P: Serialize,
    E: Error + Send + Sync + 'static,
    V: Error + Send + Sync + 'static,
{
    let live_before = zk_alloc::stats().live_bytes;
    let phase = Phase::new();
    let begun = Instant::now();
    let proof = prove().context("proving")?;
    let proved = begun.elapsed();
    verify(&proof).context("verifying")?;
    let verified = begun.elapsed() - proved;
    let bytes = postcard::to_allocvec(&proof).context("serialising the proof")?;
    ensure!(!bytes.is_empty(), "the proof is empty");
    let digest: [u8; 32] = Keccak256Hash {}.hash_iter(bytes.iter().copied());
    let report = phase.report();
    drop((proof, phase));
    Ok(Made {
        proof_bytes: bytes.len(),
        digest: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        proved_ms: rounded_ms(proved),
        verified_ms: rounded_ms(verified),
        peak_bytes: report.peak_live_bytes.saturating_sub(live_before),
        reused_bytes: report.reused_bytes,
        fresh_bytes: report.fresh_bytes,
    })
}

/// Milliseconds with one decimal, for people.
pub fn rounded_ms(time: std::time::Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
