//! Threads and signals: the allocator's own threads, callbacks when a thread ends or forks, and signal handlers.
#![allow(unsafe_code, reason = "calls the C library's threads, installs a signal handler")]

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{Errno, imp};

// A handler for a signal of the operator's choice.

/// The signals that may be given by name. The prefix `SIG` is optional.
const NAMES: &[(&str, c_int)] = &[
    ("HUP", libc::SIGHUP),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("URG", libc::SIGURG),
    ("WINCH", libc::SIGWINCH),
];

/// Signals that can't be handled, that report an error in the program, or that have a fixed meaning in every program.
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

/// The functions that the handler runs, by signal.
static RUN: [AtomicPtr<()>; MAX_SIGNAL as usize + 1] = [const { AtomicPtr::new(null_mut()) }; MAX_SIGNAL as usize + 1];

/// Returns the number of the signal with this name or number, if a program may choose that signal's meaning.
pub(crate) fn signal_number(text: &str) -> Option<i32> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let named = NAMES.iter().find(|&&(known, _)| known == name).map(|&(_, number)| number);
    let number = named.or_else(|| text.parse().ok())?;
    Some(number).filter(|number| (1..=MAX_SIGNAL).contains(number) && !RESERVED.contains(number))
}

/// Installs `run` as the handler of a signal. It runs on the thread that gets the signal. Returns `false`, and changes nothing, if the
/// signal has a handler or is ignored, or if the system refuses. `run` must do only what a signal handler may do.
pub(crate) fn on_signal(number: i32, run: fn()) -> bool {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only queries the system, and its result is valid for writes.
    let is_known = unsafe { libc::sigaction(number, std::ptr::null(), before.as_mut_ptr()) } == 0;
    // SAFETY: all zeroes are a valid value.
    if !is_known || unsafe { before.assume_init() }.sa_sigaction != libc::SIG_DFL {
        return false;
    }
    RUN[number as usize].store(run as *mut (), Ordering::Release);
    // SAFETY: all zeroes are a valid value: an empty mask.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    let handler: extern "C" fn(c_int) = handle;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler has the right type, and calls only functions that a handler may call.
    unsafe { libc::sigaction(number, &raw const action, null_mut()) == 0 }
}

extern "C" fn handle(number: c_int) {
    let run = RUN[number as usize].load(Ordering::Acquire);
    // SAFETY: `on_signal` stored a function of this type before it installed this handler.
    let run = unsafe { transmute::<*mut (), fn()>(run) };
    // Preserve `errno`, which the interrupted code may be about to read.
    let _ = imp::keeping_errno(|| {
        run();
        0
    });
}

// Functions that run around each fork(2) of the C library (pthread_atfork(3)).

/// Makes fork(2) call `prepare` before it forks, then `parent` in the parent, even if the fork failed, or `child` in the child. All three
/// run on the thread that forks. They must not unwind. vfork(2), posix_spawn(3) and the raw system call don't call them.
///
/// Call it before `main`: then `prepare` runs after the functions of other libraries, and `parent` and `child` run before them. glibc has
/// room for the functions of 48 libraries before it has to allocate. After an object is unloaded, its functions are no longer called.
///
/// Does nothing on systems other than Linux, because their madvise(2) can't withhold memory from a child.
#[cfg(not(thread_blocks))]
pub(crate) fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // Miri supports neither fork(2) nor this function.
    if cfg!(all(target_os = "linux", not(miri))) {
        // SAFETY: the functions may run on any thread at any time, and do not unwind. If pthread_atfork(3) fails, they are never called.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

// glibc's pthread_atfork(3) is linked into each library, and calls `__register_atfork`. musl has no such function, and its loader would
// refuse a library that needs it. So the symbol is weak, and null there.
#[cfg(thread_blocks)]
std::arch::global_asm!(
    ".weak __register_atfork",
    ".pushsection .data.rel.zk_alloc_register_atfork, \"aw\"",
    ".p2align 3",
    ".globl zk_alloc_register_atfork",
    ".hidden zk_alloc_register_atfork",
    "zk_alloc_register_atfork:",
    ".quad __register_atfork",
    ".popsection",
);

/// Registers the functions, as the other `at_fork` does.
#[cfg(thread_blocks)]
pub(crate) fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    type Function = extern "C" fn();
    type Register = unsafe extern "C" fn(Function, Function, Function, *const u8) -> libc::c_int;
    unsafe extern "C" {
        static zk_alloc_register_atfork: Option<Register>;
        /// An address in this library, by which glibc finds the functions to remove when the library is unloaded.
        static __dso_handle: u8;
    }
    // SAFETY: the loader wrote the function or null before any of this library's code ran. Its type is that of glibc's function. The three
    // functions may run on any thread at any time, and do not unwind.
    unsafe {
        if let Some(register) = zk_alloc_register_atfork {
            register(prepare, parent, child, &raw const __dso_handle);
        }
    }
}

/// The signals that a thread had blocked.
#[derive(Clone, Copy)]
pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks all signals on this thread, and returns those that were blocked before. (The C library never blocks its internal signals, one
    /// of which passes setuid(2) on to all threads.)
    pub(crate) fn block() -> Self {
        // SAFETY: a set of signals is an array of bits, for which any value is valid. Both sets are valid for writes.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            Self(before)
        }
    }

    /// Makes this thread block these signals, and no others.
    pub(crate) fn restore(&self) {
        // SAFETY: the set is initialised.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}

/// A thread for the allocator: an ordinary thread of the C library with a name, and all signals blocked. Dropping the handle leaves the
/// thread running.
///
/// pthread_create(3) creates the thread, because the standard library would allocate memory for it from the allocator that the thread
/// serves. The C library knows the thread, so setuid(2) affects it too.
pub(crate) struct OwnThread(libc::pthread_t);

// SAFETY: the handle of a thread may be used on any thread.
unsafe impl Send for OwnThread {}

impl OwnThread {
    /// Starts a thread that calls `run`, which must not panic. Its stack has `stack_bytes`, or the C library's default size.
    ///
    /// # Errors
    /// The system's error, if it can't create a thread.
    pub(crate) fn start(run: fn(), stack_bytes: Option<usize>) -> Result<Self, Errno> {
        // A new thread inherits the signal mask of its creator.
        let before = Signals::block();
        let started = match create(stack_bytes, run) {
            // A program with a lot of thread-local memory needs a larger stack, because that memory is part of the stack.
            Err(Errno(libc::EINVAL)) if stack_bytes.is_some() => create(None, run),
            other => other,
        };
        before.restore();
        started
    }

    /// Waits until the thread has ended.
    pub(crate) fn join(self) {
        // SAFETY: `self` is the only handle of this thread, which was neither joined nor detached before.
        unsafe { libc::pthread_join(self.0, null_mut()) };
    }
}

fn create(stack_bytes: Option<usize>, run: fn()) -> Result<OwnThread, Errno> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: `attributes` is valid for writes.
    checked(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
    let sized = stack_bytes.map_or(Ok(()), |bytes| {
        // SAFETY: initialised above.
        checked(unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), bytes) })
    });
    let created = sized.and_then(|()| {
        let run = run as *mut c_void;
        // SAFETY: the attributes are initialised, `thread` is valid for writes, and `run` is the argument that `begin` expects.
        checked(unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), begin, run) })
    });
    // SAFETY: the attributes were initialised above, and are not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    // SAFETY: `pthread_create` initialised `thread`, because it succeeded.
    created.map(|()| OwnThread(unsafe { thread.assume_init() }))
}

/// The start routine of a new thread. Names the thread, where the system has a call for that, and calls `run`.
extern "C" fn begin(run: *mut c_void) -> *mut c_void {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // SAFETY: the name ends with a zero byte.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"zk-alloc".as_ptr());
    }
    #[cfg(target_vendor = "apple")]
    // SAFETY: as above.
    unsafe {
        libc::pthread_setname_np(c"zk-alloc".as_ptr());
    }
    // SAFETY: `create` passes a function of this type.
    let run = unsafe { std::mem::transmute::<*mut c_void, fn()>(run) };
    run();
    null_mut()
}

/// Converts the result of a pthread function, which is an error number.
fn checked(result: libc::c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno(result)) }
}

/// Returns a number that no other living thread has. It stays the same in a forked child.
pub(crate) fn thread_id() -> usize {
    // SAFETY: the call has no requirements, and always succeeds.
    unsafe { libc::pthread_self() as usize }
}

/// The number of keys whose values glibc stores in the thread itself (`PTHREAD_KEY_2NDLEVEL_SIZE`). For other keys it calls `calloc` at a
/// thread's first store. A signal handler that interrupted `malloc` must not call it.
#[cfg(target_env = "gnu")]
const KEYS_WITHOUT_MALLOC: u32 = 32;

/// Creates a key for [`arm_thread_exit`]. When a thread that was armed with the key ends, that thread calls `run` with its value. Returns
/// `None` if no key is left. Takes no lock.
///
/// `run` must not unwind. If it arms its thread again, it is called again, up to `PTHREAD_DESTRUCTOR_ITERATIONS` times.
pub(crate) fn thread_exit_key(run: unsafe extern "C" fn(*mut c_void)) -> Option<u32> {
    let mut key = 0;
    // SAFETY: `key` is valid for writes. Callers of `arm_thread_exit` meet the requirements of `run`.
    let is_made = unsafe { libc::pthread_key_create(&raw mut key, Some(run)) } == 0;
    #[allow(
        clippy::unnecessary_cast,
        reason = "the type of keys differs between systems; all of them are small numbers"
    )]
    is_made.then_some(key as u32)
}

/// Deletes a key that no thread was armed with.
pub(crate) fn return_key(key: u32) {
    // SAFETY: the key belongs to the caller, and no thread has a value for it.
    unsafe { libc::pthread_key_delete(key as libc::pthread_key_t) };
}

/// Makes this thread call the function of a key from [`thread_exit_key`] with `value` when it ends. Returns `false` if the system refuses.
/// The caller must pass a `value` that the function expects. Takes no lock, and leaves `errno` unchanged.
///
/// glibc may call `calloc` for keys beyond the first 32. For such a key, this also returns `false` while the thread [may be in a signal
/// handler](may_be_in_signal_handler). A later call may succeed.
pub(crate) fn arm_thread_exit(key: u32, value: NonNull<u8>) -> bool {
    #[cfg(target_env = "gnu")]
    if key >= KEYS_WITHOUT_MALLOC {
        let is_armed = || !may_be_in_signal_handler() && store(key, value);
        return imp::keeping_errno(|| if is_armed() { 0 } else { -1 }).is_ok();
    }
    store(key, value)
}

fn store(key: u32, value: NonNull<u8>) -> bool {
    // The type of keys differs between systems. This number came from a key, so the conversion is exact.
    let key = key as libc::pthread_key_t;
    // SAFETY: a key from `thread_exit_key` is never deleted once a thread was armed with it. For any other number, the call fails.
    unsafe { libc::pthread_setspecific(key, value.as_ptr().cast()) == 0 }
}

/// Returns whether any signal is blocked in this thread. If so, the thread may be in a signal handler, which may have interrupted anything,
/// even `malloc`. Neither answer is certain: threads may block signals for other reasons, and a handler that was installed with
/// `SA_NODEFER` and an empty mask blocks none. Always `true` in a [sandbox](super::is_in_sandbox).
pub(crate) fn may_be_in_signal_handler() -> bool {
    if super::is_in_sandbox() {
        return true;
    }
    let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the call does not change the mask, and `blocked` is valid for writes.
    let is_known = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), blocked.as_mut_ptr()) } == 0;
    let at = blocked.as_ptr().cast::<u8>();
    // SAFETY: each byte lies within the set, which was zeroed above.
    let any = (0..size_of::<libc::sigset_t>()).any(|byte| unsafe { at.add(byte).read() } != 0);
    // If the call failed, assume a handler.
    !is_known || any
}

/// Returns whether this thread runs on an alternate signal stack (sigaltstack(2)), which may be small. Returns `true` if the system refuses
/// to tell. Always `true` in a [sandbox](super::is_in_sandbox).
pub(crate) fn may_be_on_signal_stack() -> bool {
    if super::is_in_sandbox() {
        return true;
    }
    let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: the call only queries the system, and its result is valid for writes.
    let is_known = imp::keeping_errno(|| unsafe { libc::sigaltstack(std::ptr::null(), stack.as_mut_ptr()) }).is_ok();
    // SAFETY: all zeroes are a valid value.
    !is_known || unsafe { stack.assume_init() }.ss_flags & libc::SS_ONSTACK != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// glibc stores the values of the first 32 keys in the thread, and allocates for later keys. A signal handler that interrupted an
    /// allocation must not allocate.
    #[cfg(target_env = "gnu")]
    #[test]
    fn a_key_that_needs_malloc_is_not_stored_in_a_signal_handler() {
        let keys: Vec<_> = (0..40).map_while(|_| thread_exit_key(on_no_end)).collect();
        let (early, late) = (keys[0], *keys.last().unwrap());
        assert!(early < KEYS_WITHOUT_MALLOC && late >= KEYS_WITHOUT_MALLOC, "{keys:?}");
        let arm = |key| arm_thread_exit(key, NonNull::dangling());
        std::thread::spawn(move || {
            assert!(!may_be_in_signal_handler() && arm(early) && arm(late));
            block_a_signal();
            assert!(may_be_in_signal_handler() && arm(early) && !arm(late));
        })
        .join()
        .unwrap();
        keys.into_iter().for_each(return_key);
    }

    #[cfg(target_env = "gnu")]
    unsafe extern "C" fn on_no_end(_: *mut c_void) {}

    #[cfg(target_env = "gnu")]
    fn block_a_signal() {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `set` is valid for writes.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: `set` was initialised one line above.
        unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR1) };
        // SAFETY: `set` is initialised, and only this thread's mask changes.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), null_mut()) };
    }

    #[test]
    fn signals_are_given_by_name_or_number_and_reserved_ones_are_refused() {
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
