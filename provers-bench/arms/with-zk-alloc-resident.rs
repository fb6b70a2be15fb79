//! The arms `zk-alloc-resident` and `zk-alloc-idle-1s`: the arena is always active, without phases.

provers_bench::arm!(zk_alloc_resident, prover::PROVERS);
