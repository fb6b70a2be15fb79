//! Profiles three proofs of Keccak by Plonky3, and compares the estimates with the allocator's counters:
//!
//!     cargo run --release -p zk-alloc-profile --example prover -- DIR

use p3_challenger::DuplexChallenger;
use p3_commit::ExtensionMmcs;
use p3_dft::Radix2DitParallel;
use p3_field::{Field, extension::BinomialExtensionField};
use p3_fri::{FriParameters, TwoAdicFriPcs};
use p3_keccak_air::{KeccakAir, generate_trace_rows};
use p3_koala_bear::{KoalaBear, Poseidon2KoalaBear, default_koalabear_poseidon2_16};
use p3_merkle_tree::MerkleTreeMmcs;
use p3_symmetric::{PaddingFreeSponge, TruncatedPermutation};
use p3_uni_stark::{StarkConfig, verify};
use zk_alloc::profile::{self, Source};

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

type Val = KoalaBear;
type Challenge = BinomialExtensionField<Val, 4>;
type Packing = <Val as Field>::Packing;
type Perm = Poseidon2KoalaBear<16>;
type Hash = PaddingFreeSponge<Perm, 16, 8, 8>;
type Compress = TruncatedPermutation<Perm, 2, 8, 16>;
type ValMmcs = MerkleTreeMmcs<Packing, Packing, Hash, Compress, 2, 8>;
type ChallengeMmcs = ExtensionMmcs<Val, Challenge, ValMmcs>;
type Challenger = DuplexChallenger<Val, Perm, 16, 8>;
type Pcs = TwoAdicFriPcs<Val, Radix2DitParallel<Val>, ValMmcs, ChallengeMmcs>;
type Config = StarkConfig<Pcs, Challenge, Challenger>;

/// Keccak-f permutations in a proof: with 24 rows each, they just fit 2^12 rows.
const PERMUTATIONS: u64 = 170;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    zk_alloc_plonky3::init();
    profile::start(profile::MEAN_BYTES);

    let perm = default_koalabear_poseidon2_16();
    let val_mmcs = ValMmcs::new(Hash::new(perm.clone()), Compress::new(perm.clone()), 0);
    let fri = FriParameters::new_benchmark(ChallengeMmcs::new(val_mmcs.clone()));
    let log_blowup = fri.log_blowup;
    let pcs = Pcs::new(Radix2DitParallel::default(), val_mmcs, fri);
    let config = Config::new(pcs, Challenger::new(perm));

    for round in 0..3u64 {
        let trace = || {
            let inputs = (0..PERMUTATIONS).map(|i| std::array::from_fn(|word| (round << 32) + 25 * i + word as u64));
            generate_trace_rows::<Val>(inputs.collect(), log_blowup)
        };
        let proof = zk_alloc_plonky3::prove_with_trace(&config, &KeccakAir {}, trace, &[])?;
        verify(&config, &KeccakAir {}, &proof, &[])?;
    }
    let snapshot = profile::snapshot();
    let of_arena = snapshot.sites.iter().filter(|site| site.source == Source::Arena);
    let (mut peak_bytes, mut fresh_bytes) = (0, 0);
    of_arena
        .for_each(|site| (peak_bytes, fresh_bytes) = (peak_bytes + site.peak.bytes, fresh_bytes + site.fresh_bytes));
    let stats = zk_alloc::stats();
    println!("peak of the arena: {peak_bytes} bytes estimated, {} counted", stats.peak_live_bytes);
    println!("fresh: {fresh_bytes} bytes estimated, {} counted", stats.fresh_bytes);

    let dir = std::env::args().nth(1).unwrap_or("profile".into());
    zk_alloc_profile::write(&dir)?;
    println!("{dir}/peak_space.svg shows which functions held the peak");
    Ok(())
}
