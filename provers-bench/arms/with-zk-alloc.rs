//! The arm `zk-alloc`, and the arms that differ from it only in settings: the arena, backed by the system allocator.

provers_bench::arm!(zk_alloc, prover::PROVERS);
