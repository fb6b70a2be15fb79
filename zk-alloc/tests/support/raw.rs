//! Calls of the C library, for code that must not allocate, or that runs before `main`.
#![allow(unsafe_code, reason = "calls the C library")]

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// A variable of the environment, before other threads can change it.
pub(crate) fn variable(name: &CStr) -> Option<&'static str> {
    // SAFETY: a C string, and one of the environment, which nothing changes yet.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() { None } else { Some(CStr::from_ptr(value)) }
    };
    value?.to_str().ok()
}

/// Has `handler` handle a signal. Returns `false` if that is refused.
pub(crate) fn handle(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) -> bool {
    // SAFETY: all zeroes is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    // SAFETY: a valid action. The test answers for its handler.
    unsafe { libc::sigaction(signal, &raw const action, null_mut()) == 0 }
}

/// Starts a thread without Rust's standard library, which might allocate.
pub(crate) fn start(run: extern "C" fn(*mut c_void) -> *mut c_void, value: *mut c_void) -> Option<libc::pthread_t> {
    let mut thread = MaybeUninit::uninit();
    // SAFETY: a place for the thread, and a function of its type. The place is written if the thread was started.
    unsafe {
        let is_started = libc::pthread_create(thread.as_mut_ptr(), null(), run, value) == 0;
        is_started.then(|| thread.assume_init())
    }
}

/// Waits for a thread of [`start`].
pub(crate) fn join(thread: libc::pthread_t) {
    // SAFETY: a thread of this process, joined once.
    assert_eq!(unsafe { libc::pthread_join(thread, null_mut()) }, 0);
}
