//! Limits of the process, for as long as something runs.
#![allow(unsafe_code, reason = "sets limits of the process")]

/// Runs `body` while the process may have no more writable memory of its own, and lets it have as much as before again.
pub(crate) fn without_more_memory<R>(body: impl FnOnce() -> R) -> R {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the answer.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_DATA, &raw mut old) }, 0);
    let new = libc::rlimit { rlim_cur: 1, ..old };
    // SAFETY: a valid limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const new) }, 0);
    let result = body();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const old) }, 0);
    result
}
