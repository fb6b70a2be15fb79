//! The driver, which `cargo prove-bench plonky3` builds and starts.

provers_bench::driver!(prover::PROVERS);
