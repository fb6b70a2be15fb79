//! SP1 as a prover for prove-bench: a run of RISC-V instructions, proved by its core prover on the CPU.

mod guest;

use anyhow::anyhow;
use guest::{FACTOR, INPUT, Input, LEFT, Op, Operand, ROUND, STATE, SUM, TABLE, WORDS, ZERO};
use provers_bench::{Prover, Workload, WorkloadSpec};
use sp1_core_executor::syscalls::SyscallCode;
use sp1_core_executor::{Instruction, Opcode, Program, SP1Context};
use sp1_core_machine::io::SP1Stdin;
use sp1_core_machine::riscv::RiscvAir;
use sp1_core_machine::utils::prove_core;
use sp1_stark::air::PublicValues;
use sp1_stark::baby_bear_poseidon2::BabyBearPoseidon2;
use sp1_stark::{
    CpuProver, MachineProof, MachineProver, SP1CoreOpts, SplitOpts, StarkGenericConfig, StarkProvingKey,
    StarkVerifyingKey, Val, Word,
};
use std::borrow::Borrow;

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "sp1",
    "SP1 5.2, core prover",
    &[WorkloadSpec::new::<Run>("rv32im", "a run of RISC-V instructions on SP1", 16)
        .sizes(12, 22)
        .checked_at(12)
        .processes_at_most(2)],
)];

type Config = BabyBearPoseidon2;
type Field = Val<Config>;

/// A machine with its program, which executes at most `2^log_rows` instructions.
pub struct Run {
    prover: CpuProver<Config, RiscvAir<Field>>,
    proving_key: StarkProvingKey<Config>,
    verifying_key: StarkVerifyingKey<Config>,
    program: Program,
    instructions: usize,
}

/// Returns SP1's defaults for machines with 32 GiB or less. They are fixed here, because SP1 derives them from the
/// machine's memory and the environment.
fn options() -> SP1CoreOpts {
    SP1CoreOpts {
        shard_size: 1 << 19,
        shard_batch_size: 1,
        split_opts: SplitOpts::new(1 << 12),
        trace_gen_workers: 1,
        checkpoints_channel_capacity: 128,
        records_and_traces_channel_capacity: 1,
    }
}

impl Workload for Run {
    /// A proof, and the number that the program reveals.
    type Proof = (MachineProof<Config>, u32);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let program = assemble();
        let prover = CpuProver::new(RiscvAir::machine(Config::new()));
        let (proving_key, verifying_key) = prover.setup(&program);
        Ok(Self { prover, proving_key, verifying_key, program, instructions: 1 << log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        // The phase also covers the execution of the program and its traces.
        zk_alloc::phase(|| {
            let input = guest::input(seed, self.instructions);
            let (proof, ..) = prove_core(
                &self.prover,
                &self.proving_key,
                &self.verifying_key,
                self.program.clone(),
                &SP1Stdin::from(&input.map(u32::to_le_bytes).concat()),
                options(),
                SP1Context::default(),
                // Without shapes, the traces are padded to powers of two, not to the sizes that SP1's recursion expects.
                None,
                None,
            )?;
            Ok((proof, guest::run(input)))
        })
    }

    fn verify(&self, (proof, revealed): &Self::Proof) -> anyhow::Result<()> {
        let machine = self.prover.machine();
        let mut challenger = machine.config().challenger();
        machine
            .verify(&self.verifying_key, proof, &mut challenger)
            .map_err(|error| anyhow!("verifying the shards: {error}"))?;

        // The machine checks each shard. This code checks that the shards form one run of the program, from start to
        // halt.
        let mut pc = self.verifying_key.pc_start;
        let mut output = Vec::new();
        for shard in &proof.shard_proofs {
            let values: &PublicValues<Word<Field>, Field> = shard.public_values.as_slice().borrow();
            anyhow::ensure!(values.start_pc == pc, "a shard does not begin where the last one ended");
            anyhow::ensure!(values.exit_code == Field::default(), "the run failed");
            pc = values.next_pc;
            let committed = values.commit_digest_bytes();
            anyhow::ensure!(output.iter().all(|byte| *byte == 0) || output == committed, "two outputs");
            output = committed;
        }
        anyhow::ensure!(pc == Field::default(), "the run did not halt");
        anyhow::ensure!(output.starts_with(&revealed.to_le_bytes()), "the run revealed another number");
        Ok(())
    }
}

/// Address of the first instruction. A program counter of 0 would mean that the program has halted.
const START: u32 = 0x1000;

fn assemble() -> Program {
    let mut code =
        system_call(SyscallCode::HINT_READ, [Operand::Value(INPUT), Operand::Value(size_of::<Input>() as i32)]);
    for (register, address) in [STATE, FACTOR, LEFT].into_iter().zip((INPUT..).step_by(4)) {
        code.push(encode((Op::Load, register, ZERO, Operand::Value(address))));
    }
    code.push(encode((Op::Add, SUM, ZERO, Operand::Value(0))));
    code.extend(ROUND.map(encode));
    // Commits to the sum as the first word of the output.
    code.extend(system_call(SyscallCode::COMMIT, [Operand::Value(0), Operand::Register(SUM)]));
    code.extend(system_call(SyscallCode::HALT, [Operand::Value(0); 2]));

    let mut program = Program::new(code, START, START);
    // Initialises the table to zero, because the prover may choose the initial value of any memory that the program does not initialise.
    program.memory_image.extend((TABLE as u32..).step_by(4).take(WORDS).map(|address| (address, 0)));
    program
}

fn encode((op, first, second, last): guest::Instruction) -> Instruction {
    let opcode = match op {
        Op::Mul => Opcode::MUL,
        Op::Srl => Opcode::SRL,
        Op::Xor => Opcode::XOR,
        Op::And => Opcode::AND,
        Op::Add => Opcode::ADD,
        Op::Load => Opcode::LW,
        Op::Store => Opcode::SW,
        Op::BranchUnlessEqual => Opcode::BNE,
    };
    let (last, is_immediate) = match last {
        Operand::Register(number) => (number.into(), false),
        Operand::Value(value) => (value as u32, true),
    };
    Instruction::new(opcode, first, second.into(), last, false, is_immediate)
}

fn system_call(code: SyscallCode, [first, second]: [Operand; 2]) -> Vec<Instruction> {
    let code = Operand::Value(code as i32);
    let moves = [(10, first), (11, second), (5, code)].map(|(to, value)| encode((Op::Add, to, ZERO, value)));
    [&moves[..], &[Instruction::new(Opcode::ECALL, 5, 10, 11, false, false)]].concat()
}
