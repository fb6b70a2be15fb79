//! A complete host program: Keccak-f proofs on KoalaBear, with zk-alloc as the allocator.
//!
//! `cargo run --release -p zk-alloc-plonky3 --example prove`

use std::time::Instant;

use p3_challenger::DuplexChallenger;
use p3_commit::ExtensionMmcs;
use p3_dft::Radix2DitParallel;
use p3_field::{Field, extension::BinomialExtensionField};
use p3_fri::{FriParameters, TwoAdicFriPcs};
use p3_keccak_air::{KeccakAir, generate_trace_rows};
use p3_koala_bear::{KoalaBear, Poseidon2KoalaBear, default_koalabear_poseidon2_16};
use p3_matrix::dense::RowMajorMatrix;
use p3_merkle_tree::MerkleTreeMmcs;
use p3_symmetric::{PaddingFreeSponge, TruncatedPermutation};
use p3_uni_stark::{StarkConfig, verify};

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

    let perm = default_koalabear_poseidon2_16();
    let val_mmcs = ValMmcs::new(Hash::new(perm.clone()), Compress::new(perm.clone()), 0);
    let fri = FriParameters::new_benchmark(ChallengeMmcs::new(val_mmcs.clone()));
    let log_blowup = fri.log_blowup;
    let pcs = Pcs::new(Radix2DitParallel::default(), val_mmcs, fri);
    let config = Config::new(pcs, Challenger::new(perm));

    for round in 1..=3 {
        let trace = || trace(round, log_blowup);
        report(&format!("prove_with_trace, proof {round}"), || {
            let proof = zk_alloc_plonky3::prove_with_trace(&config, &KeccakAir {}, trace, &[])?;
            verify(&config, &KeccakAir {}, &proof, &[])?;
            Ok(())
        })?;
    }

    report("prove alone: the trace is elsewhere", || {
        let proof = zk_alloc_plonky3::prove(&config, &KeccakAir {}, trace(4, log_blowup), &[])?;
        verify(&config, &KeccakAir {}, &proof, &[])?;
        Ok(())
    })
}

/// The permutations of a counter that restarts in every round.
fn trace(round: u64, log_blowup: usize) -> RowMajorMatrix<Val> {
    let inputs = (0..PERMUTATIONS).map(|i| std::array::from_fn(|word| (round << 32) + 25 * i + word as u64));
    generate_trace_rows(inputs.collect(), log_blowup)
}

/// Runs `proof` and prints how long it took and how much of its memory the arena served.
fn report(
    what: &str,
    proof: impl FnOnce() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (before, start) = (zk_alloc::stats(), Instant::now());
    proof()?;
    let (elapsed, after) = (start.elapsed(), zk_alloc::stats());
    println!(
        "{what}: verified, {:.0} ms, {:.1} MB in {} allocations from the arena",
        elapsed.as_secs_f64() * 1e3,
        (after.arena_bytes - before.arena_bytes) as f64 / 1e6,
        after.arena_allocations - before.arena_allocations,
    );
    Ok(())
}
