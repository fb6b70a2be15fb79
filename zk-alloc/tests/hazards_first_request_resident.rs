//! The first request of a process in a bad moment, with an arena that always serves. No call comes before it, and it
//! brings the settings in code.
#![cfg(target_os = "linux")]

mod first_request;
mod support;

use zk_alloc::{Settings, ZkAllocator};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident().settings(Settings::new().retain_bytes(1 << 40));

/// Calls before the first request and after the last one.
const BEGIN: fn() = || ();
const END: fn() = || ();
