//! The driver, which `cargo prove-bench halo2` builds and starts.

provers_bench::driver!(prover::PROVERS);
