//! The driver. `cargo prove-bench --package FOLDER mine` prints the table. With `check` instead of `mine`, it compares the
//! results with a baseline.

provers_bench::driver!(your_prover::PROVERS);
