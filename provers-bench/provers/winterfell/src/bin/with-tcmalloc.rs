//! The arm `tcmalloc`.

provers_bench::arm!(tcmalloc, bench_winterfell::PROVERS);
