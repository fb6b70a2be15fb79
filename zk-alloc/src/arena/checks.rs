//! The lock-free parts against what they promise.

#[cfg(not(loom))]
mod claimed;
#[cfg(not(loom))]
mod oracle;

#[cfg(loom)]
mod loom_bits;
#[cfg(loom)]
mod loom_cache;
#[cfg(loom)]
mod loom_slabs;
#[cfg(loom)]
mod loom_zone;
#[cfg(loom)]
mod models;
