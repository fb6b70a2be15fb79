//! The driver without a prover. It has only the tools (`report`, `compare`, `exec`, `host`, `replay`); each prover's
//! package has its own driver.

provers_bench::driver!(&[]);
