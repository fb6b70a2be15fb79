//! `prove-bench PROVER`: the driver. It proves nothing itself: it starts the arms' binaries and sleeps while they prove.

provers_bench::driver!(provers_bench::PROVERS);
