//! A handler for a signal of the operator's choice.
#![allow(unsafe_code, reason = "installs a signal handler")]

use std::ffi::c_int;
use std::mem::{MaybeUninit, transmute};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Names without `SIG`, which may also stand before them.
const NAMES: &[(&str, c_int)] = &[
    ("HUP", libc::SIGHUP),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("URG", libc::SIGURG),
    ("WINCH", libc::SIGWINCH),
];

/// Signals that can't be handled, that report an error of the program, or that mean something to every program.
const RESERVED: &[c_int] = &[
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
    libc::SIGCHLD,
    libc::SIGPIPE,
];
const MAX_SIGNAL: c_int = 64;

/// The function that the handler runs.
static RUN: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// The signal of this name or number, if a program may give it a meaning.
pub(crate) fn signal_number(text: &str) -> Option<i32> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let named = NAMES.iter().find(|&&(known, _)| known == name).map(|&(_, number)| number);
    let number = named.or_else(|| text.parse().ok())?;
    Some(number).filter(|number| (1..=MAX_SIGNAL).contains(number) && !RESERVED.contains(number))
}

/// Has `run` called on whichever thread gets the signal. Returns `false`, and changes nothing, if the signal has a handler or is ignored, or if
/// the system refuses. `run` does only what a signal handler may do.
pub(crate) fn on_signal(number: i32, run: fn()) -> bool {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks without changing anything, and writes the answer to a place for one.
    let is_known = unsafe { libc::sigaction(number, std::ptr::null(), before.as_mut_ptr()) } == 0;
    // SAFETY: all zeroes are a valid value.
    if !is_known || unsafe { before.assume_init() }.sa_sigaction != libc::SIG_DFL {
        return false;
    }
    RUN.store(run as *mut (), Ordering::Release);
    // SAFETY: all zeroes are a valid value: an empty mask.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    let handler: extern "C" fn(c_int) = handle;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: a handler of the right type, which calls only what a handler may.
    unsafe { libc::sigaction(number, &raw const action, null_mut()) == 0 }
}

extern "C" fn handle(_signal: c_int) {
    let run = RUN.load(Ordering::Acquire);
    // SAFETY: `on_signal` stored a function of this type before it installed this handler.
    let run = unsafe { transmute::<*mut (), fn()>(run) };
    // The interrupted code may be about to read its error.
    let _ = super::imp::keeping_errno(|| {
        run();
        0
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_name_or_a_number_and_no_other_meaning() {
        assert_eq!(
            ["USR1", "SIGUSR1", "12", "64"].map(signal_number),
            [Some(libc::SIGUSR1), Some(libc::SIGUSR1), Some(12), Some(64)]
        );
        for text in ["", "0", "65", "-1", "9", "KILL", "11", "SEGV", "17", "usr1", "1x", "SIG"] {
            let number = signal_number(text);
            assert!(number.is_none_or(|number| !RESERVED.contains(&number)), "{text}");
            assert!(text == "17" && cfg!(target_vendor = "apple") || number.is_none(), "{text}: {number:?}");
        }
    }
}
