//! Figures that the allocator reports about itself: escapes, stages, events, metrics and the parts of the resident memory.
//!
//! The figures belong to the process, so each test runs in a process of its own.

mod escape;
#[cfg(feature = "tracing")]
mod events;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(target_os = "linux")]
mod resident_parts;
mod stages;
#[path = "../support/mod.rs"]
mod support;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;
