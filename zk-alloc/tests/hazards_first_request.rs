//! The first request of a process may come at any moment: in a signal handler that interrupted `malloc`, in a forked child, with no memory
//! left, while another thread changes the environment, while a thread exits, or while a panic prints its backtrace. The allocator must
//! serve the request, or refuse it if there is no memory. It must neither hang nor terminate the process.
//!
//! A process has only one first request, so each test starts its binary again. In the new process, a constructor runs before any Rust code
//! allocates. It forks children, and each child makes its first request at the moment that the test is about.
//!
//! Each moment is tried with two allocators. [`SCOPED`] serves only phases, so its first phase begins at that moment too. [`RESIDENT`] also
//! serves requests outside of phases, so the request is the first call into the allocator, and applies the program's settings.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "forks, handles signals, sets limits and calls the C library's allocator")]

mod support;

use std::alloc::{GlobalAlloc, Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::catch_unwind;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use support::process::{Run, handle, in_a_fork, join_thread, limited, start_thread, variable, without_more_memory};
use support::{child, in_its_own_process};
use zk_alloc::{Mode, Origin, Participants, Settings, ZkAllocator, begin_phase, end_phase, stats};

static SCOPED: ZkAllocator = ZkAllocator;
static RESIDENT: ZkAllocator =
    ZkAllocator.settings(Settings::new().retain_bytes(1 << 40)).mode(Mode::Resident).participants(Participants::All);

/// Whether this process uses [`RESIDENT`] instead of [`SCOPED`]. Set before the first request.
static IS_RESIDENT: AtomicBool = AtomicBool::new(false);

/// The allocator of this process, [`RESIDENT`] or [`SCOPED`].
struct Installed;

impl Installed {
    #[inline]
    fn get(&self) -> &'static ZkAllocator {
        if IS_RESIDENT.load(Ordering::Relaxed) { &RESIDENT } else { &SCOPED }
    }
}

// SAFETY: forwards all requests of the process to the same `ZkAllocator`.
unsafe impl GlobalAlloc for Installed {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is passed on unchanged.
        unsafe { self.get().alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is passed on unchanged.
        unsafe { self.get().alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is passed on unchanged.
        unsafe { self.get().realloc(at, layout, new_size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is passed on unchanged.
        unsafe { self.get().dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOC: Installed = Installed;

/// Begins a phase before the first request or ends it after the last one, if the allocator of this process serves only phases.
fn if_scoped(begin_or_end: fn()) {
    if !IS_RESIDENT.load(Ordering::Relaxed) {
        begin_or_end();
    }
}

/// The variable that names the moment to try. If it is set, the process runs the children instead of tests.
const MOMENT: &str = "ZK_ALLOC_TEST_MOMENT";
/// The variable that selects the allocator: [`RESIDENT`] if it is `1`.
const MODE: &str = "ZK_ALLOC_TEST_RESIDENT";
/// The variable that sets the number of children.
const TRIES: &str = "ZK_ALLOC_TEST_TRIES";

/// The exit code of a child that succeeded.
const FINE: c_int = 0;
/// The exit codes of a child whose request was refused (`REFUSED`), or whose memory lost its contents (`BROKEN`).
const REFUSED: c_int = 10;
const BROKEN: c_int = 11;
/// The exit code of a child whose requests the arena did not serve, so it tested nothing.
const ELSEWHERE: c_int = 12;
/// The exit code of a child that lost the memory of threads that had exited.
const LOST: c_int = 14;
/// The exit code of a child that could not prepare the test.
const UNPREPARED: c_int = 13;

extern "C" fn before_main() {
    IS_RESIDENT.store(variable(c"ZK_ALLOC_TEST_RESIDENT") == Some("1"), Ordering::Relaxed);
    let Some(moment) = variable(c"ZK_ALLOC_TEST_MOMENT") else { return };
    // Without this variable, the number of tries in [`ALL`] applies.
    let asked = variable(c"ZK_ALLOC_TEST_TRIES").and_then(|tries| tries.parse().ok());
    let found = ALL.iter().find(|(name, ..)| *name == moment);
    let failed = found.map_or(1, |&(_, tries, child)| in_children(asked.unwrap_or(tries), child));
    // SAFETY: `_exit` takes any code. It terminates the process before `main`.
    unsafe { libc::_exit(failed) };
}

// SAFETY: the loader calls the functions in this section, and they have this type.
#[unsafe(link_section = ".init_array")]
#[used]
static INIT: extern "C" fn() = before_main;

/// Runs `child` in up to `tries` forked children, one after another. Stops at the first failure, and prints the child's number and exit
/// code. Returns 1 if a child failed, otherwise 0. Each child makes the first request of its process, because this process makes none
/// before the last fork.
fn in_children(tries: u32, child: fn(u32) -> c_int) -> c_int {
    let codes = (0..tries).map(|number| (number, in_a_fork(|| child(number) as u8)));
    let failed = codes.into_iter().find(|&(_, code)| code != FINE);
    eprintln!("{tries} children; first failure, with its code: {failed:?}");
    c_int::from(failed.is_some())
}

/// Tries a moment with both allocators, each in one process in which the arena serves requests of 1 KiB or more, and in one in which it
/// serves all requests.
#[track_caller]
fn check(moment: &str) {
    for (mode, min_bytes) in [("0", "1024"), ("0", "0"), ("1", "1024"), ("1", "0")] {
        let tries = std::env::var(TRIES);
        let mut settings = vec![
            (MOMENT, moment),
            (MODE, mode),
            ("ZK_ALLOC_MIN_BYTES", min_bytes),
            // For the test in which a panic prints its backtrace.
            ("RUST_BACKTRACE", "1"),
            ("ZK_ALLOC_TRACE_ESCAPED", if moment.contains("backtrace") { "1" } else { "0" }),
        ];
        settings.extend(tries.iter().map(|tries| (TRIES, tries.as_str())));
        settings.extend(moment.contains("little_stack").then_some(("ZK_ALLOC_MAX_BYTES", MAX_BYTES)));
        // The closure is empty, because the process exits before `main`.
        let Some(ended) = child(&settings, || ()) else { return };
        assert!(ended.status.success() && ended.stderr.contains("first failure, with its code: None"), "{ended:?}");
    }
}

/// The test harness makes the first request, which must apply the settings of [`RESIDENT`]. Builder methods that are called after
/// `settings` must not discard them.
#[test]
fn settings_of_the_installed_allocator_are_in_force_from_the_first_request_on() {
    in_its_own_process(&[(MODE, "1")], || {
        let retained = stats().settings.expect("there is an arena").retain_bytes;
        assert_eq!((retained.value, retained.origin), (1 << 40, Origin::Program), "{}", stats());
    });
}

/// Makes the first request of this process and several more, checks their memory, and frees it. Returns an exit code. If `may_be_refused`,
/// a refused request is no failure.
fn request(may_be_refused: bool) -> c_int {
    if_scoped(begin_phase);
    let code = request_between(may_be_refused);
    if_scoped(end_phase);
    code
}

/// Sizes of the requests in bytes: blocks, page runs and a huge run.
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
        // SAFETY: the block has `size` bytes, and this function owns it.
        unsafe { at.write_bytes(seed, size) };
        // SAFETY: allocated above, with this layout.
        let grown = unsafe { realloc(at, layout, 2 * size) };
        let (at, len) = if grown.is_null() { (at, size) } else { (grown, 2 * size) };
        if grown.is_null() && !may_be_refused {
            return REFUSED;
        }
        // SAFETY: the block was written above, up to its old length.
        if unsafe { std::slice::from_raw_parts(at, size) }.iter().any(|&byte| byte != seed) {
            return BROKEN;
        }
        // SAFETY: `len` is the block's current length, and the block is not used afterwards.
        unsafe { dealloc(at, Layout::from_size_align_unchecked(len, 8)) };
    }
    FINE
}

/// Returns [`FINE`] if the arena served any of the requests.
fn served() -> c_int {
    if stats().arena_allocations > 0 { FINE } else { ELSEWHERE }
}

/// Defines a test for each moment, from its name and the number of children. Each child calls the function of that name with its own
/// number.
macro_rules! tests {
    ($($(#[doc = $why:literal])* $name:ident, $tries:literal;)*) => {
        const ALL: &[(&str, u32, fn(u32) -> c_int)] = &[$((stringify!($name), $tries, $name)),*];

        mod the_first_request_neither_hangs_nor_crashes {
            $(
                $(#[doc = $why])*
                #[test]
                fn $name() {
                    super::check(stringify!($name));
                }
            )*
        }
    };
}

tests! {
    /// The interrupted `malloc` holds its lock until the handler has returned. If the handler calls `malloc`, for example to register a
    /// destructor, it waits forever.
    in_a_handler_that_interrupted_malloc, 40;
    /// The handler interrupts the arena while it opens, or while it warms up `malloc`'s heap.
    in_a_handler_that_interrupted_the_first_request, 120;
    /// Other threads may hold locks at the fork, and do not exist in the child. The C library resets the lock of `malloc`, but nothing
    /// resets the locks of the standard library.
    in_a_forked_child, 2;
    /// No more address space (`RLIMIT_AS`) or data memory (`RLIMIT_DATA`) is available. In half of the children, the C library's heap is
    /// used up too.
    with_no_memory_left, 20;
    /// A thread makes its first request after the process has made others. The memory of the thread's cache must not come from `malloc`.
    in_a_thread_that_finds_no_memory_left, 10;
    /// The allocator reads its settings while another thread moves the list of environment variables to another address.
    while_the_environment_changes, 40;
    /// The thread's locals are being destroyed, or are already gone. Memory that the thread gets now must not be lost when it exits.
    in_the_destructors_of_threads, 4;
    /// The thread has the smallest stack that the C library allows, which also contains the C library's data about the thread.
    in_a_thread_with_little_stack, 2;
    /// The handler runs on an alternate stack, which also contains the saved state of the interrupted code.
    in_a_handler_with_little_stack, 2;
    /// While a panic prints its backtrace, it holds a lock and allocates. Tracing of escapes is on.
    while_a_panic_prints_its_backtrace, 1;
}

/// Calls the functions of the C library's allocator that take its lock.
fn churn(round: u32) {
    // The size is larger than the blocks that the C library caches for a thread.
    let size = 1_100 + (round as usize * 977) % 60_000;
    // SAFETY: each block is freed once, and grown while it is alive.
    unsafe {
        let (first, second) = (libc::malloc(size), libc::malloc(2 * size));
        libc::free(first);
        let grown = libc::realloc(second, 3 * size);
        libc::free(if grown.is_null() { second } else { grown });
    }
    #[cfg(target_env = "gnu")]
    if round.is_multiple_of(8) {
        // SAFETY: malloc_trim(3) may be called at any time outside of signal handlers.
        unsafe { libc::malloc_trim(0) };
    }
}

/// The exit code for the requests that a handler or another thread makes. It is -1 until they have been made.
static RESULT: AtomicI32 = AtomicI32::new(-1);
/// The number of iterations of a loop from [`GO`] to the interruption.
static TURNS: AtomicU32 = AtomicU32::new(0);
static GO: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: c_int) {
    RESULT.store(request(false), Ordering::SeqCst);
}

extern "C" fn interrupt(target: *mut c_void) -> *mut c_void {
    while !GO.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
    (0..TURNS.load(Ordering::Relaxed)).for_each(|_| std::hint::spin_loop());
    // SAFETY: `target` is the main thread, which waits for this one.
    unsafe { libc::pthread_kill(target.addr() as libc::pthread_t, libc::SIGUSR1) };
    null_mut()
}

/// Starts a thread that waits for [`GO`] and `turns` iterations of a loop, and then interrupts this thread with [`on_signal`].
fn arrange_interruption(turns: u32) -> Option<libc::pthread_t> {
    TURNS.store(turns, Ordering::Relaxed);
    // SAFETY: pthread_self(3) has no preconditions.
    let own = unsafe { libc::pthread_self() };
    let is_set = handle(libc::SIGUSR1, on_signal, libc::SA_RESTART);
    if is_set { start_thread(interrupt, std::ptr::without_provenance_mut(own as usize)) } else { None }
}

fn in_a_handler_that_interrupted_malloc(number: u32) -> c_int {
    let Some(thread) = arrange_interruption(10_000 + number * 1_013 % 40_000) else { return UNPREPARED };
    GO.store(true, Ordering::SeqCst);
    (0..).take_while(|_| RESULT.load(Ordering::SeqCst) < 0).for_each(churn);
    join_thread(thread);
    RESULT.load(Ordering::SeqCst).max(request(false)).max(served())
}

fn in_a_handler_that_interrupted_the_first_request(number: u32) -> c_int {
    // The signal may interrupt the thread anywhere in its first microseconds.
    let Some(thread) = arrange_interruption(number * 251 % 30_000) else { return UNPREPARED };
    GO.store(true, Ordering::SeqCst);
    let code = request(false);
    join_thread(thread);
    // The signal has been sent: the handler has run, or runs as soon as this thread returns from the kernel.
    code.max(RESULT.load(Ordering::SeqCst)).max(served())
}

extern "C" fn churn_for_ever(_: *mut c_void) -> *mut c_void {
    let mut round = 0u32;
    loop {
        churn(round);
        round = round.wrapping_add(1);
    }
}

extern "C" fn set_variables_for_ever(_: *mut c_void) -> *mut c_void {
    const NAMES: [&str; 8] = ["ZK_A", "ZK_B", "ZK_C", "ZK_D", "ZK_E", "ZK_F", "ZK_G", "ZK_H"];
    const VALUES: [&str; 2] = ["", "a value that is longer than the one before it"];
    for round in 0usize.. {
        let name = NAMES[round % NAMES.len()];
        // SAFETY: no other code reads the environment except the allocator, and the test checks that it does so safely.
        unsafe {
            match round % 24 {
                0..8 => std::env::remove_var(name),
                _ => std::env::set_var(name, VALUES[round / 8 % 2]),
            }
        }
    }
    null_mut()
}

fn in_a_forked_child(_: u32) -> c_int {
    if start_thread(churn_for_ever, null_mut()).is_none() || start_thread(set_variables_for_ever, null_mut()).is_none()
    {
        return UNPREPARED;
    }
    in_children(50, |_| request(false).max(served()))
}

fn while_the_environment_changes(number: u32) -> c_int {
    if start_thread(set_variables_for_ever, null_mut()).is_none() {
        return UNPREPARED;
    }
    (0..number % 10 * 1_000).for_each(|_| std::hint::spin_loop());
    request(false).max(served())
}

/// Allocates all memory that `malloc` has left, and never frees it.
fn use_up_the_heap() {
    for size in [1 << 20, 1 << 16, 1 << 12, 1 << 9, 1 << 7, 64, 24] {
        // Without `black_box`, the compiler would assume that the loop never ends.
        // SAFETY: the memory is never freed.
        while !std::hint::black_box(unsafe { libc::malloc(size) }).is_null() {}
    }
}

/// Grows the stack in advance, because no memory is left for it later.
#[inline(never)]
fn grow_stack() {
    std::hint::black_box([1u8; 256 << 10]);
}

fn with_no_memory_left(number: u32) -> c_int {
    grow_stack();
    let resource = if number.is_multiple_of(2) { libc::RLIMIT_AS } else { libc::RLIMIT_DATA };
    let code = limited(resource, 1, || {
        // Half of the children also use up the memory that `malloc` has left.
        if number % 4 < 2 {
            use_up_the_heap();
        }
        request(true)
    });
    // Once memory is available again, requests succeed.
    code.max(request(false))
}

extern "C" fn request_when_told(_: *mut c_void) -> *mut c_void {
    grow_stack();
    while !GO.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
    RESULT.store(request(true), Ordering::SeqCst);
    null_mut()
}

/// Makes a thread's first request when the arena has free memory and the C library has none.
fn in_a_thread_that_finds_no_memory_left(_: u32) -> c_int {
    let code = request(false);
    let Some(thread) = start_thread(request_when_told, null_mut()) else { return UNPREPARED };
    without_more_memory(|| {
        use_up_the_heap();
        GO.store(true, Ordering::SeqCst);
        join_thread(thread);
    });
    code.max(RESULT.load(Ordering::SeqCst)).max(served())
}

fn while_a_panic_prints_its_backtrace(_: u32) -> c_int {
    let panicked = catch_unwind(|| {
        if_scoped(begin_phase);
        panic!("on purpose");
    });
    if_scoped(end_phase);
    if panicked.is_ok() { REFUSED } else { request(false).max(served()) }
}

/// A thread-local value whose destructor makes a request when the thread exits.
struct AtEnd;

thread_local! {
    static AT_END: AtEnd = const { AtEnd };
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        RESULT.store(request(false), Ordering::SeqCst);
    }
}

unsafe extern "C" fn destroy(_: *mut c_void) {
    RESULT.store(request(false), Ordering::SeqCst);
}

/// A thread key whose destructor is [`destroy`]. Only children with even numbers make it.
static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// The body of a thread that leaves a value whose destructor makes a request. If there is a [`KEY`], the C library runs the destructor,
/// after those of Rust's thread-locals. Otherwise, it is the destructor of a Rust thread-local.
extern "C" fn end_with_destructor(_: *mut c_void) -> *mut c_void {
    if let Some(&key) = KEY.get() {
        // SAFETY: the key belongs to this module, and the value is not null.
        unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(1)) };
    } else {
        AT_END.with(|_| ());
    }
    null_mut()
}

/// Runs a thread that makes a request in a destructor. Returns an exit code.
fn run_thread_with_destructor() -> c_int {
    RESULT.store(-1, Ordering::SeqCst);
    let Some(thread) = start_thread(end_with_destructor, null_mut()) else { return UNPREPARED };
    join_thread(thread);
    let code = RESULT.load(Ordering::SeqCst);
    if code < 0 { UNPREPARED } else { code }
}

fn in_the_destructors_of_threads(number: u32) -> c_int {
    let mut key = 0;
    // SAFETY: `key` is a valid place for the key.
    if number.is_multiple_of(2) && unsafe { libc::pthread_key_create(&raw mut key, Some(destroy)) } == 0 {
        _ = KEY.set(key);
    }
    if let Some(code) = (0..100).map(|_| run_thread_with_destructor()).find(|&code| code != FINE) {
        return code;
    }
    // Each thread exited before the next one started, so the number of slabs must not grow with the number of threads.
    let slabs = zk_alloc::stats().slabs;
    if slabs <= 20 { served() } else { LOST }
}

// First requests on small stacks: the smallest that the C library gives a thread, and the usual alternate stack of a signal handler.

/// The size of the thread's stack (`PTHREAD_STACK_MIN`). It also contains the C library's data about the thread.
const THREAD_BYTES: usize = 16 << 10;
/// The size of the handler's stack (`SIGSTKSZ`). The kernel also saves the state of the interrupted code there.
const SIGNAL_BYTES: usize = 8 << 10;
/// The minimum size of the stack that remains for the handler itself. If the kernel's saved state leaves less, for example because the CPU
/// has large vector registers, the test makes the stack larger.
const SIGNAL_OWN_BYTES: usize = 4 << 10;

/// The arena's cap (`ZK_ALLOC_MAX_BYTES`). The requests exceed it, so the arena must make room for them.
const MAX_BYTES: &str = "64M";

/// Runs a thread on a stack of `bytes`, and waits for it. The C library maps a guard page below the stack. Returns whether the thread was
/// started.
fn run_thread_on(bytes: usize, run: Run) -> bool {
    let (mut thread, mut attributes) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `thread` and `attributes` are valid for writes, and the attributes are initialised first.
    let started = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr()) == 0
            && libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), bytes) == 0
            && libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, null_mut()) == 0
    };
    if started {
        // SAFETY: `thread` was written when the thread was started.
        join_thread(unsafe { thread.assume_init() });
    }
    started
}

/// Runs a signal handler on an alternate stack of `bytes`, below which is an inaccessible guard. Returns whether the handler ran.
fn handle_on(bytes: usize, handler: extern "C" fn(c_int)) -> bool {
    const GUARD_BYTES: usize = 64 << 10;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping overlaps no other. The guard and the stack are both within it, and only the handler uses the stack.
    unsafe {
        let guard = libc::mmap(null_mut(), GUARD_BYTES + bytes, protection, anonymous, -1, 0);
        if guard == libc::MAP_FAILED || libc::mprotect(guard, GUARD_BYTES, libc::PROT_NONE) != 0 {
            return false;
        }
        let stack = libc::stack_t { ss_sp: guard.byte_add(GUARD_BYTES), ss_flags: 0, ss_size: bytes };
        libc::sigaltstack(&raw const stack, null_mut()) == 0
            && handle(libc::SIGUSR1, handler, libc::SA_ONSTACK)
            && libc::raise(libc::SIGUSR1) == 0
    }
}

/// Keeps allocations of all lengths alive until they exceed the cap, so the arena purges free memory, and the backing allocator serves some
/// of the requests. If a request is refused, the process aborts.
fn beyond_the_cap() {
    let mut kept: Vec<Vec<u8>> = Vec::with_capacity(40);
    for (number, &bytes) in [100, 3_000, 40 << 10, 3 << 20, 5 << 20].repeat(8).iter().enumerate() {
        let mut one = if number % 2 == 0 { Vec::with_capacity(bytes) } else { vec![0; bytes] };
        one.resize(bytes, 1);
        one.reserve_exact(bytes);
        kept.push(one);
    }
    std::hint::black_box(kept);
}

/// Makes the first requests of the process and later ones, up to and beyond the cap. Stores an exit code in [`RESULT`].
fn requests() {
    let code = request(false);
    if_scoped(begin_phase);
    beyond_the_cap();
    zk_alloc::release();
    if_scoped(end_phase);
    RESULT.store(code.max(request(false)), Ordering::SeqCst);
}

extern "C" fn thread(_: *mut c_void) -> *mut c_void {
    requests();
    null_mut()
}

extern "C" fn handler(_: c_int) {
    requests();
}

fn outcome(is_done: bool) -> c_int {
    match RESULT.load(Ordering::SeqCst) {
        _ if !is_done => UNPREPARED,
        FINE => served(),
        -1 => BROKEN,
        code => code,
    }
}

fn in_a_thread_with_little_stack(_: u32) -> c_int {
    outcome(run_thread_on(THREAD_BYTES, thread))
}

fn in_a_handler_with_little_stack(_: u32) -> c_int {
    // SAFETY: getauxval(3) only returns a number. `AT_MINSIGSTKSZ` is the number of bytes that the kernel saves on a handler's stack, or 0
    // before Linux 5.14.
    let kernels = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
    outcome(handle_on(SIGNAL_BYTES.max(kernels + SIGNAL_OWN_BYTES), handler))
}
