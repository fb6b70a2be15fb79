//! The driver, which `cargo prove-bench plonky2` builds and starts.

provers_bench::driver!(prover::PROVERS);
