//! The driver. `cargo prove-bench --package FOLDER mine` prints the table; `check` instead of `mine` checks the
//! figures.

provers_bench::driver!(your_prover::PROVERS);
