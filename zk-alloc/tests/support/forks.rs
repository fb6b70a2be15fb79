//! Forked children and their exit codes.
#![allow(unsafe_code, reason = "forks")]

use std::time::{Duration, Instant};

/// Longer than a child takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Starts a child that runs `work` and ends with its result. Returns the child's id.
///
/// The child must not panic: the report takes locks that another thread may have held.
pub(crate) fn start(work: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs `work`, and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = work();
        // SAFETY: as above.
        unsafe { libc::_exit(code.into()) };
    }
    assert!(child > 0, "no process: {}", std::io::Error::last_os_error());
    child
}

/// Waits for a child, and returns its exit code; 1,000 and more if a signal killed it. Kills it if it hangs.
pub(crate) fn code_of(child: i32) -> i32 {
    let begun = Instant::now();
    let mut status = 0;
    // SAFETY: a child of this process, and a place for the answer.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > PATIENCE {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1_000 + libc::WTERMSIG(status) }
}

/// Runs `work` in a forked child, and returns the child's exit code, as [`code_of`] does.
pub(crate) fn in_a_fork(work: impl FnOnce() -> u8) -> i32 {
    code_of(start(work))
}
