//! The arm `bump-reset`: the crate zk-alloc 0.0.9 from crates.io.

provers_bench::arm!(bump_reset, node::PROVERS);
