//! OpenVM as a prover for prove-bench: a run of RISC-V instructions on its CPU engine.

#[path = "../../sp1/src/guest.rs"]
mod guest;

use anyhow::{Context, anyhow};
use guest::{FACTOR, INPUT, LEFT, Op, Operand, ROUND, STATE, SUM, ZERO};
use openvm_circuit::arch::hasher::poseidon2::vm_poseidon2_hasher;
use openvm_circuit::arch::{ContinuationVmProof, ContinuationVmProver, VirtualMachine, VmInstance, verify_segments};
use openvm_circuit::system::memory::dimensions::MemoryDimensions;
use openvm_circuit::system::memory::merkle::public_values::PUBLIC_VALUES_AS;
use openvm_circuit::system::program::trace::compute_exe_commit_from_mem_config;
use openvm_instructions::exe::VmExe;
use openvm_instructions::instruction::Instruction;
use openvm_instructions::program::Program;
use openvm_instructions::riscv::{RV32_IMM_AS, RV32_MEMORY_AS, RV32_REGISTER_AS, RV32_REGISTER_NUM_LIMBS};
use openvm_instructions::{LocalOpcode, PhantomDiscriminant, SystemOpcode};
use openvm_rv32im_circuit::{Rv32ImConfig, Rv32ImCpuBuilder};
use openvm_rv32im_transpiler::{
    BaseAluOpcode, BranchEqualOpcode, MulOpcode, Rv32HintStoreOpcode, Rv32LoadStoreOpcode, Rv32Phantom, ShiftOpcode,
};
use openvm_stark_sdk::config::app_params_with_100_bits_security;
use openvm_stark_sdk::config::baby_bear_poseidon2::{BabyBearPoseidon2Config, BabyBearPoseidon2CpuEngine, Digest, F};
use openvm_stark_sdk::openvm_stark_backend::StarkEngine;
use openvm_stark_sdk::openvm_stark_backend::keygen::types::MultiStarkVerifyingKey;
use openvm_stark_sdk::openvm_stark_backend::p3_field::PrimeCharacteristicRing;
use provers_bench::{Prover, Workload, WorkloadSpec};
use std::sync::{Arc, Mutex};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "openvm",
    "OpenVM 2.0",
    &[WorkloadSpec::one_at_a_time::<Run>("rv32im", "a run of RISC-V instructions on OpenVM", 16)
        .sizes(10, 20)
        .checked_at(10)
        .processes_at_most(2)],
)];

type Engine = BabyBearPoseidon2CpuEngine;

/// A machine with its program, which executes at most `2^log_rows` instructions.
pub struct Run {
    instance: Mutex<VmInstance<Engine, Rv32ImCpuBuilder>>,
    instructions: usize,
    // The fields that the verifier needs in addition to a proof and its claim.
    verifier: Engine,
    key: MultiStarkVerifyingKey<BabyBearPoseidon2Config>,
    executable: Digest,
    memory: MemoryDimensions,
}

/// Base-2 logarithm of the length of a stack. Columns are stacked before they are committed, and a stack must be at least as long as the
/// longest table.
const STACK: usize = 20;

fn engine() -> Engine {
    Engine::new(app_params_with_100_bits_security(STACK))
}

impl Workload for Run {
    /// A proof, and the number that the program reveals.
    type Proof = (ContinuationVmProof<BabyBearPoseidon2Config>, u32);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let executable = executable();
        let config = Rv32ImConfig::default();
        let (machine, key) =
            VirtualMachine::new_with_keygen(engine(), Rv32ImCpuBuilder, config).context("making keys")?;
        let committed = machine.commit_program_on_device(&executable.program);
        let memory_config = machine.config().as_ref().memory_config.clone();
        let commitment = compute_exe_commit_from_mem_config(&committed.commitment, &executable, &memory_config);
        let instance = VmInstance::new(machine, Arc::new(executable), committed).context("loading the program")?;
        Ok(Self {
            instance: Mutex::new(instance),
            instructions: 1 << log_rows,
            verifier: engine(),
            key: key.get_vk(),
            executable: commitment,
            memory: memory_config.memory_dimensions(),
        })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        // The phase also covers the execution of the program and its trace.
        zk_alloc::phase(|| {
            let input = guest::input(seed, self.instructions);
            let mut instance = self.instance.lock().map_err(|error| anyhow!("{error}"))?;
            // The guest reads the input byte by byte.
            let stream = input.into_iter().flat_map(u32::to_le_bytes).map(F::from_u8).collect::<Vec<_>>();
            let proof = instance.prove(vec![stream])?;
            Ok((proof, guest::run(input)))
        })
    }

    fn verify(&self, (proof, revealed): &Self::Proof) -> anyhow::Result<()> {
        let (proof, public) = (&proof.per_segment, &proof.user_public_values);
        let run = verify_segments(&self.verifier, &self.key, proof)?;
        anyhow::ensure!(run.exe_commit == self.executable, "the proof is of another program");
        public.verify(&vm_poseidon2_hasher(), self.memory, run.final_memory_root)?;
        let revealed = revealed.to_le_bytes().map(F::from_u8);
        anyhow::ensure!(public.public_values.starts_with(&revealed), "the run revealed another number");
        Ok(())
    }
}

/// The register that points to the input.
const POINTER: u8 = 5;

fn executable() -> VmExe<F> {
    let hint_input = PhantomDiscriminant(Rv32Phantom::HintInput as u16);
    // Stores the next word of the input at the address in `POINTER`.
    let store_hint = Instruction::from_isize(
        Rv32HintStoreOpcode::HINT_STOREW.global_opcode(),
        0,
        register(POINTER),
        0,
        RV32_REGISTER_AS as isize,
        RV32_MEMORY_AS as isize,
    );
    let mut code = vec![
        Instruction::phantom(hint_input, F::ZERO, F::ZERO, 0),
        encode((Op::Add, POINTER, ZERO, Operand::Value(INPUT))),
    ];
    // Reads the length of the input, then its words.
    for register in [ZERO, STATE, FACTOR, LEFT] {
        code.push(store_hint.clone());
        if register != ZERO {
            code.push(encode((Op::Load, register, POINTER, Operand::Value(0))));
        }
        code.push(encode((Op::Add, POINTER, POINTER, Operand::Value(4))));
    }
    code.push(encode((Op::Add, SUM, ZERO, Operand::Value(0))));
    code.extend(ROUND.map(encode));
    let reveal = encode((Op::Store, SUM, ZERO, Operand::Value(0)));
    code.push(Instruction { e: F::from_u32(PUBLIC_VALUES_AS), ..reveal });
    code.push(Instruction { opcode: SystemOpcode::TERMINATE.global_opcode(), ..Instruction::default() });
    Program::from_instructions(&code).into()
}

fn register(number: u8) -> isize {
    (RV32_REGISTER_NUM_LIMBS * usize::from(number)) as isize
}

fn encode((op, first, second, last): guest::Instruction) -> Instruction<F> {
    let (value, space) = match last {
        Operand::Register(number) => (register(number), RV32_REGISTER_AS),
        Operand::Value(value) => (value as isize, RV32_IMM_AS),
    };
    // An immediate of the arithmetic unit has 24 bits, sign-extended.
    let immediate = value & 0xff_ffff;
    let (opcode, value, space, is_enabled) = match op {
        Op::Mul => (MulOpcode::MUL.global_opcode(), value, 0, 0),
        Op::Srl => (ShiftOpcode::SRL.global_opcode(), value, space, 0),
        Op::Xor => (BaseAluOpcode::XOR.global_opcode(), immediate, space, 0),
        Op::And => (BaseAluOpcode::AND.global_opcode(), immediate, space, 0),
        Op::Add => (BaseAluOpcode::ADD.global_opcode(), immediate, space, 0),
        Op::Load => (Rv32LoadStoreOpcode::LOADW.global_opcode(), value, RV32_MEMORY_AS, 1),
        Op::Store => (Rv32LoadStoreOpcode::STOREW.global_opcode(), value, RV32_MEMORY_AS, 1),
        Op::BranchUnlessEqual => (BranchEqualOpcode::BNE.global_opcode(), value, RV32_REGISTER_AS, 0),
    };
    let (first, second, registers) = (register(first), register(second), RV32_REGISTER_AS as isize);
    Instruction::large_from_isize(opcode, first, second, value, registers, space as isize, is_enabled, 0)
}
