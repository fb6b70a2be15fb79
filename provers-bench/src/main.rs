//! The driver without a prover. It has the tools (`report`, `compare`, `exec`, `host`, `replay`). Each prover's
//! package has its own driver.

provers_bench::driver!(&[]);
