//! The first request ever comes when it comes: in a signal handler that interrupted `malloc`, in a forked child, with no memory
//! left, while another thread changes the environment, in the destructor of a thread, while a panic prints its backtrace. It
//! must be served, or refused where there is no memory; it must not wait for what will not come, and must not end the process.
//!
//! A process has one first request. So each test starts its binary again; there a constructor takes over before anything of
//! Rust's runs, and forks children that have made no request yet, each of which makes its first in such a moment.
#![allow(unsafe_code, reason = "forks, handles signals, sets limits and calls the C library's allocator")]

mod destructors;
mod moments;
mod stacks;

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::ffi::{CStr, OsStr, c_int};

use crate::support::alone;
use crate::{BEGIN, END};

/// Names what the process is to do instead of running tests.
const MOMENT: &str = "ZK_ALLOC_TEST_MOMENT";
/// Says how many children it has do it.
const TRIES: &str = "ZK_ALLOC_TEST_TRIES";

/// How a child ended that did what it should.
const FINE: c_int = 0;
/// Memory was not to be had, or held something else than what was written to it.
const REFUSED: c_int = 10;
const BROKEN: c_int = 11;
/// The arena served nothing: then nothing was tried.
const ELSEWHERE: c_int = 12;
/// Memory of threads that are gone is nobody's.
const LOST: c_int = 14;
/// What the test needs could not be had.
const UNPREPARED: c_int = 13;

/// A child that is not done after so many seconds waits for something that will not come.
const PATIENCE_S: u32 = 10;

extern "C" fn before_main() {
    // SAFETY: a string of C's. No other thread changes the environment yet.
    let moment = unsafe { libc::getenv(c"ZK_ALLOC_TEST_MOMENT".as_ptr()) };
    if moment.is_null() {
        return;
    }
    // SAFETY: not null, and as above.
    let moment = unsafe { CStr::from_ptr(moment) }.to_str().unwrap_or_default();
    let found = moments::ALL.iter().find(|(name, ..)| *name == moment);
    let failed = found.map_or(1, |&(_, tries, child)| in_children(asked_tries().unwrap_or(tries), child));
    // SAFETY: ends the process before there was a `main`.
    unsafe { libc::_exit(failed) };
}

/// As many tries as a person has the patience for, by a variable; otherwise few.
fn asked_tries() -> Option<u32> {
    // SAFETY: a string of C's. No other thread changes the environment yet.
    let tries = unsafe { libc::getenv(c"ZK_ALLOC_TEST_TRIES".as_ptr()) };
    // SAFETY: not null, and as above.
    (!tries.is_null()).then(|| unsafe { CStr::from_ptr(tries) })?.to_str().ok()?.parse().ok()
}

// SAFETY: the loader calls what is listed here, as functions of this type.
#[unsafe(link_section = ".init_array")]
#[used]
static INIT: extern "C" fn() = before_main;

/// Runs `child` in so many children, and says how many of them ended well. The fork makes each the first of its kind: this
/// process makes no request before all are done.
fn in_children(tries: u32, child: fn(u32) -> c_int) -> c_int {
    let mut failures = [(0, 0); 3];
    let mut failed = 0;
    for number in 0..tries {
        // SAFETY: this process has one thread, or its children do only what is promised to children of any process.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: its signal ends the child.
            unsafe { libc::alarm(PATIENCE_S) };
            let code = child(number);
            // SAFETY: ends the child, without destructors.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: a child of ours, and a place for the answer.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if status != 0 {
            failures[failed] = (number, status);
            failed += 1;
        }
        // Those that hang take their time.
        if failed == failures.len() {
            break;
        }
    }
    for &(number, status) in &failures[..failed] {
        match (libc::WIFEXITED(status), libc::WTERMSIG(status)) {
            (true, _) => eprintln!("child {number} ended with {}", libc::WEXITSTATUS(status)),
            (_, libc::SIGALRM) => eprintln!("child {number} waited for ever"),
            (_, signal) => eprintln!("child {number} was ended by signal {signal}"),
        }
    }
    eprintln!("{failed} of at most {tries} children failed");
    c_int::from(failed > 0)
}

/// Has children make their first request in a moment, with prover-sized requests only, and with all of them the arena's.
#[track_caller]
fn check(moment: &str) {
    for min_bytes in ["1024", "0"] {
        let tries = std::env::var_os(TRIES);
        let asked = tries.as_deref().map(|tries| (TRIES, tries));
        let settings = [
            (MOMENT, OsStr::new(moment)),
            ("ZK_ALLOC_MIN_BYTES", OsStr::new(min_bytes)),
            // For the moment that is about it.
            ("RUST_BACKTRACE", OsStr::new("1")),
            ("ZK_ALLOC_TRACE_ESCAPED", OsStr::new(if moment.contains("backtrace") { "1" } else { "0" })),
        ];
        let cap = moment.contains("little_stack").then_some(("ZK_ALLOC_MAX_BYTES", OsStr::new(stacks::MAX_BYTES)));
        let ended = alone(moment, &settings.into_iter().chain(asked).chain(cap).collect::<Vec<_>>());
        assert!(ended.status.success(), "{moment}, ZK_ALLOC_MIN_BYTES={min_bytes}: {}\n{}", ended.status, ended.stderr);
        assert!(ended.stderr.contains("children failed"), "{moment}: {ended:?}");
    }
}

/// The first request of this process, some more, and the end of all of them. Where `may_be_refused`, each may be.
fn request(may_be_refused: bool) -> c_int {
    BEGIN();
    let code = request_between(may_be_refused);
    END();
    code
}

/// Bytes of what is requested: from slabs, as page runs, and a giant.
const SIZES: [usize; 5] = [8 << 10, 48 << 10, 1_500, 3 << 20, 200 << 10];

fn request_between(may_be_refused: bool) -> c_int {
    let small: &[usize] = if zk_alloc::min_arena_bytes() == 0 { &[24, 200] } else { &[] };
    for (&size, seed) in SIZES.iter().chain(small).zip(1u8..) {
        let layout = Layout::from_size_align(size, 8).expect("a small alignment");
        // SAFETY: the size is not zero.
        let at = unsafe { if seed.is_multiple_of(2) { alloc_zeroed(layout) } else { alloc(layout) } };
        if at.is_null() {
            if may_be_refused {
                continue;
            }
            return REFUSED;
        }
        // SAFETY: `size` bytes of ours.
        unsafe { at.write_bytes(seed, size) };
        // SAFETY: allocated above, with this layout.
        let grown = unsafe { realloc(at, layout, 2 * size) };
        let (at, len) = if grown.is_null() { (at, size) } else { (grown, 2 * size) };
        if grown.is_null() && !may_be_refused {
            return REFUSED;
        }
        // SAFETY: initialised above, as far as the old length.
        if unsafe { std::slice::from_raw_parts(at, size) }.iter().any(|&byte| byte != seed) {
            return BROKEN;
        }
        // SAFETY: as long as it is by now; nobody uses it any more.
        unsafe { dealloc(at, Layout::from_size_align_unchecked(len, 8)) };
    }
    FINE
}

/// Whether the arena served any of what was requested.
fn served() -> c_int {
    if zk_alloc::stats().arena_allocations > 0 { FINE } else { ELSEWHERE }
}

macro_rules! tests {
    ($($(#[doc = $why:literal])* $name:ident;)*) => {$(
        $(#[doc = $why])*
        #[test]
        fn $name() {
            check(stringify!($name));
        }
    )*};
}

tests! {
    /// `malloc` holds its lock while it is interrupted, and nobody gives it back before the handler returns: whoever calls it
    /// there, for a destructor's registration or to teach it something, waits for ever.
    in_a_handler_that_interrupted_malloc;
    /// What is interrupted is the opening of the arena, or its readying of `malloc`.
    in_a_handler_that_interrupted_the_first_request;
    /// The other threads held locks when they were copied, and are no more: `malloc`'s are taken care of by the C library, the
    /// standard library's by nobody.
    in_a_forked_child;
    /// Neither address space nor data, and the C library's heap is used up.
    with_no_memory_left;
    /// The process' first request was long ago, the thread's comes now: whatever it needs to keep something for itself, it must
    /// not be `malloc`'s.
    in_a_thread_that_finds_no_memory_left;
    /// Settings are read while another thread moves the list of variables elsewhere.
    while_the_environment_changes;
    /// Whatever a thread keeps for itself is being torn down, or has been.
    in_a_destructor_of_a_thread;
    /// What such a thread got is not lost when it is gone.
    in_the_destructors_of_many_threads;
    /// The least stack that a thread can have holds what the C library keeps of it, too.
    in_a_thread_with_little_stack;
    /// A handler on a stack of its own finds there what it interrupted, too.
    in_a_handler_with_little_stack;
    /// A panic prints under a lock, and allocates meanwhile; tracing of escapes is on.
    while_a_panic_prints_its_backtrace;
}
