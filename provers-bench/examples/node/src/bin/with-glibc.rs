//! The arms `glibc`, `glibc-tuned` and `glibc-hugetlb`: the system allocator.

provers_bench::arm!(glibc, node::PROVERS);
