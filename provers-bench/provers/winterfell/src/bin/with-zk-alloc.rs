//! The arm `zk-alloc`.

provers_bench::arm!(zk_alloc, bench_winterfell::PROVERS);
