//! The arms `jemalloc` and `jemalloc-tuned`.

provers_bench::arm!(jemalloc, &[]);
