//! Proofs in lockstep: rounds in random order, one proof at a time, each arm in processes of its own.
//!
//! ```text
//! lockstep  rounds, order                       budget, schedule  may it go on?
//! seat      one arm and its proofs              rss_watch         memory over time
//! process   one child: asked, answered          interrupt         Ctrl-C
//! binaries  the arms' programs, brought up to date                stale   sources that are newer
//! progress  what the user sees meanwhile
//! ```

pub(crate) mod binaries;
mod budget;
pub(crate) mod interrupt;
pub(crate) mod lockstep;
pub(crate) mod process;
pub(crate) mod progress;
mod rss_watch;
pub(crate) mod schedule;
pub(crate) mod seat;
mod stale;
