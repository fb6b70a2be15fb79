//! The arm `jemalloc`.

provers_bench::arm!(jemalloc, bench_winterfell::PROVERS);
