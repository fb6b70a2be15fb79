//! Measures proofs in lockstep: rounds in random order, one proof at a time, each arm in its own processes.
//!
//! - `lockstep`: rounds and their order
//! - `schedule`: whether another arm or round may start
//! - `slots`: proofs at fixed times instead of rounds
//! - `arm_runner`: one arm and its proofs
//! - `rss_watch`: memory over time
//! - `process`: requests to one child, and its answers
//! - `interrupt`: Ctrl-C
//! - `binaries`: builds the arms' programs
//! - `progress`: output during the run

pub(crate) mod arm_runner;
pub(crate) mod binaries;
pub(crate) mod interrupt;
pub(crate) mod lockstep;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod rss_watch;
pub(crate) mod schedule;
mod slots;
