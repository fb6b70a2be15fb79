//! What broke earlier prover arenas, with the real libraries across phases.

mod collections;
mod epoch;
mod phases;
mod rayon;
#[path = "../support/mod.rs"]
mod support;
mod threads;
mod tokio;
mod tracing;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;
