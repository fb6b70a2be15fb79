#![doc = include_str!("../README.md")]
// The order of the house: a module imports only what stands below it (tests/layering.rs).
mod allocator;
mod arena;
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

/// What every adapter names when it is compiled. The crate `zk-alloc` of crates.io, an arena that overwrites what is alive, has
/// the same library name and the same functions, but not this one: an adapter that is built against it does not compile.
#[doc(hidden)]
pub const REUSES_ONLY_WHAT_WAS_FREED: () = ();

// Its examples are compiled and run with those of this documentation.
#[cfg(doctest)]
#[doc = include_str!("../../docs/migrating.md")]
struct Migrating;
