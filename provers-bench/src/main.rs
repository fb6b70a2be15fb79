//! The driver without a prover: the tools beside the bench. A prover's package has a driver of its own.

provers_bench::driver!(&[]);
