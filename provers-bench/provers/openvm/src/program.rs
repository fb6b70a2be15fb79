//! The guest: a RISC-V program that mixes numbers into a table in memory and reveals the sum of the mixed words.

use openvm_circuit::system::memory::merkle::public_values::PUBLIC_VALUES_AS;
use openvm_instructions::exe::VmExe;
use openvm_instructions::instruction::Instruction;
use openvm_instructions::program::{DEFAULT_PC_STEP, Program};
use openvm_instructions::riscv::{RV32_IMM_AS, RV32_MEMORY_AS, RV32_REGISTER_AS, RV32_REGISTER_NUM_LIMBS};
use openvm_instructions::{LocalOpcode, PhantomDiscriminant, SystemOpcode, VmOpcode};
use openvm_rv32im_transpiler::{
    BaseAluOpcode, BranchEqualOpcode, MulOpcode, Rv32HintStoreOpcode, Rv32LoadStoreOpcode, Rv32Phantom, ShiftOpcode,
};
use openvm_stark_sdk::config::baby_bear_poseidon2::F;
use openvm_stark_sdk::openvm_stark_backend::p3_field::PrimeCharacteristicRing;

/// Address of the program's input: its length, then its words.
const INPUT: usize = 0x200;
/// Address of the table, and its number of words.
const TABLE: usize = 0x400;
const WORDS: usize = 1 << 8;
const MULTIPLIER: u32 = 0x9e37_79b1;

/// Registers.
const ZERO: usize = 0;
const STATE: usize = 5;
const FACTOR: usize = 6;
const LEFT: usize = 7;
const OFFSET: usize = 8;
const WORD: usize = 9;
const SUM: usize = 10;
const POINTER: usize = 11;

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

/// The input as a guest reads it, byte by byte.
pub(crate) fn stream(input: Input) -> Vec<Vec<F>> {
    vec![input.iter().flat_map(|word| word.to_le_bytes()).map(F::from_u8).collect()]
}

/// The number that the program reveals.
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

pub(crate) fn executable() -> VmExe<F> {
    let mut code = vec![phantom(Rv32Phantom::HintInput), add_immediate(POINTER, ZERO, INPUT as i32)];
    // Reads the length of the input, then its words.
    for register in [ZERO, STATE, FACTOR, LEFT] {
        code.push(store_hint(POINTER));
        if register != ZERO {
            code.push(load(register, POINTER, 0));
        }
        code.push(add_immediate(POINTER, POINTER, 4));
    }
    code.push(add_immediate(SUM, ZERO, 0));
    let round = [
        multiply(STATE, STATE, FACTOR),
        shift_right(OFFSET, STATE, 15),
        alu(BaseAluOpcode::XOR, STATE, STATE, OFFSET),
        alu_immediate(BaseAluOpcode::AND, OFFSET, OFFSET, 4 * (WORDS as i32 - 1)),
        load(WORD, OFFSET, TABLE),
        alu(BaseAluOpcode::XOR, WORD, WORD, STATE),
        add_immediate(WORD, WORD, 1),
        store(WORD, OFFSET, TABLE, RV32_MEMORY_AS),
        alu(BaseAluOpcode::ADD, SUM, SUM, WORD),
        add_immediate(LEFT, LEFT, -1),
        branch_unless_equal(LEFT, ZERO, 1 - ROUND_INSTRUCTIONS as i32),
    ];
    code.extend(round);
    code.push(store(SUM, ZERO, 0, PUBLIC_VALUES_AS));
    code.push(Instruction { opcode: SystemOpcode::TERMINATE.global_opcode(), ..Instruction::default() });
    Program::from_instructions(&code).into()
}

fn register(number: usize) -> F {
    F::from_usize(RV32_REGISTER_NUM_LIMBS * number)
}

/// An instruction with three operands, two address spaces and two flags.
fn instruction(opcode: VmOpcode, [a, b, c]: [F; 3], [d, e]: [u32; 2], [f, g]: [bool; 2]) -> Instruction<F> {
    Instruction::new(opcode, a, b, c, F::from_u32(d), F::from_u32(e), F::from_bool(f), F::from_bool(g))
}

fn phantom(effect: Rv32Phantom) -> Instruction<F> {
    Instruction::phantom(PhantomDiscriminant(effect as u16), F::ZERO, F::ZERO, 0)
}

/// Stores a word of the input at the address in `pointer`.
fn store_hint(pointer: usize) -> Instruction<F> {
    let opcode = Rv32HintStoreOpcode::HINT_STOREW.global_opcode();
    instruction(opcode, [F::ZERO, register(pointer), F::ZERO], [RV32_REGISTER_AS, RV32_MEMORY_AS], [false; 2])
}

fn alu(opcode: BaseAluOpcode, to: usize, left: usize, right: usize) -> Instruction<F> {
    let operands = [to, left, right].map(register);
    instruction(opcode.global_opcode(), operands, [RV32_REGISTER_AS; 2], [false; 2])
}

fn alu_immediate(opcode: BaseAluOpcode, to: usize, left: usize, right: i32) -> Instruction<F> {
    // An immediate has 24 bits; the upper ones hold its sign.
    let operands = [register(to), register(left), F::from_u32(right as u32 & 0xff_ffff)];
    instruction(opcode.global_opcode(), operands, [RV32_REGISTER_AS, RV32_IMM_AS], [false; 2])
}

fn add_immediate(to: usize, left: usize, right: i32) -> Instruction<F> {
    alu_immediate(BaseAluOpcode::ADD, to, left, right)
}

fn shift_right(to: usize, from: usize, by: usize) -> Instruction<F> {
    let operands = [register(to), register(from), F::from_usize(by)];
    instruction(ShiftOpcode::SRL.global_opcode(), operands, [RV32_REGISTER_AS, RV32_IMM_AS], [false; 2])
}

fn multiply(to: usize, left: usize, right: usize) -> Instruction<F> {
    let operands = [to, left, right].map(register);
    instruction(MulOpcode::MUL.global_opcode(), operands, [RV32_REGISTER_AS, 0], [false; 2])
}

fn load(to: usize, base: usize, offset: usize) -> Instruction<F> {
    let opcode = Rv32LoadStoreOpcode::LOADW.global_opcode();
    let operands = [register(to), register(base), F::from_usize(offset)];
    instruction(opcode, operands, [RV32_REGISTER_AS, RV32_MEMORY_AS], [true, false])
}

fn store(from: usize, base: usize, offset: usize, space: u32) -> Instruction<F> {
    let opcode = Rv32LoadStoreOpcode::STOREW.global_opcode();
    let operands = [register(from), register(base), F::from_usize(offset)];
    instruction(opcode, operands, [RV32_REGISTER_AS, space], [true, false])
}

/// Jumps by `by` instructions, forward or back, unless the registers are equal.
fn branch_unless_equal(left: usize, right: usize, by: i32) -> Instruction<F> {
    let operands = [register(left), register(right), F::from_i32(by * DEFAULT_PC_STEP as i32)];
    instruction(BranchEqualOpcode::BNE.global_opcode(), operands, [RV32_REGISTER_AS; 2], [false; 2])
}
