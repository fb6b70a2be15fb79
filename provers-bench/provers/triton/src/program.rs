//! The program, in Triton's assembly, and what it claims.

use anyhow::Context;
use triton_vm::prelude::{BFieldElement, Program, bfe};

/// How many numbers the program writes between two looks at its counter.
const CHUNK: u64 = 5;

/// The rows of the longest tables that a chunk takes: those of cycles, and of changes to the stack.
const CHUNK_ROWS: u64 = 26;

/// The rows there of the rest of the program.
const OTHER_ROWS: u64 = 9;

pub(crate) fn assemble() -> anyhow::Result<Program> {
    Program::from_code(include_str!("program.tasm")).context("assembling")
}

/// Which two numbers come before those in memory, and how many those are.
pub(crate) struct Fibonacci {
    first: [BFieldElement; 2],
    numbers: u64,
}

impl Fibonacci {
    /// As many numbers as fit in `rows`.
    pub(crate) fn new(seed: u64, rows: u64) -> Self {
        let first = [seed & u64::from(u32::MAX), seed >> 32].map(|half| bfe!(half));
        Self { first, numbers: (rows - OTHER_ROWS) / CHUNK_ROWS * CHUNK }
    }

    /// The program's input.
    pub(crate) fn input(&self) -> Vec<BFieldElement> {
        let [a, b] = self.first;
        vec![bfe!(self.numbers), a, b]
    }

    /// The program's output, computed outside the VM.
    pub(crate) fn output(&self) -> Vec<BFieldElement> {
        let [a, b] = (0..self.numbers).fold(self.first, |[a, b], _| [b, a + b]);
        vec![b, a]
    }
}
