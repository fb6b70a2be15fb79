//! Makes and verifies real proofs under several allocators, in lockstep.
//!
//! An *arm* is an allocator with its settings: a binary that has one `#[global_allocator]` and calls [`child::main`]. A *workload* is a
//! prover at a given size: a type that implements [`Workload`]. The driver, [`driver::main`], starts every arm. In each round every arm
//! proves once, in random order. The driver compares times round by round, so other load on the machine cancels out of the ratio. Every few
//! rounds it restarts all arms, so no result depends on the memory layout of a single process. Every verdict comes from a 95% interval, and
//! an arm fails if one of its proofs does not verify.
//!
//! The harness itself contains no prover. Each prover is a separate package, in `provers` or anywhere else. The package implements
//! [`Workload`], lists its [`Prover`]s in a `static`, and has one line for each binary: [`driver!`] or [`arm!`]. `docs/benchmarking.md`
//! lists the steps, and `examples/your-prover` is a complete package.
//!
//! The modules, from the top down; a module uses only modules below it:
//!
//! - `driver`: runs a command line, and returns an exit code
//! - `compare`: compares a run with an earlier one, or (the gate) with a committed baseline
//! - `profile`: a tool that shows where the memory of a proof goes
//! - `trace`: a tool that records allocations and replays them
//! - `exec`: a tool that runs any command under preloaded libraries
//! - `host`: a tool that measures what memory costs on this machine
//! - `measure`: runs a plan: rounds, processes, time, memory, Ctrl-C
//! - `report`: writes HTML, tables, curves, JSON, Markdown and comparisons
//! - `child`: the process that the driver starts: proves, records and replays, and injects faults on request
//! - `plan`: checks the options, and turns them into runs
//! - `results`: computes columns, samples.csv and result.json from proofs
//! - `protocol`: the messages and files between driver and child
//! - `workloads`: provers and their workloads, and concurrent proofs
//! - `arms`: the allocators
//! - `sample`, `stack`: the measurement of one proof, and the position of its threads' stacks
//! - `machine`: the machine and the build

pub mod arms;
pub mod child;
pub mod driver;

mod compare;
mod exec;
mod host;
mod machine;
mod measure;
mod plan;
mod profile;
mod protocol;
mod report;
mod results;
mod sample;
mod stack;
mod trace;
mod workloads;

pub use workloads::{Prover, Workload, WorkloadSpec};
