//! The first request ever, in a bad moment, where the arena serves phases: what begins the first phase is in that moment too.
#![cfg(target_os = "linux")]

mod first_request;
mod support;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

/// What comes before the first request, and after the last one.
const BEGIN: fn() = zk_alloc::begin_phase;
const END: fn() = zk_alloc::end_phase;
