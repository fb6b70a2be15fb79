//! The program in Miden assembly, and its claim.

use anyhow::Context;
use miden_core::Felt;
use miden_vm::crypto::hash::Poseidon2;
use miden_vm::{Assembler, Program, StackInputs, StackOutputs};

/// Numbers that the program writes between two checks of its counter.
const CHUNK: usize = 8;

/// Cycles that the program takes to write and hash a chunk.
const CHUNK_CYCLES: usize = 97;

/// Cycles of the rest of the program.
const OTHER_CYCLES: usize = 60;

pub(crate) fn assemble() -> anyhow::Result<Program> {
    let source = include_str!("program.masm");
    Assembler::default().assemble_program(source).map_err(|report| anyhow::anyhow!("assembling: {report}"))
}

/// The program's input, and its required output.
pub(crate) struct Claim {
    first: [Felt; 2],
    numbers: usize,
}

impl Claim {
    /// A claim with as many numbers as fit into `cycles`.
    pub(crate) fn new(seed: u64, cycles: usize) -> Self {
        let first = [seed as u32, (seed >> 32) as u32].map(Felt::from);
        Self { first, numbers: (cycles - OTHER_CYCLES) / CHUNK_CYCLES * CHUNK }
    }

    pub(crate) fn inputs(&self) -> anyhow::Result<StackInputs> {
        let [a, b] = self.first;
        let numbers = Felt::from(u32::try_from(self.numbers)?);
        StackInputs::new(&[a, b, numbers]).context("the program's inputs")
    }

    /// The output, computed outside the VM.
    pub(crate) fn outputs(&self) -> anyhow::Result<StackOutputs> {
        let [a, b] = self.first;
        let pairs = std::iter::successors(Some((a, b)), |&(a, b)| Some((a + b, a)));
        let numbers = pairs.map(|(number, _)| number).take(self.numbers).collect::<Vec<_>>();
        let digest = Poseidon2::hash_elements(&numbers);
        StackOutputs::new(digest.as_elements()).context("the program's outputs")
    }
}
