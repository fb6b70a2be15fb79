//! Helpers for the tests of the adapters.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for this test's turn. Phases and statistics are process-wide, so tests that use either take turns.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the bytes that the arena served while `f` ran, and the result of `f`.
pub(crate) fn arena_bytes_of<R>(f: impl FnOnce() -> R) -> (u64, R) {
    let before = zk_alloc::stats().arena_bytes;
    let result = f();
    (zk_alloc::stats().arena_bytes - before, result)
}
