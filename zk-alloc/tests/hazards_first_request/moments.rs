//! The moments, one after the other: what the children do in each.

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::support::process::{handle, join_thread, limited, start_thread, without_more_memory};
use crate::{FINE, LOST, REFUSED, UNPREPARED, in_children, request, served};

/// Uses the C library's allocator in all ways that take its lock.
fn churn(round: u32) {
    // More than the C library's cache of a thread takes.
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
        // SAFETY: may be called at any time, outside of signal handlers.
        unsafe { libc::malloc_trim(0) };
    }
}

/// The result of the handler's requests; -1 before.
static HANDLED: AtomicI32 = AtomicI32::new(-1);
/// When to interrupt: after this number of turns of a loop.
static TURNS: AtomicU32 = AtomicU32::new(0);
static GO: AtomicBool = AtomicBool::new(false);
/// The result of another thread's requests; -1 before.
static ENDED: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(_: c_int) {
    HANDLED.store(request(false), Ordering::SeqCst);
}

extern "C" fn interrupt(target: *mut c_void) -> *mut c_void {
    while !GO.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
    for _ in 0..TURNS.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
    // SAFETY: the main thread, which waits for this one.
    unsafe { libc::pthread_kill(target.addr() as libc::pthread_t, libc::SIGUSR1) };
    null_mut()
}

/// Has `on_signal` interrupt this thread, `turns` after `GO`.
fn arrange_interruption(turns: u32) -> Option<libc::pthread_t> {
    TURNS.store(turns, Ordering::Relaxed);
    // SAFETY: only returns this thread.
    let own = unsafe { libc::pthread_self() };
    let is_set = handle(libc::SIGUSR1, on_signal, libc::SA_RESTART);
    if is_set { start_thread(interrupt, std::ptr::without_provenance_mut(own as usize)) } else { None }
}

pub(super) fn in_a_handler(number: u32) -> c_int {
    let Some(thread) = arrange_interruption(10_000 + number * 1_013 % 40_000) else { return UNPREPARED };
    GO.store(true, Ordering::SeqCst);
    let mut round = 0;
    while HANDLED.load(Ordering::SeqCst) < 0 {
        churn(round);
        round += 1;
    }
    join_thread(thread);
    match HANDLED.load(Ordering::SeqCst) {
        FINE => request(false).max(served()),
        code => code,
    }
}

pub(super) fn in_a_handler_of_the_first(number: u32) -> c_int {
    // The interruption may hit the thread anywhere in its first microseconds.
    let Some(thread) = arrange_interruption(number * 251 % 30_000) else { return UNPREPARED };
    GO.store(true, Ordering::SeqCst);
    let code = request(false);
    join_thread(thread);
    // The signal was sent: the handler has run, or runs as soon as this thread returns from the kernel.
    code.max(HANDLED.load(Ordering::SeqCst)).max(served())
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
        // SAFETY: all code reads the environment only through the standard library. For the allocator, this test checks
        // that.
        unsafe {
            match round % 24 {
                0..8 => std::env::remove_var(name),
                _ => std::env::set_var(name, VALUES[round / 8 % 2]),
            }
        }
    }
    null_mut()
}

pub(super) fn in_a_forked_child(_: u32) -> c_int {
    if start_thread(churn_for_ever, null_mut()).is_none() || start_thread(set_variables_for_ever, null_mut()).is_none()
    {
        return UNPREPARED;
    }
    in_children(50, |_| request(false).max(served()))
}

pub(super) fn while_the_environment_changes(number: u32) -> c_int {
    if start_thread(set_variables_for_ever, null_mut()).is_none() {
        return UNPREPARED;
    }
    for _ in 0..number % 10 * 1_000 {
        std::hint::spin_loop();
    }
    request(false).max(served())
}

/// Takes all memory that `malloc` has, and never frees it.
fn use_up_the_heap() {
    for size in [1 << 20, 1 << 16, 1 << 12, 1 << 9, 1 << 7, 64, 24] {
        // `black_box`, or the compiler would assume that the loop never ends.
        // SAFETY: the memory is never freed.
        while !std::hint::black_box(unsafe { libc::malloc(size) }).is_null() {}
    }
}

/// Grows the stack now, because that takes memory too.
#[inline(never)]
fn grow_stack() {
    std::hint::black_box([1u8; 256 << 10]);
}

pub(super) fn with_no_memory_left(number: u32) -> c_int {
    grow_stack();
    let resource = if number.is_multiple_of(2) { libc::RLIMIT_AS } else { libc::RLIMIT_DATA };
    let code = limited(resource, 1, || {
        // Some memory may be left, or none.
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
    ENDED.store(request(true), Ordering::SeqCst);
    null_mut()
}

/// The arena has memory, and the C library has none.
pub(super) fn in_a_thread_without_memory(_: u32) -> c_int {
    let code = request(false);
    let Some(thread) = start_thread(request_when_told, null_mut()) else { return UNPREPARED };
    without_more_memory(|| {
        use_up_the_heap();
        GO.store(true, Ordering::SeqCst);
        join_thread(thread);
    });
    code.max(ENDED.load(Ordering::SeqCst)).max(served())
}

pub(super) fn while_a_panic_prints(_: u32) -> c_int {
    let panicked = catch_unwind(|| {
        crate::begin();
        panic!("on purpose");
    });
    crate::end();
    if panicked.is_ok() { REFUSED } else { request(false).max(served()) }
}

/// Makes a request in its destructor, when the thread ends.
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
    let Some(thread) = start_thread(end_with_destructor, std::ptr::without_provenance_mut(value)) else {
        return UNPREPARED;
    };
    join_thread(thread);
    let code = ENDED.load(Ordering::SeqCst);
    if code < 0 { UNPREPARED } else { code }
}

/// A key with a destructor, for every other child.
fn key(number: u32) -> Option<libc::pthread_key_t> {
    let mut key = 0;
    // SAFETY: a place for the key.
    (number.is_multiple_of(2) && unsafe { libc::pthread_key_create(&raw mut key, Some(destroy)) } == 0).then_some(key)
}

pub(super) fn in_destructors(number: u32) -> c_int {
    let key = key(number);
    if let Some(code) = (0..100).map(|_| run_thread_with_destructor(key)).find(|&code| code != FINE) {
        return code;
    }
    // Each thread ended before the next began, so the slabs must not add up.
    let slabs = zk_alloc::stats().slabs;
    if slabs <= 20 { served() } else { LOST }
}
