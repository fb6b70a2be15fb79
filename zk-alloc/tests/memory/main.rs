//! Where memory goes: what is purged, what is reused, what stays untouched, and what moves.
//!
//! Resident memory belongs to the process, so each test runs in a process of its own.
#![cfg(target_os = "linux")]

#[path = "../support/blocks.rs"]
mod blocks;
mod growth;
#[path = "../support/limits.rs"]
mod limits;
mod returns;
mod reuse;
#[path = "../support/mod.rs"]
mod support;
mod takeover;
mod untouched;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;
