//! The arm `zk-alloc-resident`: our arena is always active, without phases.

provers_bench::arm!(zk_alloc_resident, &[]);
