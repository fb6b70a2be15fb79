//! The arms `glibc` and `glibc-tuned`: the system allocator.

provers_bench::arm!(glibc, node::PROVERS);
