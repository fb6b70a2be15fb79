//! Limits on memory: the cap, the retention policy and the background thread, the memory limit of the control group, refusals by the
//! system, and a pinned range.
//!
//! Resident memory, the background thread and the pinned range belong to the whole process, so each test runs in a process of its own.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "sets limits of the process, forks, gives up root, and locks memory")]

mod background;
mod cap;
#[path = "../model/heap.rs"]
mod heap;
mod pinned;
mod pressure;
#[path = "../support/mod.rs"]
mod support;
#[path = "../model/volume.rs"]
mod volume;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;
