//! SP1 as a prover of prove-bench: a run of RISC-V instructions, proved by its core prover on the CPU.
//!
//! `program` defines the guest; this file defines the workload.

mod program;

use anyhow::{Context, anyhow};
use provers_bench::{Prover, Workload, WorkloadSpec};
use sp1_core_executor::{Program, SP1Context};
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
pub static PROVERS: &[Prover] = &[Prover {
    name: "sp1",
    about: "SP1 5.2, core prover",
    // Starts Rayon's pool outside any phase, so that its permanent allocations do not lie in the arena.
    init: || _ = zk_alloc::pool::build_global(),
    workloads: &[WorkloadSpec::new::<Run>("rv32im", "a run of RISC-V instructions on SP1", 16)
        .sizes(12, 22)
        .checked_at(12)
        .processes_at_most(2)],
}];

type Config = BabyBearPoseidon2;
type Field = Val<Config>;

/// A machine with its program, which runs at most `2^log_rows` instructions.
pub struct Run {
    prover: CpuProver<Config, RiscvAir<Field>>,
    proving_key: StarkProvingKey<Config>,
    verifying_key: StarkVerifyingKey<Config>,
    program: Program,
    instructions: usize,
}

/// A proof and its statement.
pub struct Statement {
    proof: MachineProof<Config>,
    revealed: u32,
}

/// SP1's defaults depend on the machine's memory and on the environment. These are its defaults for 32 GiB and less.
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
    type Proof = Statement;

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let program = program::assemble();
        let prover = CpuProver::new(RiscvAir::machine(Config::new()));
        let (proving_key, verifying_key) = prover.setup(&program);
        Ok(Self { prover, proving_key, verifying_key, program, instructions: 1 << log_rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Statement> {
        // The phase also covers the execution of the program and its traces.
        zk_alloc::phase(|| {
            let input = program::input(seed, self.instructions);
            let (proof, ..) = prove_core(
                &self.prover,
                &self.proving_key,
                &self.verifying_key,
                self.program.clone(),
                &program::stdin(input),
                options(),
                SP1Context::default(),
                // No shapes: the traces are padded to powers of two, not to the sizes that SP1's recursion expects.
                None,
                None,
            )
            .context("proving")?;
            Ok(Statement { proof, revealed: program::run(input) })
        })
    }

    fn verify(&self, Statement { proof, revealed }: &Statement) -> anyhow::Result<()> {
        let machine = self.prover.machine();
        let mut challenger = machine.config().challenger();
        machine
            .verify(&self.verifying_key, proof, &mut challenger)
            .map_err(|error| anyhow!("verifying the shards: {error}"))?;

        // The machine checks each shard; this checks that the shards are one run of the program, from start to halt.
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
