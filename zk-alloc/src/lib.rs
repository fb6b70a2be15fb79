#![doc = include_str!("../README.md")]
// The order of the house: a module imports only what stands below it (tests/layering.rs).
mod allocator;
mod arena;
#[cfg(feature = "c-api")]
#[doc(hidden)]
pub mod c_api;
mod classes;
mod config;
mod counters;
mod error;
mod escape;
mod open;
mod os;
mod phase;
#[cfg(feature = "rayon")]
pub mod pool;
mod report;
mod retain;
mod route;
mod scratch;
mod secret;
#[doc(hidden)]
pub mod simulation;
mod stats;
mod sync;
mod wipe;
mod workers;

pub use allocator::{Mode, ZkAllocator};
pub use config::{HugePages, min_arena_bytes, slab_size};
pub use counters::{overflow_stats, reset_overflow_stats};
pub use error::{Exhausted, Refused};
pub use escape::{Escaped, escaped, trace_escaped};
pub use phase::{Participants, Phase, PhaseGuard, begin_phase, end_phase, join, phase};
pub use report::PhaseReport;
pub use retain::{Retain, release, reserve, set_retain, soften};
pub use scratch::Arena;
pub use secret::SecretBuf;
pub use stats::{Stats, stats};
