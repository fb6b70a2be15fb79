//! Loom's atomics, with all of their orders.
//!
//! Loom 0.7.2 runs only such orders of accesses as may differ in what they do, and finds those by the last access to each atomic.
//! Loads do not count as accesses to each other; so where a thread loads and then changes what another thread has loaded before,
//! its own load stands for both, and the change is never tried before the other's load:
//!
//! ```text
//! one thread: x.load(); x.fetch_add(1); y.store(1)        the other: x.load(); y.load()     never sees 1 and 1
//! ```
//!
//! Nearly all that we do is a load, and a change if that pays. Here each atomic has a twin that every access, a load too, changes
//! just before, so that each order of any two accesses is tried. The twin's changes are `Relaxed`, and order nothing.

use std::ops::Deref;

pub(crate) use loom::sync::atomic::Ordering;

macro_rules! watched {
    ($($name:ident: $integer:ty),*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name {
            atomic: loom::sync::atomic::$name,
            twin: loom::sync::atomic::AtomicBool,
        }

        impl $name {
            #[track_caller]
            pub(crate) fn new(value: $integer) -> Self {
                Self { atomic: loom::sync::atomic::$name::new(value), twin: loom::sync::atomic::AtomicBool::new(false) }
            }
        }

        impl Deref for $name {
            type Target = loom::sync::atomic::$name;

            /// For one access.
            fn deref(&self) -> &Self::Target {
                self.twin.store(false, Ordering::Relaxed);
                &self.atomic
            }
        }
    )*};
}
watched!(AtomicU8: u8, AtomicU64: u64);
