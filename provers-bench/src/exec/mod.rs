//! `prove-bench exec -- COMMAND`: any command under the allocators that can be preloaded, in lockstep rounds, over whole
//! trees of processes. docs/exec.md has the method and its limits.
//!
//! ```text
//! cli      what is asked for              advice     figures -> what to do
//! run      from a job to its files        worth      which figures count
//! paste    lines for a shell, an image   sentences  of single figures
//! session  rounds, order, what counts     seat       one arm and its runs
//! process  one run: started and watched   output     what must be the same after it
//! tree     its processes while they run   reaped     those that have ended
//! target   the program, by its file       scanned    what it writes
//! libraries  the allocators, as data and on this machine
//! surroundings  what the driver's own environment brings to every run
//! ```

mod advice;
mod cli;
mod libraries;
mod output;
mod paste;
mod process;
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
pub(crate) use run::run;
