//! Measures what it costs to touch memory for the first time on this machine. A prover that makes only one proof pays this cost. Run `cargo
//! run --release -p zk-alloc --example first_touch` once with `ZK_ALLOC_THP=always` and once with `never`. Run it right after another
//! process has freed its memory, and again after the machine has been idle for some seconds.

use std::process::ExitCode;
use std::time::Instant;

use zk_alloc::{HugePagesOutcome, ZkAllocator, reserve, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const ASKED_BYTES: usize = 512 << 20;
const PAGE_BYTES: usize = 4096;

fn main() -> ExitCode {
    let began = Instant::now();
    let prefaulted_bytes = reserve(ASKED_BYTES);
    let took = began.elapsed();
    if prefaulted_bytes == 0 {
        eprintln!("first_touch: the arena could not prefault {} MiB; nothing was measured", ASKED_BYTES >> 20);
        return ExitCode::FAILURE;
    }
    let each_ns = took.as_nanos() / (prefaulted_bytes / PAGE_BYTES) as u128;
    let huge_pages = stats().huge_pages.unwrap_or(HugePagesOutcome::Unavailable);
    println!("{} MiB in {took:.1?}: {each_ns} ns for each 4 KiB; huge pages: {huge_pages}", prefaulted_bytes >> 20);
    ExitCode::SUCCESS
}
