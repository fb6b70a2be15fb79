//! The key of the C library that tells of exiting threads.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::os;

/// The key whose destructor runs when a thread exits, and one; 0 without.
static EXIT_KEY: AtomicU32 = AtomicU32::new(0);

/// Called on each exiting thread that has a cache, with the address of the cache.
pub(crate) type AtExit = unsafe extern "C" fn(*mut c_void);

/// The key that has `run` called when a thread exits. The first call makes it; `None` where the system has no key left.
///
/// That call should come before the program's: glibc has 32 keys for which it never allocates.
pub(crate) fn exit_key(run: AtExit) -> Option<u32> {
    let known = EXIT_KEY.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known - 1);
    }
    let key = os::thread_exit_key(run)?;
    match EXIT_KEY.compare_exchange(0, key + 1, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Some(key),
        Err(other) => {
            os::return_key(key);
            Some(other - 1)
        }
    }
}
