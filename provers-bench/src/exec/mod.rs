//! `prove-bench exec -- COMMAND`: runs any command under the allocators that can be preloaded, in lockstep rounds, and
//! measures its whole process tree. docs/exec.md has the method and its limits.
//!
//! - `cli`: the options
//! - `run`: from a job to its files
//! - `session`: rounds, their order, and which runs count
//! - `seat`: one arm and its runs
//! - `process`: one run, started and watched
//! - `tree`: the command's processes while they run
//! - `reaped`: the processes that have ended
//! - `output`: checks after a run
//! - `faults`: page faults by call chain
//! - `profile`: which functions take page faults and hold memory
//! - `target`: the program, from its file
//! - `scanned`: the command's output
//! - `libraries`: the allocators, as data and on this machine
//! - `surroundings`: the driver's environment, which every run inherits
//! - `advice`: from figures to advice
//! - `worth`: which figures count
//! - `sentences`: sentences about single figures
//! - `paste`: lines for a shell and for an image

mod advice;
mod cli;
#[cfg(feature = "profile")]
mod faults;
mod libraries;
mod output;
mod paste;
mod process;
#[cfg(feature = "profile")]
mod profile;
mod reaped;
mod run;
mod scanned;
mod seat;
mod sentences;
mod session;
mod surroundings;
mod target;
mod tree;
mod worth;

pub(crate) use cli::{Job, command, job};
#[cfg(feature = "profile")]
pub(crate) use profile::profile;
pub(crate) use run::run;
