//! The driver, which `cargo prove-bench openvm` builds and starts.

provers_bench::driver!(prover::PROVERS);
