//! The driver: `cargo prove-bench --package FOLDER mine` prints the table, `check` in place of `mine` holds the figures.

provers_bench::driver!(your_prover::PROVERS);
