//! The first request of a process in a bad moment, with an arena that serves phases. The first phase begins in that
//! moment too.
#![cfg(target_os = "linux")]

mod first_request;
mod support;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

/// Calls before the first request and after the last one.
const BEGIN: fn() = zk_alloc::begin_phase;
const END: fn() = zk_alloc::end_phase;
