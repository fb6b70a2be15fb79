//! The arm `glibc`.

provers_bench::arm!(glibc, your_prover::PROVERS);
