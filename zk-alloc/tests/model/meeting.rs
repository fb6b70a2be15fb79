//! A barrier that also tells its threads if one of them panicked. They would wait for it forever.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// A barrier for a fixed number of threads, any number of times.
pub(crate) struct Meeting {
    threads: usize,
    /// The number of arrivals, over all meetings.
    came: AtomicUsize,
    /// The number of meetings that are over.
    over: AtomicUsize,
    broken: AtomicBool,
}

impl Meeting {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads, came: AtomicUsize::new(0), over: AtomicUsize::new(0), broken: AtomicBool::new(false) }
    }

    /// Waits for all threads. The last one runs `f` while the others still wait.
    pub(crate) fn meet(&self, f: impl FnOnce()) {
        let before = self.over.load(Ordering::Acquire);
        if self.came.fetch_add(1, Ordering::AcqRel) + 1 == (before + 1) * self.threads {
            f();
            self.over.store(before + 1, Ordering::Release);
        }
        while self.over.load(Ordering::Acquire) == before {
            assert!(!self.broken.load(Ordering::Relaxed), "another thread panicked");
            thread::yield_now();
        }
    }

    /// Tells the others if this thread panics while it holds the guard.
    pub(crate) fn member(&self) -> Member<'_> {
        Member(self)
    }
}

pub(crate) struct Member<'a>(&'a Meeting);

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}
