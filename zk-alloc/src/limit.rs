//! A function of the program that is called when resident memory comes near to `ZK_ALLOC_MAX_BYTES`.
#![allow(unsafe_code, reason = "keeps the program's function in an atomic")]

use std::mem::transmute;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::{arena, os, tuning};

/// The program's function.
type Event = fn(resident_bytes: usize, max_bytes: usize);

/// The share of the limit, in percent; 0 while the program set no function.
static PERCENT: AtomicUsize = AtomicUsize::new(0);
static EVENT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// Whether the function was called for the present crossing.
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// Has `event` called when the resident bytes of the arena reach `percent` of [`max_bytes`](crate::Settings::max_bytes)
/// (`ZK_ALLOC_MAX_BYTES`). It is called once for each crossing: again only after they fell an eighth of the limit below. Replaces the function
/// that was set before. With 0 percent, no function is called. Without a limit, none is either.
///
/// The thread whose request crosses the share calls `event(resident_bytes, max_bytes)` within that request. So `event` should be short: set a
/// flag, wake a thread. It may allocate, which never calls it again, and may call [`release`](crate::release). The process ends if it panics. It
/// is not called in a signal handler, or on a thread that blocks signals.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static IS_TIGHT: AtomicBool = AtomicBool::new(false);
///
/// zk_alloc::on_memory_limit(80, |_resident_bytes, _max_bytes| IS_TIGHT.store(true, Ordering::Relaxed));
/// // A service now takes no new proofs while `IS_TIGHT` is set.
/// # zk_alloc::on_memory_limit(0, |_, _| ());
/// ```
pub fn on_memory_limit(percent: u8, event: fn(resident_bytes: usize, max_bytes: usize)) {
    EVENT.store(event as *mut (), Ordering::Relaxed);
    IS_CALLED.store(false, Ordering::Relaxed);
    // Release: a thread that sees the share calls the function that was set with it, or a later one.
    PERCENT.store(percent.into(), Ordering::Release);
}

/// Looks whether the limit is near. For the end of a request that may have made memory resident.
#[inline(always)]
pub(crate) fn look() {
    if PERCENT.load(Ordering::Acquire) != 0 {
        look_now();
    }
}

#[cold]
#[inline(never)]
fn look_now() {
    let max_bytes = arena::max_bytes();
    if max_bytes == usize::MAX {
        return;
    }
    let share_bytes = (max_bytes / 100).saturating_mul(PERCENT.load(Ordering::Relaxed));
    let resident_bytes = arena::resident_bytes();
    if resident_bytes < share_bytes {
        if resident_bytes < share_bytes.saturating_sub(max_bytes / tuning::event_part()) {
            IS_CALLED.store(false, Ordering::Relaxed);
        }
        return;
    }
    if IS_CALLED.load(Ordering::Relaxed) || os::may_be_in_signal_handler() || IS_CALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: `on_memory_limit` stored a function of this type before the share, which was seen with Acquire.
    let event = unsafe { transmute::<*mut (), Event>(EVENT.load(Ordering::Relaxed)) };
    let guard = AbortOnUnwind;
    event(resident_bytes, max_bytes);
    std::mem::forget(guard);
}

/// Ends the process if the program's function panics: an allocator must not unwind.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
