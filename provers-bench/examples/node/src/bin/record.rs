//! The recorder of `prove-bench record`.

provers_bench::recorder!(node::PROVERS);
