//! The first request ever, in a bad moment, where the arena serves always: nothing comes before it, and settings in code come
//! with it.
#![cfg(target_os = "linux")]

mod first_request;
mod support;

use zk_alloc::{Settings, ZkAllocator};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident().settings(Settings::new().retain_bytes(1 << 40));

/// What comes before the first request, and after the last one.
const BEGIN: fn() = || ();
const END: fn() = || ();
