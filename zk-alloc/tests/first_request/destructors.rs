//! Requests of threads that end: from a Rust destructor, or from a destructor of the C library, which runs last.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::moments::ENDED;
use super::{FINE, LOST, UNPREPARED, request, served};
use crate::support::raw::{join, start};

struct AtEnd;

thread_local! {
    static AT_END: AtEnd = const { AtEnd };
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        ENDED.store(request(false), Ordering::SeqCst);
    }
}

unsafe extern "C" fn destroy(_: *mut c_void) {
    ENDED.store(request(false), Ordering::SeqCst);
}

/// A thread that leaves a value to be destroyed: by Rust, or by the C library, which comes last.
extern "C" fn end_with_destructor(key: *mut c_void) -> *mut c_void {
    if key.is_null() {
        AT_END.with(|_| ());
    } else {
        let key = (key.addr() - 1) as libc::pthread_key_t;
        // SAFETY: a key of this module, and a value that is not null.
        unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(1)) };
    }
    null_mut()
}

/// Runs a thread whose destructor makes a request. Returns the request's result.
fn run_thread_with_destructor(key: Option<libc::pthread_key_t>) -> c_int {
    ENDED.store(-1, Ordering::SeqCst);
    let value = key.map_or(0, |key| key as usize + 1);
    let Some(thread) = start(end_with_destructor, std::ptr::without_provenance_mut(value)) else { return UNPREPARED };
    join(thread);
    let code = ENDED.load(Ordering::SeqCst);
    if code < 0 { UNPREPARED } else { code }
}

/// A key with a destructor, for every other child.
fn key(number: u32) -> Option<libc::pthread_key_t> {
    let mut key = 0;
    // SAFETY: a place for the key.
    (number.is_multiple_of(2) && unsafe { libc::pthread_key_create(&raw mut key, Some(destroy)) } == 0).then_some(key)
}

pub(super) fn in_one(number: u32) -> c_int {
    run_thread_with_destructor(key(number)).max(served())
}

pub(super) fn in_many(number: u32) -> c_int {
    let key = key(number);
    if let Some(code) = (0..300).map(|_| run_thread_with_destructor(key)).find(|&code| code != FINE) {
        return code;
    }
    // Each thread ended before the next began, so the slabs must not add up.
    let slabs = zk_alloc::stats().slabs;
    if slabs <= 20 { served() } else { LOST }
}
