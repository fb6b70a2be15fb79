//! The program in Triton assembly, and its claim.

use anyhow::Context;
use triton_vm::prelude::{BFieldElement, Program, bfe};

/// Numbers that the program writes between two checks of its counter.
const CHUNK: u64 = 5;

/// Rows that a chunk takes in the longest tables, those of cycles and of stack changes.
const CHUNK_ROWS: u64 = 26;

/// Rows that the rest of the program takes in these tables.
const OTHER_ROWS: u64 = 9;

pub(crate) fn assemble() -> anyhow::Result<Program> {
    Program::from_code(include_str!("program.tasm")).context("assembling")
}

/// The two numbers that precede those in memory, and the count of numbers in memory.
pub(crate) struct Fibonacci {
    first: [BFieldElement; 2],
    numbers: u64,
}

impl Fibonacci {
    /// As many numbers as fit into `rows`.
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
