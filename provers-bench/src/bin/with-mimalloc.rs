//! The arms `mimalloc` and `mimalloc-tuned`.

provers_bench::arm!(mimalloc, &[]);
