//! The arms that link TCMalloc.

provers_bench::arm!(tcmalloc, node::PROVERS);
