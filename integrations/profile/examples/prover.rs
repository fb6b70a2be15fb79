//! Profiles three Plonky3 proofs, and compares the estimates with the allocator's counters:
//!
//!     cargo run --release -p zk-alloc-profile --example prover -- DIR

#[allow(dead_code, reason = "the tests of the adapter use the rest")]
#[path = "../../plonky3/tests/common/mod.rs"]
mod common;

use common::{Fibonacci, config};
use p3_uni_stark::verify;
use zk_alloc::profile::{self, Source};

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

const LOG_ROWS: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    zk_alloc_plonky3::init();
    profile::start(profile::MEAN_BYTES);

    let (config, public_values) = (config(), Fibonacci::public_values(LOG_ROWS));
    for _ in 0..3 {
        let trace = || Fibonacci::trace(LOG_ROWS);
        let proof = zk_alloc_plonky3::prove_with_trace(&config, &Fibonacci, trace, &public_values)?;
        verify(&config, &Fibonacci, &proof, &public_values)?;
    }
    let snapshot = profile::snapshot();
    let of_arena = || snapshot.sites.iter().filter(|site| site.source == Source::Arena);
    let (peak_bytes, fresh_bytes): (u64, u64) =
        (of_arena().map(|site| site.peak.bytes).sum(), of_arena().map(|site| site.fresh_bytes).sum());
    let stats = zk_alloc::stats();
    println!("peak of the arena: {peak_bytes} bytes estimated, {} counted", stats.peak_live_bytes);
    println!("fresh: {fresh_bytes} bytes estimated, {} counted", stats.fresh_bytes);

    let dir = std::env::args().nth(1).unwrap_or("profile".into());
    zk_alloc_profile::write(&dir)?;
    println!("{dir}/peak_space.svg shows which functions held the peak");
    Ok(())
}
