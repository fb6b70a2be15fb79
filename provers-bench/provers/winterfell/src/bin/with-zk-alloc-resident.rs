//! The arm `zk-alloc-resident`.

provers_bench::arm!(zk_alloc_resident, bench_winterfell::PROVERS);
