//! The guest that SP1 and OpenVM prove: a RISC-V program that mixes numbers into a table in memory and reveals the sum of the mixed words.
//! The package of each machine adds the instructions that read the input and reveal the sum, and encodes the whole program.

use Op::{Add, And, BranchUnlessEqual, Load, Mul, Srl, Store, Xor};
use Operand::{Register, Value};

/// Address of the program's input.
pub(crate) const INPUT: i32 = 0x200;
/// Address of the table, and its number of words.
pub(crate) const TABLE: i32 = 0x400;
pub(crate) const WORDS: usize = 1 << 8;
const MULTIPLIER: u32 = 0x9e37_79b1;

/// Numbers of the guest's registers. Numbers 5, 10 and 11 are reserved for the instructions that each package adds.
pub(crate) const ZERO: u8 = 0;
pub(crate) const STATE: u8 = 6;
pub(crate) const FACTOR: u8 = 7;
pub(crate) const LEFT: u8 = 8;
const OFFSET: u8 = 9;
const WORD: u8 = 12;
pub(crate) const SUM: u8 = 13;

#[derive(Clone, Copy)]
pub(crate) enum Op {
    Mul,
    Srl,
    Xor,
    And,
    Add,
    Load,
    Store,
    BranchUnlessEqual,
}

#[derive(Clone, Copy)]
pub(crate) enum Operand {
    Register(u8),
    Value(i32),
}

/// An operation, two registers and the last operand. The first register is the target, or contains the value to store. The second is the
/// left operand, or the base of the address. A branch compares the two registers, and its last operand is an offset in bytes.
pub(crate) type Instruction = (Op, u8, u8, Operand);

/// One iteration of the loop.
pub(crate) const ROUND: [Instruction; 11] = [
    (Mul, STATE, STATE, Register(FACTOR)),
    (Srl, OFFSET, STATE, Value(15)),
    (Xor, STATE, STATE, Register(OFFSET)),
    (And, OFFSET, OFFSET, Value(4 * (WORDS as i32 - 1))),
    (Load, WORD, OFFSET, Value(TABLE)),
    (Xor, WORD, WORD, Register(STATE)),
    (Add, WORD, WORD, Value(1)),
    (Store, WORD, OFFSET, Value(TABLE)),
    (Add, SUM, SUM, Register(WORD)),
    (Add, LEFT, LEFT, Value(-1)),
    // Jumps back to the first instruction of the round.
    (BranchUnlessEqual, LEFT, ZERO, Value(-40)),
];

/// Maximum number of instructions outside the loop.
const OTHER_INSTRUCTIONS: usize = 20;

/// The words of the input: a state, a factor, and the number of rounds.
pub(crate) type Input = [u32; 3];

/// Returns the input of a run of at most `instructions` instructions.
pub(crate) fn input(seed: u64, instructions: usize) -> Input {
    let rounds = (instructions - OTHER_INSTRUCTIONS) / ROUND.len();
    [(seed as u32).wrapping_add(1), MULTIPLIER, rounds as u32]
}

/// Computes natively the number that the program reveals.
pub(crate) fn run([mut state, factor, rounds]: Input) -> u32 {
    let (mut table, mut sum) = ([0_u32; WORDS], 0_u32);
    for _ in 0..rounds {
        state = state.wrapping_mul(factor);
        let folded = state >> 15;
        state ^= folded;
        let word = &mut table[(folded as usize >> 2) % WORDS];
        *word = (*word ^ state).wrapping_add(1);
        sum = sum.wrapping_add(*word);
    }
    sum
}
