//! The recorder.

provers_bench::recorder!(your_prover::PROVERS);
