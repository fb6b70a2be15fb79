//! Whether the process is in a sandbox that kills it for an unexpected system call (seccomp).
//!
//! An allowlist for such a process has the calls of glibc's malloc: mmap, munmap, mremap, mprotect, brk, futex, and madvise with
//! `MADV_DONTNEED`. Few have membarrier(2) or other advice, and a process cannot ask for the list. Once the process is said to be in a
//! sandbox, the arena makes no other calls. It leaves the caches of other threads alone, faults memory in as threads touch it, gives no
//! advice on huge pages, and writes no message.

use std::sync::atomic::{AtomicBool, Ordering};

/// The variable that says that the process is in a sandbox.
pub(crate) const SANDBOX: &str = "ZK_ALLOC_SANDBOX";

static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// Tells the arena that the process is in a sandbox, or about to enter one. Nothing undoes this.
pub(crate) fn enter_sandbox() {
    IS_ENTERED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_in_sandbox() -> bool {
    IS_ENTERED.load(Ordering::Relaxed)
}
