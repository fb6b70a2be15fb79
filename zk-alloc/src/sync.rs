//! The atomics of the protocols that loom checks: loom's own when it builds the crate, else the language's.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, compiler_fence};

#[cfg(loom)]
mod watched;
#[cfg(loom)]
pub(crate) use watched::{AtomicU8, AtomicU64, Ordering};

/// Loom knows no fence of the compiler. What the owner of a cache gets from the kernel's asymmetric fence, the models get from
/// a fence on both sides.
#[cfg(loom)]
pub(crate) fn compiler_fence(order: Ordering) {
    loom::sync::atomic::fence(order);
}
