//! The arms `zk-alloc-resident` and `zk-alloc-idle-1s`: our arena is always active, without phases.

provers_bench::arm!(zk_alloc_resident, node::PROVERS);
