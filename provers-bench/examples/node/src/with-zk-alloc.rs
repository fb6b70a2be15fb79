//! The arm `zk-alloc` and its variants: the arena, backed by the system allocator, for the prover's threads only.
//!
//! `provers_bench::arm!` would install the arena for all threads of the process. A node needs `Participants::Pool`, so that its own
//! threads keep using the system allocator during a proof.

use provers_bench::arms::zk_alloc;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: zk_alloc::Allocator = zk_alloc::ALLOCATOR.participants(::zk_alloc::Participants::Pool);

fn main() -> ExitCode {
    provers_bench::child::main(prover::PROVERS, zk_alloc::installed())
}
