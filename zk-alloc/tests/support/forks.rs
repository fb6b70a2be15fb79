//! Forked children and their exit codes.
#![allow(unsafe_code, reason = "forks")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Longer than a child takes on a busy machine. One that hangs is ended then.
const PATIENCE_S: u32 = 40;

/// Starts a child that runs `work` and ends with its result. Returns the child's id.
///
/// The child must not panic: the report takes locks that another thread may have held.
pub(crate) fn start(work: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs `work`, and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes any number.
        unsafe { libc::alarm(PATIENCE_S) };
        let code = work();
        // SAFETY: as above.
        unsafe { libc::_exit(code.into()) };
    }
    assert!(child > 0, "no process: {}", std::io::Error::last_os_error());
    child
}

/// Waits for a child, and returns its exit code; 1,000 and more if a signal ended it.
pub(crate) fn code_of(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: a child of this process, and a place for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1_000 + libc::WTERMSIG(status) }
}

/// Runs `work` in a forked child, and returns the child's exit code, as [`code_of`] does.
pub(crate) fn in_a_fork(work: impl FnOnce() -> u8) -> i32 {
    code_of(start(work))
}

/// Tells other threads to stop, even if a child failed.
pub(crate) struct StopAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `child` in 60 forked children while two threads do `work` again and again. Each must end with this code.
pub(crate) fn fork_beside_threads(code: i32, work: impl FnMut() + Clone + Send, child: impl Fn() -> u8) {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _at_end = StopAtEnd(stop);
        for mut work in [work.clone(), work] {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        (0..60).for_each(|_| assert_eq!(in_a_fork(&child), code));
    });
}
