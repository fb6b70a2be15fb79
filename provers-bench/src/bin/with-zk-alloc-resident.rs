//! The arm `zk-alloc-resident`: our arena takes part always, without phases.

provers_bench::arm!(zk_alloc_resident, &[]);
