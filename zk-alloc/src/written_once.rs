//! A value that is written once, by whoever comes first, and read ever after. Nobody waits: as long as it is being written,
//! there is none, also for a signal handler that interrupts the writing, and for a child that is forked off meanwhile.
#![allow(unsafe_code, reason = "a cell that one thread writes before all others read")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, Ordering};

/// See the module's documentation.
pub(crate) struct WrittenOnce<T> {
    state: AtomicU8,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: `value` is written once, by whoever moved `state` from `EMPTY` to `WRITING`, and read only by those who saw
// `WRITTEN`, which the writer stores afterwards. It may be written on one thread and is then shared.
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
        // SAFETY: `WRITTEN` was seen, so that nobody writes any more.
        unsafe { (*self.value.get()).as_ref() }
    }

    /// Writes the value, unless somebody did or does.
    pub(crate) fn write(&self, value: impl FnOnce() -> T) {
        if self.state.compare_exchange(EMPTY, WRITING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let value = value();
            // SAFETY: this thread alone moved the state to `WRITING`, and until `WRITTEN` nobody reads.
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
