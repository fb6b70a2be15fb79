//! Real proofs, verified, under several allocators in lockstep.
//!
//! An *arm* is an allocator with its settings: a binary with one `#[global_allocator]` that calls [`child::main`].
//! A *workload* is a prover at a size: a type that implements [`Workload`]. The driver, [`driver::main`], starts every
//! arm, lets each prove once a round in random order, and compares the times round by round, so that whatever else the
//! machine does cancels out of the ratio. After every few rounds it starts all arms again, so that no figure hangs on
//! the luck of one process. Times alone are never shown without their interval, and a proof that does not verify fails
//! its arm.
//!
//! The harness knows no prover: each is a package of its own, in `provers` or anywhere. It implements [`Workload`], names it
//! in a `static` of [`Prover`]s, and has a line for each binary: [`driver!`] and [`arm!`]. `docs/benchmarking.md` has the
//! steps, and `examples/your-prover` a whole package.
//!
//! From the driver down, a module uses only what stands below it (`tests/layering.rs`):
//!
//! ```text
//! driver       a command line -> an exit code          cli     what is asked for
//! check        the gate: figures, held to a baseline   trace   beside the bench: allocations recorded and replayed
//! exec         beside the bench: any command, under libraries that are preloaded
//! run          a plan -> measured, shown, written
//! report       HTML, tables, curves, JSON, Markdown, comparison
//! measure      lockstep, seats, processes, time, memory, Ctrl-C
//! child        the other end of the pipe: proves, records, replays; faults on request
//! plan         a request -> what runs, checked
//! results      proofs -> figures; columns, samples.csv, result.json
//! protocol     what driver and child say to each other
//! workloads    what is proved                          arms    under which allocators
//! sample       what is measured of a proof             machine what it runs on
//! ```

pub mod arms;
pub mod child;
pub mod driver;

mod check;
mod cli;
mod exec;
mod machine;
mod macros;
mod measure;
mod plan;
mod protocol;
mod report;
mod results;
mod run;
mod sample;
mod trace;
mod workloads;

pub use workloads::{Prover, Workload, WorkloadSpec};
