//! The atomics of the protocols that loom checks: loom's types in its builds, and the standard library's in all others.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, compiler_fence};

#[cfg(loom)]
mod watched;
#[cfg(loom)]
pub(crate) use watched::{AtomicU8, AtomicU64, Ordering};

/// Loom has no compiler fence. In production, the asymmetric fence of a claimant orders the accesses of a cache's owner. The models
/// use a full fence on both sides instead.
#[cfg(loom)]
pub(crate) fn compiler_fence(order: Ordering) {
    loom::sync::atomic::fence(order);
}
