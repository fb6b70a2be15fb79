//! Limits of memory: the cap and the retention policy of the program, the memory limit of its control group, and a system that refuses
//! memory.
//!
//! Resident memory belongs to the process, so each test runs in a process of its own.
#![allow(unsafe_code, reason = "sets limits of the process, and locks memory")]

mod cap;
#[cfg(target_os = "linux")]
mod control_group;
#[cfg(target_os = "linux")]
mod exhaustion;
#[cfg(target_os = "linux")]
mod overcommit;
#[cfg(target_os = "linux")]
mod pressure;
#[cfg(target_os = "linux")]
mod retention;
#[path = "../support/mod.rs"]
mod support;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;
