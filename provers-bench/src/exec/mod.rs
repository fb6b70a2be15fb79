//! `prove-bench exec -- COMMAND`: runs any command under the allocators that can be preloaded, in lockstep rounds, and
//! measures its whole process tree. docs/exec.md has the method and its limits.
//!
//! - `cli`: the options
//! - `session`: from a job to its files: rounds, their order, and which runs count
//! - `arm_runner`: one arm and its runs
//! - `process`: one run, started and watched
//! - `process_tree`: the command's processes, while they run and when they have ended
//! - `output`: the command's output, and checks after a run
//! - `faults`: page faults by call chain
//! - `profile`: which functions take page faults and hold memory
//! - `target`: the program, from its file
//! - `libraries`: the allocators, as data and on this machine, and the lines that set one up
//! - `advice`: which figures count, and the advice

mod advice;
mod arm_runner;
mod cli;
#[cfg(feature = "profile")]
mod faults;
mod libraries;
mod output;
mod process;
mod process_tree;
#[cfg(feature = "profile")]
mod profile;
mod session;
mod target;

pub(crate) use cli::{Job, command, job};
#[cfg(feature = "profile")]
pub(crate) use profile::profile;
pub(crate) use session::run;
