//! The arm `snmalloc`.

provers_bench::arm!(snmalloc, node::PROVERS);
