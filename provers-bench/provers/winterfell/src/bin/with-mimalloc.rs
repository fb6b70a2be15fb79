//! The arm `mimalloc`.

provers_bench::arm!(mimalloc, bench_winterfell::PROVERS);
