//! Functions that run around each fork(2) of the C library (pthread_atfork(3)).
#![allow(unsafe_code, reason = "calls the C library's threads")]

/// Has fork(3) call `prepare` before it forks, then `parent` in the parent, even if the fork failed, or `child` in the child. All three run
/// on the thread that forks. They must not unwind. vfork(2), posix_spawn(3) and the system call itself call none of them.
///
/// Call it before `main`: then `prepare` runs after those of other libraries, and the other two run before theirs. glibc has room for 48
/// libraries before it allocates. When an object is unloaded, its functions are called no more.
#[cfg(target_os = "linux")]
pub(crate) fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // Miri forks nothing, and has no such function.
    if !cfg!(miri) {
        register(prepare, parent, child);
    }
}

#[cfg(all(target_os = "linux", not(thread_blocks)))]
fn register(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: three functions for any moment. If there is no memory for them, they are not called.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

// glibc's pthread_atfork(3) is linked into each library, and calls this function. musl has none, and its loader would refuse the library for
// it. A weak symbol is null there.
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

#[cfg(thread_blocks)]
fn register(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    type Function = extern "C" fn();
    type Register = unsafe extern "C" fn(Function, Function, Function, *const u8) -> libc::c_int;
    unsafe extern "C" {
        static zk_alloc_register_atfork: Option<Register>;
        /// An address in this library, by which glibc knows what to forget when the library is unloaded.
        static __dso_handle: u8;
    }
    // SAFETY: the loader wrote the function or null before any of this library's code ran. Its type is that of glibc's function, which takes
    // three functions for any moment.
    unsafe {
        if let Some(register) = zk_alloc_register_atfork {
            register(prepare, parent, child, &raw const __dso_handle);
        }
    }
}

/// Does nothing: these systems have no advice that keeps memory from a child.
#[cfg(not(target_os = "linux"))]
pub(crate) fn at_fork(_prepare: extern "C" fn(), _parent: extern "C" fn(), _child: extern "C" fn()) {}

/// The signals that a thread blocked.
#[derive(Clone, Copy)]
pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks all signals on this thread, and returns those that it blocked before.
    pub(crate) fn block() -> Self {
        // SAFETY: a set of signals is an array of bits, of which any value is valid. Both sets are places for one.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            Self(before)
        }
    }

    /// Blocks these signals on this thread, and no others.
    pub(crate) fn restore(&self) {
        // SAFETY: a set of signals.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// A number that tells this thread from the other living ones, and that it keeps in a forked child.
pub(crate) fn thread_id() -> usize {
    // SAFETY: always succeeds.
    unsafe { libc::pthread_self() as usize }
}
