#![doc = include_str!("../README.md")]
// The order of the house: a module imports only what stands below it (tests/layering.rs).
mod allocator;
mod arena;
mod classes;
mod config;
mod counters;
mod error;
mod escape;
mod helpers;
mod names;
mod open_phases;
mod os;
mod phase;
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
mod written_once;

pub use allocator::{Mode, ZkAllocator};
pub use config::{
    HugePages, HugePagesOutcome, InForce, Origin, Settings, SettingsInForce, min_arena_bytes, thread_capacity_bytes,
};
pub use counters::{overflow_stats, reset_overflow_stats};
pub use error::{MemoryRefused, ScratchExhausted};
pub use escape::{Escaped, escaped, trace_escaped};
#[allow(deprecated, reason = "who writes them is told")]
pub use names::{Arena, Exhausted, Refused, join, slab_size};
pub use phase::{Participants, Phase, PhaseGuard, begin_phase, end_phase, phase};
pub use report::PhaseReport;
pub use retain::{Retain, release, reserve, set_retain, soften};
pub use scratch::Scratch;
pub use secret::SecretBuf;
pub use stats::{Stats, stats};
