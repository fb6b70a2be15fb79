//! What breaks allocators at the edges of a process: before `main` and at exit, in signal handlers, in forked and vforked children, and
//! where other code took the thread keys.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "forks, makes keys, and runs before main, at exit and in signal handlers")]

mod fork;
#[cfg(target_env = "gnu")]
mod keys;
mod life;
#[path = "../support/mod.rs"]
mod support;
mod vfork;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;
