//! Sandboxes: system calls that the kernel refuses, and calls for which it kills the process (seccomp(2)).
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(unsafe_code, reason = "forks, and installs filters of system calls")]

mod killed;
mod refused;
#[path = "../support/mod.rs"]
mod support;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;
