//! The driver, which `cargo prove-bench winterfell` builds and starts.

provers_bench::driver!(prover::PROVERS);
