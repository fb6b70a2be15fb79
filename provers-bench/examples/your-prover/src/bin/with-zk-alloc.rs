//! The arm `zk-alloc`.

provers_bench::arm!(zk_alloc, your_prover::PROVERS);
