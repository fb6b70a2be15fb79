//! The lock-free parts against what they promise.

#[cfg(not(loom))]
mod oracle;
