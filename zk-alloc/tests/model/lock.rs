//! A spin lock. ThreadSanitizer sees its atomics, because they are compiled here; those of the standard library's mutex it
//! does not see, unless the standard library is compiled for it too (docs/verification.md).
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
    /// Runs `f` with the value. Should it panic, the lock stays taken: `f` does not.
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
