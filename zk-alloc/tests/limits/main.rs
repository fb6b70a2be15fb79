//! Limits of memory: the cap and the retention policy of the program, the background thread that applies it, the memory limit of its
//! control group, a system that refuses memory, and a pinned range.
//!
//! Resident memory belongs to the process, and so do a background thread and a pinned range. So each test runs in a process of its own.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "sets limits of the process, forks, gives up root, and locks memory")]

mod background;
mod cap;
mod pinned;
mod pressure;
#[path = "../support/mod.rs"]
mod support;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;
