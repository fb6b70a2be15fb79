//! [`phase`]: phase()
//! [phase-type]: Phase
//! [`min_arena_bytes`]: min_arena_bytes
//! [`stats`]: stats()
//! [stats-type]: Stats
//! [`PhaseReport`]: PhaseReport
//! [`pool`]: pool
//! [`trace_escaped`]: trace_escaped
//! [`set_retain`]: set_retain
//! [`start_background_thread`]: start_background_thread
//! [`release`]: release
//! [`purge_lazily`]: purge_lazily
//! [`reserve`]: reserve
//! [`Retain::For`]: Retain::For
//! [`Scratch`]: Scratch
//! [`SecretBuf`]: SecretBuf
//!
// If a link is defined twice, rustdoc uses the first definition, so the links above apply here. The README's own definitions point to the
// source files.
#![doc = include_str!("../README.md")]
#![cfg_attr(not(feature = "c-api"), allow(unreachable_pub, reason = "these modules have it"))]
mod accounts;
mod allocator;
mod arena;
mod background;
#[cfg(feature = "c-api")]
#[doc(hidden)]
pub mod c_api;
mod classes;
mod config;
mod escape;
mod frames;
mod gate;
#[cfg_attr(not(feature = "profile"), allow(dead_code, reason = "the profile needs more than escapes"))]
mod observe;
mod os;
mod phase;
pub mod pinned;
#[cfg(feature = "profile")]
pub mod profile;
mod retain;
mod scratch;
mod secret;
mod stats;
mod sync;
#[doc(hidden)]
pub mod tuning;

pub use accounts::{on_memory_limit, overflow_stats, reset_overflow_stats};
pub use allocator::{Mode, ZkAllocator};
pub use background::{start_background_thread, stop_background_thread};
#[allow(deprecated, reason = "programs that use it are warned")]
pub use config::slab_size;
pub use config::{
    HugePages, HugePagesOutcome, InForce, Origin, Settings, SettingsInForce, min_arena_bytes, thread_capacity_bytes,
};
pub use escape::{Escaped, escaped, trace_escaped};
pub use phase::{Participants, Phase, PhaseGuard, begin_phase, end_phase, is_serving, phase, pool};
pub use pinned::{NotPinned, Pinned};
pub use retain::{Retain, purge_lazily, release, reserve, set_retain, soften};
pub use scratch::{Arena, MemoryRefused, Scratch, ScratchExhausted};
pub use secret::SecretBuf;
#[cfg(feature = "metrics")]
pub use stats::record_metrics;
pub use stats::{
    PhaseReport, ResidentParts, Stats, ThreadStats, resident_parts, stats, take_peak_live_bytes, thread_stats,
};

/// Every adapter refers to this constant, so that adapters compile only against this crate. The crate `zk-alloc` on crates.io has the same
/// library name and the same functions, but not this constant. The arena of that crate overwrites live memory.
#[doc(hidden)]
pub const REUSES_ONLY_WHAT_WAS_FREED: () = ();
