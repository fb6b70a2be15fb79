//! The recorder of `prove-bench record`: the system's allocator, with a note of every large request.

use provers_bench::child::recording;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: recording::Recorder = recording::Recorder;

fn main() -> ExitCode {
    recording::main(prover::PROVERS)
}
