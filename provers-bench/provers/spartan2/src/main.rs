//! The driver, which `cargo prove-bench spartan2` builds and starts.

provers_bench::driver!(prover::PROVERS);
