//! The binary that `prove-bench record` runs.

provers_bench::recorder!(prover::PROVERS);
