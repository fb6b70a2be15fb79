//! The driver, which `cargo prove-bench NAME` builds and starts.

provers_bench::driver!(prover::PROVERS);
