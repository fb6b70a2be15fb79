//! First requests with little stack. They must fit into the smallest stack that the C library gives a thread, and into
//! the usual stack of a signal handler.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::support::process::{Run, handle};
use crate::{BROKEN, FINE, UNPREPARED, request, served};

/// `PTHREAD_STACK_MIN`, from which the C library takes its own data about the thread.
const THREAD_BYTES: usize = 16 << 10;
/// `SIGSTKSZ`, from which the kernel takes the state of the interrupted code.
const SIGNAL_BYTES: usize = 8 << 10;
/// The least room for the handler itself. If the kernel takes more than the rest, as for the largest registers, the
/// stack is made larger.
const SIGNAL_OWN_BYTES: usize = 4 << 10;
/// Enough to measure the use of stack.
const AMPLE_BYTES: usize = 256 << 10;

/// A cap that the requests reach, so that the arena must make room for them.
pub(super) const MAX_BYTES: &str = "64M";

/// Stacks are filled with this byte, to see how far down they were used.
const FRESH: u8 = 0xA5;

/// A stack, behind a guard that no access may touch.
fn stack(bytes: usize) -> Option<*mut u8> {
    const GUARD_BYTES: usize = 64 << 10;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping overlaps nothing; both parts lie in it.
    unsafe {
        let at = libc::mmap(null_mut(), GUARD_BYTES + bytes, protection, anonymous, -1, 0);
        if at == libc::MAP_FAILED || libc::mprotect(at, GUARD_BYTES, libc::PROT_NONE) != 0 {
            return None;
        }
        let stack = at.cast::<u8>().add(GUARD_BYTES);
        stack.write_bytes(FRESH, bytes);
        Some(stack)
    }
}

/// The number of bytes of a stack that were used.
fn used(stack: *const u8, bytes: usize) -> usize {
    // SAFETY: the stack's memory, which nothing uses any more.
    let fresh = (0..bytes).take_while(|&at| unsafe { stack.add(at).read_volatile() } == FRESH).count();
    bytes - fresh
}

/// Runs a thread on a stack of `bytes`. Returns whether it was started.
fn in_a_thread(bytes: usize, run: Run) -> bool {
    let Some(stack) = stack(bytes) else { return false };
    let (mut thread, mut attributes) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: places for both, and a stack that nothing else uses.
    let started = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr()) == 0
            && libc::pthread_attr_setstack(attributes.as_mut_ptr(), stack.cast(), bytes) == 0
            && libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, null_mut()) == 0
    };
    if started {
        // SAFETY: written when the thread was started, and joined once.
        unsafe { libc::pthread_join(thread.assume_init(), null_mut()) };
    }
    started
}

/// Runs a signal handler on a stack of `bytes`, and returns how many of them it used.
fn in_a_handler(bytes: usize, handler: extern "C" fn(c_int)) -> Option<usize> {
    let stack = stack(bytes)?;
    let place = libc::stack_t { ss_sp: stack.cast(), ss_flags: 0, ss_size: bytes };
    // SAFETY: a stack for the handler alone.
    let is_set = unsafe { libc::sigaltstack(&raw const place, null_mut()) == 0 };
    let is_set = is_set && handle(libc::SIGUSR1, handler, libc::SA_ONSTACK);
    // SAFETY: the signal has this handler.
    (is_set && unsafe { libc::raise(libc::SIGUSR1) } == 0).then(|| used(stack, bytes))
}

/// Exceeds the cap with live requests of all lengths. The arena has to purge free memory, and the backing allocator
/// serves some of them. A request that is refused ends the process.
fn beyond_the_cap() {
    let mut held: Vec<Vec<u8>> = Vec::with_capacity(40);
    for (number, &bytes) in [100, 3_000, 40 << 10, 3 << 20, 5 << 20].repeat(8).iter().enumerate() {
        let mut one = if number % 2 == 0 { Vec::with_capacity(bytes) } else { vec![0; bytes] };
        one.resize(bytes, 1);
        one.reserve_exact(bytes);
        held.push(one);
    }
    std::hint::black_box(held);
}

static CAME_TO: AtomicI32 = AtomicI32::new(-1);

/// The first requests of the process, and later ones.
fn requests() {
    let code = request(false);
    crate::begin();
    beyond_the_cap();
    zk_alloc::release();
    crate::end();
    CAME_TO.store(code.max(request(false)), Ordering::SeqCst);
}

extern "C" fn thread(_: *mut c_void) -> *mut c_void {
    requests();
    null_mut()
}

extern "C" fn handler(_: c_int) {
    requests();
}

extern "C" fn idle_handler(_: c_int) {}

fn outcome(is_done: bool) -> c_int {
    match CAME_TO.load(Ordering::SeqCst) {
        _ if !is_done => UNPREPARED,
        FINE => served(),
        -1 => BROKEN,
        code => code,
    }
}

pub(super) fn in_a_thread_with_little_stack(_: u32) -> c_int {
    outcome(in_a_thread(THREAD_BYTES, thread))
}

pub(super) fn in_a_handler_with_little_stack(_: u32) -> c_int {
    let Some(kernels) = in_a_handler(AMPLE_BYTES, idle_handler) else { return UNPREPARED };
    outcome(in_a_handler(SIGNAL_BYTES.max(kernels + SIGNAL_OWN_BYTES), handler).is_some())
}
