//! The arms that link mimalloc.

provers_bench::arm!(mimalloc, node::PROVERS);
