//! The arms that link jemalloc.

provers_bench::arm!(jemalloc, node::PROVERS);
