//! Plonky3 proofs: Keccak-f permutations over KoalaBear, with FRI. Replace this module with your own prover.

use std::time::Instant;

use anyhow::Context;
use p3_challenger::DuplexChallenger;
use p3_commit::ExtensionMmcs;
use p3_dft::Radix2DitParallel;
use p3_field::{Field, extension::BinomialExtensionField};
use p3_fri::{FriParameters, TwoAdicFriPcs};
use p3_keccak::Keccak256Hash;
use p3_keccak_air::{KeccakAir, NUM_ROUNDS, generate_trace_rows};
use p3_koala_bear::{KoalaBear, Poseidon2KoalaBear, default_koalabear_poseidon2_16};
use p3_merkle_tree::MerkleTreeMmcs;
use p3_symmetric::{CryptographicHasher, PaddingFreeSponge, TruncatedPermutation};
use p3_uni_stark::{StarkConfig, verify};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde::{Deserialize, Serialize};
use zk_alloc::Phase;

type Perm = Poseidon2KoalaBear<16>;
type Packing = <KoalaBear as Field>::Packing;
type Hash = PaddingFreeSponge<Perm, 16, 8, 8>;
type Compress = TruncatedPermutation<Perm, 2, 8, 16>;
type Mmcs = MerkleTreeMmcs<Packing, Packing, Hash, Compress, 2, 8>;
type Challenge = BinomialExtensionField<KoalaBear, 4>;
type ChallengeMmcs = ExtensionMmcs<KoalaBear, Challenge, Mmcs>;
type Pcs = TwoAdicFriPcs<KoalaBear, Radix2DitParallel<KoalaBear>, Mmcs, ChallengeMmcs>;
type Config = StarkConfig<Pcs, Challenge, DuplexChallenger<KoalaBear, Perm, 16, 8>>;

const LOG_BLOWUP: usize = 1;
/// An environment variable for tests. It contains a seed, and a request with this seed panics while its trace is live.
const PANIC_SEED: &str = "PROVING_SERVICE_PANIC_SEED";

/// A request for a proof.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The base-2 logarithm of the number of rows. Proofs of the same size need the same amount of memory.
    pub log_rows: u32,
    /// The seed from which the statement is derived.
    #[serde(default)]
    pub seed: u64,
}

impl Request {
    /// Valid sizes: from a single permutation of 24 rows to proofs that take about 12 GB.
    pub const LOG_ROWS: std::ops::RangeInclusive<u32> = 5..=20;
    /// The size of the proof that the service makes when it starts. Choose a size that takes a fraction of a second and fits any limit.
    pub const FIRST_LOG_ROWS: u32 = 10;
}

/// The measurements of a proof that was made and verified.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Made {
    log_rows: u32,
    seed: u64,
    proof_bytes: usize,
    /// Keccak-256 of the serialised proof. The same request always gives the same proof.
    digest: String,
    proved_ms: u64,
    /// Peak live bytes in the arena, minus the bytes that were live before the proof. Includes the memory of other proofs that ran in the
    /// process at the same time.
    pub peak_bytes: usize,
    /// Bytes that the arena served from resident memory, and bytes that it served from fresh pages, which cost page faults.
    reused_bytes: u64,
    fresh_bytes: u64,
    /// Whether no other proof ran in the process at the same time. If so, `peak_bytes` is the peak of this proof alone.
    pub is_alone: bool,
}

/// The configuration that all proofs share, with its caches.
pub struct Prover(Config);

impl Prover {
    pub fn new() -> Self {
        let perm = default_koalabear_poseidon2_16();
        let mmcs = Mmcs::new(Hash::new(perm.clone()), Compress::new(perm.clone()), 0);
        // 116 queries without proof of work are as secure as Plonky3's 100 queries with 16 bits of work. With proof of work, two proofs of
        // the same input would differ, because the search takes the first witness that any thread finds.
        let fri = FriParameters {
            log_blowup: LOG_BLOWUP,
            num_queries: 116,
            query_proof_of_work_bits: 0,
            ..FriParameters::new_benchmark(ChallengeMmcs::new(mmcs.clone()))
        };
        Self(Config::new(Pcs::new(Radix2DitParallel::default(), mmcs, fri), DuplexChallenger::new(perm)))
    }

    /// Makes, verifies and serialises a proof in one phase, so all of its memory comes from the arena and is counted in the report.
    ///
    /// # Errors
    /// Fails if Plonky3 returns an error or the proof does not verify.
    pub fn make(&self, request: &Request) -> anyhow::Result<Made> {
        let trace = || {
            let mut rng = SmallRng::seed_from_u64(request.seed);
            // Uses as many permutations as fit in `2^log_rows` rows. The generator pads the trace to that number of rows.
            let inputs = (0..(1usize << request.log_rows) / NUM_ROUNDS).map(|_| rng.random()).collect();
            let trace = generate_trace_rows(inputs, LOG_BLOWUP);
            assert!(std::env::var(PANIC_SEED) != Ok(request.seed.to_string()), "the request asked for this panic");
            trace
        };
        let live_before = zk_alloc::stats().live_bytes;
        let phase = Phase::new();
        let begun = Instant::now();
        let proof = zk_alloc_plonky3::prove_with_trace(&self.0, &KeccakAir {}, trace, &[]).context("proving")?;
        let proved_ms = begun.elapsed().as_millis() as u64;
        verify(&self.0, &KeccakAir {}, &proof, &[]).context("verifying")?;
        let bytes = postcard::to_allocvec(&proof).context("serialising the proof")?;
        let digest: [u8; 32] = Keccak256Hash {}.hash_iter(bytes.iter().copied());
        let (proof_bytes, report) = (bytes.len(), phase.report());
        drop((proof, bytes, phase));
        Ok(Made {
            log_rows: request.log_rows,
            seed: request.seed,
            proof_bytes,
            digest: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            proved_ms,
            peak_bytes: report.peak_live_bytes.saturating_sub(live_before),
            reused_bytes: report.reused_bytes,
            fresh_bytes: report.fresh_bytes,
            is_alone: true,
        })
    }
}
