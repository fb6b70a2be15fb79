//! The arms `tcmalloc` and `tcmalloc-tuned`.

provers_bench::arm!(tcmalloc, &[]);
