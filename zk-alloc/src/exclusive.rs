//! Keeps a signal handler out of what the interrupted thread has half changed.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

/// Whether this thread is at something that its own signal handlers must not find half done. Other threads never see it.
#[derive(Debug)]
pub(crate) struct Exclusive {
    busy: AtomicBool,
}

impl Exclusive {
    pub(crate) const fn new() -> Self {
        Self { busy: AtomicBool::new(false) }
    }

    /// Runs `f` unless this thread is in here already.
    #[inline(always)]
    pub(crate) fn run<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        if self.busy.load(Ordering::Relaxed) {
            return None;
        }
        self.busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let result = f();
        compiler_fence(Ordering::SeqCst);
        self.busy.store(false, Ordering::Relaxed);
        Some(result)
    }
}
