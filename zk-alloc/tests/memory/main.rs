//! Tests of the placement of memory, and of which memory the arena purges, reuses, moves or leaves untouched.
//!
//! Resident memory belongs to the process, so each test runs in a process of its own.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "calls the allocator by hand, and raises a signal")]

#[path = "../model/heap.rs"]
mod heap;
mod placement;
mod residency;
mod returns;
mod reuse;
#[path = "../support/mod.rs"]
mod support;
#[path = "../model/volume.rs"]
mod volume;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;
