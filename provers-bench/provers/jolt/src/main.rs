//! The driver, which `cargo prove-bench jolt` builds and starts.

provers_bench::driver!(prover::PROVERS);
