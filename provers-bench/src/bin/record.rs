//! The recorder of `prove-bench record`: the system's allocator, with a note of every large request.

use provers_bench::{PROVERS, trace};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: trace::Recorder = trace::Recorder;

fn main() -> ExitCode {
    trace::main(PROVERS)
}
