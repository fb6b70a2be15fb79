//! Memory outside of the arena: a `Scratch` against models, and the protections of a `SecretBuf`.

#[cfg(feature = "allocator-api2")]
mod collections;
mod requests;
#[cfg(target_os = "linux")]
mod secret;
#[path = "../support/mod.rs"]
mod support;

use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident();
