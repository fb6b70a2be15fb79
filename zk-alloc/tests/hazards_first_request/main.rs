//! The first request of a process may come at any moment: in a signal handler that interrupted `malloc`, in a forked
//! child, or with no memory left. Another thread may be changing the environment, the thread may be ending, or a panic
//! may be printing its backtrace. The allocator must serve it, or refuse it if there is no memory. It must not wait
//! forever, and must not end the process.
//!
//! A process has one first request, so each test starts its binary again. There a constructor takes over before any
//! Rust code runs. It forks children that have made no request yet, and each makes its first request in such a moment.
//!
//! Each moment is tried with two arenas. One serves phases, and the first phase begins in that moment too. The other always serves: no call
//! comes before the request, which has the settings in code.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "forks, handles signals, sets limits and calls the C library's allocator")]

mod moments;
mod stacks;
#[path = "../support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use support::process::{in_a_fork, variable};
use support::{child, in_its_own_process};
use zk_alloc::{Mode, Origin, Participants, Settings, ZkAllocator, begin_phase, end_phase, stats};

static SCOPED: ZkAllocator = ZkAllocator;
static RESIDENT: ZkAllocator =
    ZkAllocator.settings(Settings::new().retain_bytes(1 << 40)).mode(Mode::Resident).participants(Participants::All);

/// Whether [`RESIDENT`] is the allocator of this process, and not [`SCOPED`]. Set before the first request.
static IS_RESIDENT: AtomicBool = AtomicBool::new(false);

/// The allocator of this process, [`RESIDENT`] or [`SCOPED`].
struct Installed;

impl Installed {
    #[inline]
    fn get(&self) -> &'static ZkAllocator {
        if IS_RESIDENT.load(Ordering::Relaxed) { &RESIDENT } else { &SCOPED }
    }
}

// SAFETY: as for `ZkAllocator`. It is the same for all of the process's requests.
unsafe impl GlobalAlloc for Installed {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: upheld by the caller.
        unsafe { self.get().alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: upheld by the caller.
        unsafe { self.get().alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: upheld by the caller.
        unsafe { self.get().realloc(at, layout, new_size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: upheld by the caller.
        unsafe { self.get().dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOC: Installed = Installed;

/// Before the first request and after the last one.
fn begin() {
    if !IS_RESIDENT.load(Ordering::Relaxed) {
        begin_phase();
    }
}

fn end() {
    if !IS_RESIDENT.load(Ordering::Relaxed) {
        end_phase();
    }
}

/// The variable that names the moment that the process tries, instead of running tests.
const MOMENT: &str = "ZK_ALLOC_TEST_MOMENT";
/// The variable that chooses [`RESIDENT`].
const MODE: &str = "ZK_ALLOC_TEST_RESIDENT";
/// The variable that sets the number of children.
const TRIES: &str = "ZK_ALLOC_TEST_TRIES";

/// The exit code of a child that succeeded.
const FINE: c_int = 0;
/// The request got no memory (`REFUSED`), or the memory lost its contents (`BROKEN`).
const REFUSED: c_int = 10;
const BROKEN: c_int = 11;
/// The arena served nothing, so the child tested nothing.
const ELSEWHERE: c_int = 12;
/// Memory of threads that ended was lost.
const LOST: c_int = 14;
/// The child could not prepare the test.
const UNPREPARED: c_int = 13;

extern "C" fn before_main() {
    IS_RESIDENT.store(variable(c"ZK_ALLOC_TEST_RESIDENT") == Some("1"), Ordering::Relaxed);
    let Some(moment) = variable(c"ZK_ALLOC_TEST_MOMENT") else { return };
    // By default, the tries are few.
    let asked = variable(c"ZK_ALLOC_TEST_TRIES").and_then(|tries| tries.parse().ok());
    let found = ALL.iter().find(|(name, ..)| *name == moment);
    let failed = found.map_or(1, |&(_, tries, child)| in_children(asked.unwrap_or(tries), child));
    // SAFETY: ends the process before `main`.
    unsafe { libc::_exit(failed) };
}

// SAFETY: the loader calls the functions that are listed here, and they have this type.
#[unsafe(link_section = ".init_array")]
#[used]
static INIT: extern "C" fn() = before_main;

/// Runs `child` in this number of children, up to the first that fails, and prints which one that was. Each child makes
/// the first request of its process, because this process makes none before all are done.
fn in_children(tries: u32, child: fn(u32) -> c_int) -> c_int {
    let codes = (0..tries).map(|number| (number, in_a_fork(|| child(number) as u8)));
    let failed = codes.into_iter().find(|&(_, code)| code != FINE);
    eprintln!("of {tries} children, this one failed, with its code: {failed:?}");
    c_int::from(failed.is_some())
}

/// Runs the children of this moment in both modes, with only large requests served by the arena, and with all of them.
#[track_caller]
fn check(moment: &str) {
    for (mode, min_bytes) in [("0", "1024"), ("0", "0"), ("1", "1024"), ("1", "0")] {
        let tries = std::env::var(TRIES);
        let mut settings = vec![
            (MOMENT, moment),
            (MODE, mode),
            ("ZK_ALLOC_MIN_BYTES", min_bytes),
            // For the moment that is about the backtrace.
            ("RUST_BACKTRACE", "1"),
            ("ZK_ALLOC_TRACE_ESCAPED", if moment.contains("backtrace") { "1" } else { "0" }),
        ];
        settings.extend(tries.iter().map(|tries| (TRIES, tries.as_str())));
        settings.extend(moment.contains("little_stack").then_some(("ZK_ALLOC_MAX_BYTES", stacks::MAX_BYTES)));
        // The process ends before `main`.
        let Some(ended) = child(&settings, || ()) else { return };
        assert!(ended.status.success() && ended.stderr.contains("this one failed, with its code: None"), "{ended:?}");
    }
}

/// The test harness makes the first request. Methods that build the allocator further keep its settings.
#[test]
fn settings_of_the_installed_allocator_are_in_force_from_the_first_request_on() {
    in_its_own_process(&[(MODE, "1")], || {
        let retained = stats().settings.expect("there is an arena").retain_bytes;
        assert_eq!((retained.value, retained.origin), (1 << 40, Origin::Program), "{}", stats());
    });
}

/// The first request of this process, some more, and their frees. With `may_be_refused`, each request may be refused.
fn request(may_be_refused: bool) -> c_int {
    begin();
    let code = request_between(may_be_refused);
    end();
    code
}

/// The sizes of the requests: blocks, page runs and a huge run.
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
        // SAFETY: `size` bytes that this function owns.
        unsafe { at.write_bytes(seed, size) };
        // SAFETY: allocated above, with this layout.
        let grown = unsafe { realloc(at, layout, 2 * size) };
        let (at, len) = if grown.is_null() { (at, size) } else { (grown, 2 * size) };
        if grown.is_null() && !may_be_refused {
            return REFUSED;
        }
        // SAFETY: written above, up to the old length.
        if unsafe { std::slice::from_raw_parts(at, size) }.iter().any(|&byte| byte != seed) {
            return BROKEN;
        }
        // SAFETY: `len` is its current length, and nothing uses it any more.
        unsafe { dealloc(at, Layout::from_size_align_unchecked(len, 8)) };
    }
    FINE
}

/// Whether the arena served any of the requests.
fn served() -> c_int {
    if stats().arena_allocations > 0 { FINE } else { ELSEWHERE }
}

/// Makes a test of each moment: its name, the number of children, and the function that each child runs with its number.
macro_rules! tests {
    ($($(#[doc = $why:literal])* $name:ident, $tries:literal, $child:path;)*) => {
        const ALL: &[(&str, u32, fn(u32) -> c_int)] = &[$((stringify!($name), $tries, $child)),*];

        $(
            $(#[doc = $why])*
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*
    };
}

tests! {
    /// The interrupted `malloc` holds its lock, and releases it only after the handler has returned. A handler that
    /// calls `malloc`, to register a destructor for example, waits forever.
    in_a_handler_that_interrupted_malloc, 40, moments::in_a_handler;
    /// The handler interrupts the opening of the arena, or the take-over of `malloc`'s heap.
    in_a_handler_that_interrupted_the_first_request, 120, moments::in_a_handler_of_the_first;
    /// The other threads held locks when they were copied, and do not exist in the child. The C library repairs the
    /// lock of `malloc`; nothing repairs the locks of the standard library.
    in_a_forked_child, 2, moments::in_a_forked_child;
    /// Neither address space nor data is left, and the C library's heap is used up.
    with_no_memory_left, 20, moments::with_no_memory_left;
    /// The process made its first request long ago, the thread makes its first one now. Any memory that the thread's
    /// cache needs must not come from `malloc`.
    in_a_thread_that_finds_no_memory_left, 10, moments::in_a_thread_without_memory;
    /// The allocator reads its settings while another thread moves the list of variables elsewhere.
    while_the_environment_changes, 40, moments::while_the_environment_changes;
    /// The thread's own state is being torn down, or is gone. Memory that such a thread got is not lost when the thread ends.
    in_the_destructors_of_threads, 4, moments::in_destructors;
    /// The smallest possible stack of a thread also holds the C library's data about it.
    in_a_thread_with_little_stack, 2, stacks::in_a_thread_with_little_stack;
    /// A handler's own stack also holds the state of the interrupted code.
    in_a_handler_with_little_stack, 2, stacks::in_a_handler_with_little_stack;
    /// A panic prints under a lock, and allocates at the same time; tracing of escapes is on.
    while_a_panic_prints_its_backtrace, 1, moments::while_a_panic_prints;
}
