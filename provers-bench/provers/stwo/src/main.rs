//! The driver, which `cargo prove-bench stwo` builds and starts.

provers_bench::driver!(prover::PROVERS);
