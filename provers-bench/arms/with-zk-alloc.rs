//! The arm `zk-alloc`, and the arms that differ from it only in settings: our arena over the system allocator.

provers_bench::arm!(zk_alloc, prover::PROVERS);
