//! A spin lock. ThreadSanitizer sees its atomics, because they are compiled here. It sees those of the standard
//! library's mutex only if the standard library is compiled for it too (docs/verification.md).
#![allow(unsafe_code, reason = "a lock")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[derive(Default)]
pub(crate) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Runs `f` with the value. If `f` panicked, the lock would stay taken; no caller's `f` does.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        while self.taken.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        // SAFETY: `taken` was false, and is true until the store below.
        let result = f(unsafe { &mut *self.value.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}
