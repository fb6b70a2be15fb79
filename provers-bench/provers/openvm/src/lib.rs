//! OpenVM as a prover of prove-bench: a run of RISC-V instructions on its CPU engine.
//!
//! `program` defines the guest; this file defines the workload.

mod program;

use anyhow::{Context, anyhow};
use openvm_circuit::arch::hasher::poseidon2::vm_poseidon2_hasher;
use openvm_circuit::arch::{ContinuationVmProof, ContinuationVmProver, VirtualMachine, VmInstance, verify_segments};
use openvm_circuit::system::memory::dimensions::MemoryDimensions;
use openvm_circuit::system::program::trace::compute_exe_commit_from_mem_config;
use openvm_rv32im_circuit::{Rv32ImConfig, Rv32ImCpuBuilder};
use openvm_stark_sdk::config::app_params_with_100_bits_security;
use openvm_stark_sdk::config::baby_bear_poseidon2::{BabyBearPoseidon2Config, BabyBearPoseidon2CpuEngine, Digest, F};
use openvm_stark_sdk::openvm_stark_backend::StarkEngine;
use openvm_stark_sdk::openvm_stark_backend::keygen::types::MultiStarkVerifyingKey;
use openvm_stark_sdk::openvm_stark_backend::p3_field::PrimeCharacteristicRing;
use provers_bench::{Prover, Workload, WorkloadSpec};
use std::sync::{Arc, Mutex};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover {
    name: "openvm",
    about: "OpenVM 2.0",
    // Starts Rayon's pool outside any phase, so that its permanent allocations do not lie in the arena.
    init: || _ = zk_alloc::pool::build_global(),
    workloads: &[WorkloadSpec::one_at_a_time::<Run>("rv32im", "a run of RISC-V instructions on OpenVM", 16)
        .sizes(10, 20)
        .checked_at(10)
        .processes_at_most(2)],
}];

type Engine = BabyBearPoseidon2CpuEngine;

/// A machine with its program, which runs at most `2^log_rows` instructions.
pub struct Run {
    instance: Mutex<VmInstance<Engine, Rv32ImCpuBuilder>>,
    verifier: Verifier,
    instructions: usize,
}

/// The verifier's part of the set-up. In addition it needs only a proof and its claim.
struct Verifier {
    engine: Engine,
    key: MultiStarkVerifyingKey<BabyBearPoseidon2Config>,
    executable: Digest,
    memory: MemoryDimensions,
}

/// A proof and its statement.
pub struct Statement {
    proof: ContinuationVmProof<BabyBearPoseidon2Config>,
    revealed: u32,
}

/// Columns are committed in stacks of `2^STACK` numbers. A stack must hold at least as many rows as the longest table.
const STACK: usize = 20;

fn engine() -> Engine {
    Engine::new(app_params_with_100_bits_security(STACK))
}

impl Workload for Run {
    type Proof = Statement;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let executable = program::executable();
        let config = Rv32ImConfig::default();
        let (machine, key) =
            VirtualMachine::new_with_keygen(engine(), Rv32ImCpuBuilder, config).context("making keys")?;
        let committed = machine.commit_program_on_device(&executable.program);
        let memory_config = machine.config().as_ref().memory_config.clone();
        let verifier = Verifier {
            engine: engine(),
            key: key.get_vk(),
            executable: compute_exe_commit_from_mem_config(&committed.commitment, &executable, &memory_config),
            memory: memory_config.memory_dimensions(),
        };
        let instance = VmInstance::new(machine, Arc::new(executable), committed).context("loading the program")?;
        Ok(Self { instance: Mutex::new(instance), verifier, instructions: 1 << log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Statement> {
        // The phase also covers the execution of the program and its trace.
        zk_alloc::phase(|| {
            let input = program::input(seed, self.instructions);
            let mut instance = self.instance.lock().map_err(|error| anyhow!("{error}"))?;
            let proof = instance.prove(program::stream(input)).context("proving")?;
            Ok(Statement { proof, revealed: program::run(input) })
        })
    }

    fn verify(&self, statement: &Statement) -> anyhow::Result<()> {
        let Verifier { engine, key, executable, memory } = &self.verifier;
        let (proof, public) = (&statement.proof.per_segment, &statement.proof.user_public_values);
        let run = verify_segments(engine, key, proof).context("verifying the segments")?;
        anyhow::ensure!(run.exe_commit == *executable, "another program was run");
        public.verify(&vm_poseidon2_hasher(), *memory, run.final_memory_root).context("verifying the public values")?;
        let revealed = statement.revealed.to_le_bytes().map(F::from_u8);
        anyhow::ensure!(public.public_values.starts_with(&revealed), "the run revealed another number");
        Ok(())
    }
}
