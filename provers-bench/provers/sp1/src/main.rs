//! The driver, which `cargo prove-bench sp1` builds and starts.

provers_bench::driver!(prover::PROVERS);
