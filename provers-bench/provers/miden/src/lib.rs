//! Miden VM as a prover for prove-bench: a program in Miden assembly, executed and proved.

use anyhow::Context;
use miden_core::Felt;
use miden_vm::advice::AdviceInputs;
use miden_vm::crypto::hash::Poseidon2;
use miden_vm::{
    Assembler, DefaultHost, ExecutionOptions, ExecutionProof, Program, ProvingOptions, StackInputs, StackOutputs,
};
use provers_bench::{Prover, Workload, WorkloadSpec};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "miden",
    "Miden VM 0.23",
    &[WorkloadSpec::new::<Fibonacci>("fibonacci", "Fibonacci numbers, kept in memory and hashed", 17)
        .sizes(10, 20)
        .checked_at(12)],
)];

/// The program, which computes as many Fibonacci numbers as fit in `2^log_rows` cycles.
pub struct Fibonacci {
    program: Program,
    cycles: usize,
}

impl Workload for Fibonacci {
    type Proof = (ExecutionProof, Claim);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let program = Assembler::default().assemble_program(include_str!("program.masm"));
        let program = program.map_err(|report| anyhow::anyhow!("assembling: {report}"))?;
        Ok(Self { program, cycles: 1 << log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
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
            )?;
            Ok((proof, claim))
        })
    }

    fn verify(&self, (proof, claim): &Self::Proof) -> anyhow::Result<()> {
        let bits = miden_vm::verify(self.program.to_info(), claim.inputs()?, claim.outputs()?, proof.clone())?;
        anyhow::ensure!(bits >= 96, "a proof of {bits} bits");
        Ok(())
    }
}

/// How many numbers the program writes between two checks of its counter.
const CHUNK: usize = 8;

/// Number of cycles that the program takes to write and hash a chunk.
const CHUNK_CYCLES: usize = 97;

/// Number of cycles that the rest of the program takes.
const OTHER_CYCLES: usize = 60;

/// The program's input and its required output.
pub struct Claim {
    first: [Felt; 2],
    numbers: usize,
}

impl Claim {
    /// Returns a claim with as many numbers as fit in `cycles`.
    fn new(seed: u64, cycles: usize) -> Self {
        let first = [seed as u32, (seed >> 32) as u32].map(Felt::from);
        Self { first, numbers: (cycles - OTHER_CYCLES) / CHUNK_CYCLES * CHUNK }
    }

    fn inputs(&self) -> anyhow::Result<StackInputs> {
        let [a, b] = self.first;
        let numbers = Felt::from(u32::try_from(self.numbers)?);
        StackInputs::new(&[a, b, numbers]).context("the program's inputs")
    }

    /// Returns the output, computed outside the VM.
    fn outputs(&self) -> anyhow::Result<StackOutputs> {
        let [a, b] = self.first;
        let pairs = std::iter::successors(Some((a, b)), |&(a, b)| Some((a + b, a)));
        let numbers = pairs.map(|(number, _)| number).take(self.numbers).collect::<Vec<_>>();
        let digest = Poseidon2::hash_elements(&numbers);
        StackOutputs::new(digest.as_elements()).context("the program's outputs")
    }
}
