//! The lock-free parts against what they promise.

#[cfg(loom)]
mod loom_models;
#[cfg(loom)]
mod loom_zone;
#[cfg(not(loom))]
mod oracle;
