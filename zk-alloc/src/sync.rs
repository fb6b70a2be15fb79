//! Atomics, and a cell that is written once. In loom builds, the protocols that loom checks use loom's atomics. All other builds use the
//! standard library's.

use std::cell::UnsafeCell;
use std::sync::atomic;

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, compiler_fence};

#[cfg(loom)]
mod watched {
    //! Loom's atomics, changed so that loom tries every order of accesses.
    //!
    //! Loom 0.7.2 runs only those orders of accesses that may differ in their effect. It finds these orders from the last access to each
    //! atomic, and treats loads as independent of each other. If a thread loads an atomic that another thread has loaded, and then changes
    //! it, its own load replaces the other thread's as the last access. So loom never tries the change before the other thread's load. For
    //! example:
    //!
    //! ```text
    //! one thread: x.load(); x.fetch_add(1); y.store(1)        the other: x.load(); y.load()     never sees 1 and 1
    //! ```
    //!
    //! Most of our protocols load a value, and then may change it. So each atomic here has a twin, and every access, even a load, first
    //! writes the twin. Loom then tries each order of any two accesses. The twin's writes are `Relaxed`, so that they don't order other
    //! accesses.

    use std::ops::Deref;

    pub(crate) use loom::sync::atomic::Ordering;

    macro_rules! watched {
        ($($name:ident: $integer:ty),*) => {$(
            #[derive(Default)]
            pub(crate) struct $name {
                atomic: loom::sync::atomic::$name,
                twin: loom::sync::atomic::AtomicBool,
            }

            impl $name {
                #[allow(dead_code, reason = "some models only need zeroes")]
                #[track_caller]
                pub(crate) fn new(value: $integer) -> Self {
                    Self { atomic: loom::sync::atomic::$name::new(value), twin: loom::sync::atomic::AtomicBool::new(false) }
                }
            }

            impl Deref for $name {
                type Target = loom::sync::atomic::$name;

                /// Writes the twin, so call this once for each access.
                fn deref(&self) -> &Self::Target {
                    self.twin.store(false, Ordering::Relaxed);
                    &self.atomic
                }
            }
        )*};
    }
    watched!(AtomicU8: u8, AtomicU64: u64);
}
#[cfg(loom)]
pub(crate) use watched::{AtomicU8, AtomicU64, Ordering};

/// Stands in for a compiler fence, which loom lacks. In production, a cache's owner needs only a compiler fence, because a thread that
/// claims the cache makes all other threads fence. In the models, both sides use a full fence.
#[cfg(loom)]
pub(crate) fn compiler_fence(order: Ordering) {
    loom::sync::atomic::fence(order);
}

/// A value that the first writer writes once, and that any thread may read afterwards. No call waits. While a thread writes the value,
/// readers get `None`. So does a signal handler that interrupts the writer, and a child that is forked at that time.
pub(crate) struct WrittenOnce<T> {
    state: atomic::AtomicU8,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: `value` is written once, by the thread that moved `state` from `EMPTY` to `WRITING`. Only threads that saw `WRITTEN` read it, and
// the writer stores `WRITTEN` after the value. One thread may write the value and others may share it, so `T` must be `Send` and `Sync`.
#[allow(unsafe_code, reason = "a cell that one thread writes before all others read")]
unsafe impl<T: Send + Sync> Sync for WrittenOnce<T> {}

const EMPTY: u8 = 0;
const WRITING: u8 = 1;
const WRITTEN: u8 = 2;

#[allow(unsafe_code, reason = "reads and writes that cell")]
impl<T> WrittenOnce<T> {
    pub(crate) const fn new() -> Self {
        Self { state: atomic::AtomicU8::new(EMPTY), value: UnsafeCell::new(None) }
    }

    /// Returns the value, if it was written.
    pub(crate) fn get(&self) -> Option<&T> {
        if self.state.load(atomic::Ordering::Acquire) != WRITTEN {
            return None;
        }
        // SAFETY: this thread saw `WRITTEN`, so no thread writes the value any more.
        unsafe { (*self.value.get()).as_ref() }
    }

    /// Writes the value, unless another call wrote it before or is writing it now.
    pub(crate) fn write(&self, value: impl FnOnce() -> T) {
        if self.state.compare_exchange(EMPTY, WRITING, atomic::Ordering::Relaxed, atomic::Ordering::Relaxed).is_ok() {
            let value = value();
            // SAFETY: only this thread moved the state to `WRITING`, and no thread reads the value before `WRITTEN`.
            unsafe { *self.value.get() = Some(value) };
            self.state.store(WRITTEN, atomic::Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_stays_and_is_absent_while_it_is_written() {
        let cell = WrittenOnce::new();
        assert_eq!(cell.get(), None);
        cell.write(|| {
            cell.write(|| 2);
            assert_eq!(cell.get(), None, "a call within the write finds no value");
            1
        });
        cell.write(|| 3);
        assert_eq!(cell.get(), Some(&1));
    }
}
