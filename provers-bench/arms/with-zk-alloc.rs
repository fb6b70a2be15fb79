//! The arms `zk-alloc`, `zk-alloc-thp-always` and `zk-alloc-thp-never`: our arena over the system allocator.

provers_bench::arm!(zk_alloc, prover::PROVERS);
