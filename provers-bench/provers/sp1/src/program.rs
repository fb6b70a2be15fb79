//! The guest: a RISC-V program that mixes numbers into a table in memory and reveals the sum of the mixed words.

use sp1_core_executor::syscalls::SyscallCode;
use sp1_core_executor::{Instruction, Opcode, Program};
use sp1_core_machine::io::SP1Stdin;

/// Address of the first instruction. Address 0 would mean that the program has halted.
const START: u32 = 0x1000;
/// Address of the program's input.
const INPUT: u32 = 0x200;
/// Address of the table, and its number of words.
const TABLE: u32 = 0x400;
const WORDS: usize = 1 << 8;
const MULTIPLIER: u32 = 0x9e37_79b1;

/// Registers.
const ZERO: u8 = 0;
const SYSCALL: u8 = 5;
const STATE: u8 = 6;
const FACTOR: u8 = 7;
const LEFT: u8 = 8;
const OFFSET: u8 = 9;
const ARGUMENTS: [u8; 2] = [10, 11];
const WORD: u8 = 12;
const SUM: u8 = 13;

/// Words of the input: a state, a factor, and the number of rounds.
pub(crate) type Input = [u32; 3];

/// Maximum number of instructions outside the loop, and instructions in a round of the loop.
const OTHER_INSTRUCTIONS: usize = 20;
const ROUND_INSTRUCTIONS: usize = 11;

/// The input of a run of at most `instructions` instructions.
pub(crate) fn input(seed: u64, instructions: usize) -> Input {
    let rounds = (instructions - OTHER_INSTRUCTIONS) / ROUND_INSTRUCTIONS;
    [(seed as u32).wrapping_add(1), MULTIPLIER, rounds as u32]
}

/// The input as a guest reads it.
pub(crate) fn stdin(input: Input) -> SP1Stdin {
    SP1Stdin::from(&input.map(u32::to_le_bytes).concat())
}

/// Computes natively what the program commits as its public value.
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

pub(crate) fn assemble() -> Program {
    let mut code = Vec::new();
    code.extend(system_call(SyscallCode::HINT_READ, [immediate(INPUT), immediate(size_of::<Input>() as u32)]));
    for (register, address) in [STATE, FACTOR, LEFT].into_iter().zip((INPUT..).step_by(4)) {
        code.push(load(register, ZERO, address));
    }
    code.push(add(SUM, ZERO, immediate(0)));
    code.extend([
        alu(Opcode::MUL, STATE, STATE, register(FACTOR)),
        alu(Opcode::SRL, OFFSET, STATE, immediate(15)),
        alu(Opcode::XOR, STATE, STATE, register(OFFSET)),
        alu(Opcode::AND, OFFSET, OFFSET, immediate(4 * (WORDS as u32 - 1))),
        load(WORD, OFFSET, TABLE),
        alu(Opcode::XOR, WORD, WORD, register(STATE)),
        add(WORD, WORD, immediate(1)),
        store(WORD, OFFSET, TABLE),
        add(SUM, SUM, register(WORD)),
        add(LEFT, LEFT, immediate(-1_i32 as u32)),
        branch_unless_equal(LEFT, ZERO, 1 - ROUND_INSTRUCTIONS as i32),
    ]);
    // The first word of the output.
    code.extend(system_call(SyscallCode::COMMIT, [immediate(0), register(SUM)]));
    code.extend(system_call(SyscallCode::HALT, [immediate(0), immediate(0)]));

    let mut program = Program::new(code, START, START);
    // Memory that the program does not initialise may begin with any value that the prover likes.
    program.memory_image.extend((TABLE..).step_by(4).take(WORDS).map(|address| (address, 0)));
    program
}

/// The last operand of an instruction: a register's number or a value, and whether it is a value.
type Operand = (u32, bool);

fn register(number: u8) -> Operand {
    (number.into(), false)
}

fn immediate(value: u32) -> Operand {
    (value, true)
}

fn alu(opcode: Opcode, to: u8, left: u8, (right, is_immediate): Operand) -> Instruction {
    Instruction::new(opcode, to, left.into(), right, false, is_immediate)
}

fn add(to: u8, left: u8, right: Operand) -> Instruction {
    alu(Opcode::ADD, to, left, right)
}

fn load(to: u8, base: u8, offset: u32) -> Instruction {
    alu(Opcode::LW, to, base, immediate(offset))
}

fn store(from: u8, base: u8, offset: u32) -> Instruction {
    alu(Opcode::SW, from, base, immediate(offset))
}

/// Jumps by `by` instructions, forward or back, unless the registers are equal.
fn branch_unless_equal(left: u8, right: u8, by: i32) -> Instruction {
    alu(Opcode::BNE, left, right, immediate((size_of::<u32>() as i32 * by) as u32))
}

fn system_call(code: SyscallCode, arguments: [Operand; 2]) -> [Instruction; 4] {
    let [first, second] = ARGUMENTS;
    [
        add(first, ZERO, arguments[0]),
        add(second, ZERO, arguments[1]),
        add(SYSCALL, ZERO, immediate(code as u32)),
        Instruction::new(Opcode::ECALL, SYSCALL, first.into(), second.into(), false, false),
    ]
}
