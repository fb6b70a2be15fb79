//! The driver, which `cargo prove-bench miden` builds and starts.

provers_bench::driver!(prover::PROVERS);
