//! Limits of the process, and other limits while a closure runs.
#![allow(unsafe_code, reason = "reads and sets limits of the process")]

#[cfg(target_env = "gnu")]
pub(crate) type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
pub(crate) type Resource = libc::c_int;

fn limit_of(resource: Resource) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the answer.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut limit) }, 0);
    limit
}

/// The number of bytes that this process may lock.
pub(crate) fn lockable_bytes() -> u64 {
    limit_of(libc::RLIMIT_MEMLOCK).rlim_cur
}

/// Runs `body` with a soft limit, and restores the old one.
pub(crate) fn limited<R>(resource: Resource, bytes: usize, body: impl FnOnce() -> R) -> R {
    let old = limit_of(resource);
    let new = libc::rlimit { rlim_cur: bytes as u64, ..old };
    // SAFETY: a valid limit.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const new) }, 0);
    let result = body();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const old) }, 0);
    result
}

/// Runs `body` while the process can't get more private writable memory.
pub(crate) fn without_more_memory<R>(body: impl FnOnce() -> R) -> R {
    limited(libc::RLIMIT_DATA, 1, body)
}
