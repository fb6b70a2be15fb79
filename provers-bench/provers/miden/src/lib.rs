//! Miden VM as prover of prove-bench: a program of its own assembly, executed and proved.
//!
//! `program` has the program and what it claims, and this file the workload.

mod program;

use anyhow::Context;
use miden_vm::advice::AdviceInputs;
use miden_vm::{DefaultHost, ExecutionOptions, ExecutionProof, Program, ProvingOptions};
use program::Claim;
use provers_bench::{Prover, Workload, WorkloadSpec};

/// The prover, as the driver and every arm know it.
pub static PROVERS: &[Prover] = &[Prover {
    name: "miden",
    about: "Miden VM 0.23",
    // Rayon's pool outside any phase: nothing that it keeps for life then lies in the arena.
    init: || _ = zk_alloc::pool::build_global(),
    workloads: &[WorkloadSpec::new::<Fibonacci>("fibonacci", "Fibonacci numbers, kept in memory and hashed", 17)
        .sizes(10, 20)
        .checked_at(12)],
}];

/// The program, run for as many numbers as fit in `2^log_rows` cycles.
pub struct Fibonacci {
    program: Program,
    cycles: usize,
}

/// A proof, and what it is a proof of.
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
        // The phase holds the program's execution too.
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
