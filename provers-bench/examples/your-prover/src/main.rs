//! The driver: `cargo run --release -- mine` prints the table, `cargo run --release -- check` holds the figures.

provers_bench::driver!(your_prover::PROVERS);
