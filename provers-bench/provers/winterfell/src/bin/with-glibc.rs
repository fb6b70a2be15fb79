//! The arm `glibc`.

provers_bench::arm!(glibc, bench_winterfell::PROVERS);
