//! Triton VM as a prover for prove-bench: a program in Triton assembly, executed and proved.

use anyhow::Context;
use provers_bench::{Prover, Workload, WorkloadSpec};
use triton_vm::config::{self, CacheDecision};
use triton_vm::prelude::{BFieldElement, Claim, NonDeterminism, Program, Proof, PublicInput, Stark, bfe};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "triton",
    "Triton VM 9.0",
    &[WorkloadSpec::new::<Numbers>("fibonacci", "Fibonacci numbers, kept in memory", 15).sizes(10, 18).checked_at(10)],
)];

/// The program, which computes as many Fibonacci numbers as fit in `2^log_rows` rows.
pub struct Numbers {
    program: Program,
    rows: u64,
}

impl Workload for Numbers {
    type Proof = (Proof, Fibonacci);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let program = Program::from_code(include_str!("program.tasm")).context("assembling")?;
        Ok(Self { program, rows: 1 << log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        // Without this setting, Triton VM decides by the amount of free memory whether to cache the trace, so the arms might do different
        // work.
        config::overwrite_lde_trace_caching_to(CacheDecision::Cache);
        // The phase also covers the execution of the program.
        zk_alloc::phase(|| {
            let fibonacci = Fibonacci::new(seed, self.rows);
            let (input, secrets) = (PublicInput::new(fibonacci.input()), NonDeterminism::default());
            let (_, _, proof) = triton_vm::prove_program(self.program.clone(), input, secrets)?;
            Ok((proof, fibonacci))
        })
    }

    fn verify(&self, (proof, fibonacci): &Self::Proof) -> anyhow::Result<()> {
        let claim = Claim::about_program(&self.program).with_input(fibonacci.input()).with_output(fibonacci.output());
        Ok(Stark::default().verify(&claim, proof)?)
    }
}

/// How many numbers the program writes between two checks of its counter.
const CHUNK: u64 = 5;

/// Number of rows that a chunk adds to the longest tables: the processor table and the op-stack table.
const CHUNK_ROWS: u64 = 26;

/// Number of rows that the rest of the program adds to these tables.
const OTHER_ROWS: u64 = 9;

/// A Fibonacci sequence: the two numbers that precede it, and its length.
pub struct Fibonacci {
    first: [BFieldElement; 2],
    numbers: u64,
}

impl Fibonacci {
    /// Returns a sequence of as many numbers as fit in `rows` rows.
    fn new(seed: u64, rows: u64) -> Self {
        let first = [seed & u64::from(u32::MAX), seed >> 32].map(|half| bfe!(half));
        Self { first, numbers: (rows - OTHER_ROWS) / CHUNK_ROWS * CHUNK }
    }

    /// Returns the program's input.
    fn input(&self) -> Vec<BFieldElement> {
        let [a, b] = self.first;
        vec![bfe!(self.numbers), a, b]
    }

    /// Returns the program's output, computed outside the VM.
    fn output(&self) -> Vec<BFieldElement> {
        let [a, b] = (0..self.numbers).fold(self.first, |[a, b], _| [b, a + b]);
        vec![b, a]
    }
}
