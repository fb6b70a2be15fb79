//! The driver, which `cargo prove-bench --package provers-bench/examples/node node` builds and starts.

provers_bench::driver!(node::PROVERS);
