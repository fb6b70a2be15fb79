//! Settings come from the environment and from the program, and messages name those that are invalid.
//!
//! The global allocator here is `System`, so that each test chooses the first `ZkAllocator` of its process.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "calls allocators by hand, and closes a descriptor that nothing owns")]

mod environment;
mod program;
#[path = "../support/mod.rs"]
mod support;

use zk_alloc::ZkAllocator;

use support::blocks::Block;

/// Allocates, writes and frees.
fn request(allocator: &'static ZkAllocator, size: usize) {
    drop(Block::written(allocator, size));
}
