//! The driver: `cargo run --release -- winterfell` prints the table, `cargo run --release -- check` holds the figures.

provers_bench::driver!(bench_winterfell::PROVERS);
