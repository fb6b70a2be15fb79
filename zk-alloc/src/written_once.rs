//! A value that the first writer writes once, and that any thread may read afterwards. Nobody waits. While a thread writes the
//! value, readers get `None`. A signal handler that interrupts the writer gets `None`, too, and so does a child that is forked at
//! that time.
#![allow(unsafe_code, reason = "a cell that one thread writes before all others read")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, Ordering};

/// See the module's documentation.
pub(crate) struct WrittenOnce<T> {
    state: AtomicU8,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: `value` is written once, by the thread that moved `state` from `EMPTY` to `WRITING`. Only threads that saw `WRITTEN`
// read it, and the writer stores `WRITTEN` after the value. One thread may write the value and others share it, so `T` is `Send`
// and `Sync`.
unsafe impl<T: Send + Sync> Sync for WrittenOnce<T> {}

const EMPTY: u8 = 0;
const WRITING: u8 = 1;
const WRITTEN: u8 = 2;

impl<T> WrittenOnce<T> {
    pub(crate) const fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(None) }
    }

    /// The value, if it was written.
    pub(crate) fn get(&self) -> Option<&T> {
        if self.state.load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        // SAFETY: this thread saw `WRITTEN`, so nobody writes any more.
        unsafe { (*self.value.get()).as_ref() }
    }

    /// Writes the value, unless another call wrote it before or is writing it now.
    pub(crate) fn write(&self, value: impl FnOnce() -> T) {
        if self.state.compare_exchange(EMPTY, WRITING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let value = value();
            // SAFETY: this thread alone moved the state to `WRITING`, and nobody reads before `WRITTEN`.
            unsafe { *self.value.get() = Some(value) };
            self.state.store(WRITTEN, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_stays_and_there_is_none_while_it_is_written() {
        let cell = WrittenOnce::new();
        assert_eq!(cell.get(), None);
        cell.write(|| {
            cell.write(|| 2);
            assert_eq!(cell.get(), None, "what interrupts the writing finds nothing");
            1
        });
        cell.write(|| 3);
        assert_eq!(cell.get(), Some(&1));
    }

    #[test]
    fn of_many_writers_one_is_read_by_all() {
        for _ in 0..100 {
            let cell = WrittenOnce::new();
            std::thread::scope(|scope| {
                for number in 0..4 {
                    let cell = &cell;
                    scope.spawn(move || {
                        cell.write(|| [number; 16]);
                        if let Some(seen) = cell.get() {
                            assert_eq!(*seen, [seen[0]; 16]);
                        }
                    });
                }
            });
            assert!(cell.get().is_some());
        }
    }
}
