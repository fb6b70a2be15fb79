//! The arm `snmalloc`.

provers_bench::arm!(snmalloc, bench_winterfell::PROVERS);
