//! The driver, which `cargo prove-bench triton` builds and starts.

provers_bench::driver!(prover::PROVERS);
