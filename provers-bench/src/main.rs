//! The driver without a prover: it has the tools (`report`, `compare`, `exec`, `simulate`, `replay`). A prover's package has a driver of its own.

provers_bench::driver!(&[]);
