//! The driver, which `cargo prove-bench groth16` builds and starts.

provers_bench::driver!(prover::PROVERS);
