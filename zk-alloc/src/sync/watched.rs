//! Loom's atomics, made to run in every order.
//!
//! Loom 0.7.2 runs only orders of accesses that may differ in their effect. It finds them by the last access to each atomic, and
//! treats loads as independent of each other. If a thread loads an atomic that another thread has loaded, and then changes it, its
//! own load hides the other one. So loom never tries the change before the other thread's load. For example:
//!
//! ```text
//! one thread: x.load(); x.fetch_add(1); y.store(1)        the other: x.load(); y.load()     never sees 1 and 1
//! ```
//!
//! Most of our protocols load a value, and change it if that pays. So each atomic here has a twin, which every access changes just
//! before, even a load. Loom then tries each order of any two accesses. The twin's changes are `Relaxed`, so that they order nothing.

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

            /// Call it once for each access.
            fn deref(&self) -> &Self::Target {
                self.twin.store(false, Ordering::Relaxed);
                &self.atomic
            }
        }
    )*};
}
watched!(AtomicU8: u8, AtomicU64: u64);
