//! The arm `jemalloc`.

provers_bench::arm!(jemalloc, your_prover::PROVERS);
