//! Whether the process is in a sandbox, in which a call that is not expected kills it (seccomp).
//!
//! Lists of what such a process may call have what glibc's malloc calls: mmap, munmap, mremap, mprotect, brk, futex, and madvise with
//! `MADV_DONTNEED`. Few have membarrier(2) or other advice, and nobody can ask whether they do. Who knows of a sandbox says so here,
//! and from then on nothing else is called: other threads' caches are left alone, memory is paged in as it is touched, nothing is
//! said about huge pages, and no message is written.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// The process is in a sandbox, or about to enter one. For good.
pub(crate) fn enter_sandbox() {
    IS_ENTERED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_in_sandbox() -> bool {
    IS_ENTERED.load(Ordering::Relaxed)
}
