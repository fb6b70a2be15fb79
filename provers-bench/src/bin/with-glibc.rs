//! The arms `glibc` and `glibc-tuned`: the system's allocator.

provers_bench::arm!(glibc, &[]);
