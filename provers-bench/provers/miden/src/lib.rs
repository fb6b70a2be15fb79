//! Miden VM as a prover of prove-bench: a program in Miden assembly, executed and proved.
//!
//! `program` defines the program and its claim; this file defines the workload.

mod program;

use anyhow::Context;
use miden_vm::advice::AdviceInputs;
use miden_vm::{DefaultHost, ExecutionOptions, ExecutionProof, Program, ProvingOptions};
use program::Claim;
use provers_bench::{Prover, Workload, WorkloadSpec};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover {
    name: "miden",
    about: "Miden VM 0.23",
    // Starts Rayon's pool outside any phase, so that its permanent allocations do not lie in the arena.
    init: || _ = zk_alloc::pool::build_global(),
    workloads: &[WorkloadSpec::new::<Fibonacci>("fibonacci", "Fibonacci numbers, kept in memory and hashed", 17)
        .sizes(10, 20)
        .checked_at(12)],
}];

/// The program, run for as many numbers as fit into `2^log_rows` cycles.
pub struct Fibonacci {
    program: Program,
    cycles: usize,
}

/// A proof and its claim.
pub struct Statement {
    proof: ExecutionProof,
    claim: Claim,
}

impl Workload for Fibonacci {
    type Proof = Statement;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        Ok(Self { program: program::assemble()?, cycles: 1 << log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Statement> {
        // The phase also covers the execution of the program.
        zk_alloc::phase(|| {
            let claim = Claim::new(seed, self.cycles);
            let (_, proof) = miden_vm::prove_sync(
                &self.program,
                claim.inputs()?,
                AdviceInputs::default(),
                &mut DefaultHost::default(),
                ExecutionOptions::default(),
                ProvingOptions::default(),
            )
            .context("proving")?;
            Ok(Statement { proof, claim })
        })
    }

    fn verify(&self, statement: &Statement) -> anyhow::Result<()> {
        let (claim, proof) = (&statement.claim, statement.proof.clone());
        let bits =
            miden_vm::verify(self.program.to_info(), claim.inputs()?, claim.outputs()?, proof).context("verifying")?;
        anyhow::ensure!(bits >= 96, "a proof of {bits} bits");
        Ok(())
    }
}
