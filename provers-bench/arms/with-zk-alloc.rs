//! The arms `zk-alloc`, `zk-alloc-thp-always`, `zk-alloc-thp-never` and `zk-alloc-retain-0`: our arena over the system allocator.

provers_bench::arm!(zk_alloc, prover::PROVERS);
