//! The arm `zk-alloc` and its variants: our arena over the system allocator, for the threads of the prover only.
//!
//! `provers_bench::arm!` would install the arena for all threads of the process. A node wants `Participants::Pool`, so
//! that its own threads stay with the system allocator while a proof is made.

use provers_bench::arms::zk_alloc;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: zk_alloc::Allocator = zk_alloc::ALLOCATOR.participants(::zk_alloc::Participants::Pool);

fn main() -> ExitCode {
    provers_bench::child::main(prover::PROVERS, zk_alloc::installed())
}
