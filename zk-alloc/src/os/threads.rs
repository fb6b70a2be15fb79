//! What the arena asks of threads: to be told of their end, to be fenced, and whether a signal interrupted them.
#![allow(unsafe_code, reason = "calls the C library's threads")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Keys whose values glibc stores in the thread itself (`PTHREAD_KEY_2NDLEVEL_SIZE`). For the others it calls `calloc` at a
/// thread's first store, which a signal handler that interrupted `malloc` must not.
#[cfg(target_env = "gnu")]
const KEYS_WITHOUT_MALLOC: u32 = 32;

/// A key for [`arm_thread_exit`]: when a thread that was armed with it ends, `run` is called there with its value. `None`
/// where there is no key, or none that could be used in a signal handler: then nobody can be told. Takes no lock.
///
/// `run` must not unwind, and may be called again (up to `PTHREAD_DESTRUCTOR_ITERATIONS` times) if it arms its thread.
pub(crate) fn thread_exit_key(run: unsafe extern "C" fn(*mut c_void)) -> Option<u32> {
    let mut key = 0;
    // SAFETY: a place for the key. What `run` needs, those who arm a thread provide.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(run)) } != 0 {
        return None;
    }
    // The type of keys differs between systems; a key is a small number in all of them.
    #[allow(clippy::unnecessary_cast, reason = "see above")]
    let number = Some(key as u32).filter(|&number| number as libc::pthread_key_t == key);
    #[cfg(target_env = "gnu")]
    let number = number.filter(|&number| number < KEYS_WITHOUT_MALLOC);
    if number.is_none() {
        // SAFETY: made above, and nobody else knows of it.
        unsafe { libc::pthread_key_delete(key) };
    }
    number
}

/// Has the function of a key from [`thread_exit_key`] called with `value` when this thread ends; `false` where the system
/// refuses. The function's needs are the caller's: `value` is what it was made for. Takes no lock and allocates nothing.
pub(crate) fn arm_thread_exit(key: u32, value: NonNull<u8>) -> bool {
    // The type of keys differs between systems; this number came out of one.
    let key = key as libc::pthread_key_t;
    // SAFETY: a key from `thread_exit_key`, which is never deleted once it was handed out; were it none, the call refuses.
    unsafe { libc::pthread_setspecific(key, value.as_ptr().cast()) == 0 }
}

/// Whether any signal is blocked in this thread: then it may be in a signal handler, which may have interrupted anything,
/// `malloc` among it. Conservative, but no proof: threads may block signals for reasons of their own, and a handler that
/// was installed with `SA_NODEFER` and an empty mask blocks none.
pub(crate) fn may_be_in_signal_handler() -> bool {
    let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: asks for the mask without changing it, and writes it to a place for one.
    let asked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), blocked.as_mut_ptr()) } == 0;
    let at = blocked.as_ptr().cast::<u8>();
    // SAFETY: within the set, every byte of which was zeroed above.
    let any = (0..size_of::<libc::sigset_t>()).any(|byte| unsafe { at.add(byte).read() } != 0);
    // An answer that was refused is no answer.
    !asked || any
}

/// Has every other thread of this process that runs now pass a full memory barrier before this returns, so that threads
/// which are often where this one is rarely need none of their own (membarrier(2), `PRIVATE_EXPEDITED`, Linux 4.14).
/// `false` where the kernel has no such call: then nothing is fenced.
#[cfg(target_os = "linux")]
pub(crate) fn fence_other_threads() -> bool {
    membarrier::fence()
}

#[cfg(target_os = "linux")]
mod membarrier {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicU8, Ordering};

    use rustix::thread::{MembarrierCommand, membarrier};

    const UNKNOWN: u8 = 0;
    const REGISTERED: u8 = 1;
    const MISSING: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

    // A process has to register. The kernel then waits until every processor has seen it: 10 milliseconds and more, but nothing
    // at all as long as the process has one thread. (Where `dlopen` brings this in, it may have more.)
    // SAFETY: the loader calls what is listed here as functions of C's, before `main`. It may pass arguments, which such a
    // function does not look at.
    #[used]
    #[unsafe(link_section = ".init_array.00103")]
    static BEFORE_MAIN: extern "C" fn() = register;

    /// Doing so twice does no harm.
    extern "C" fn register() {
        let registered = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        STATE.store(if registered { REGISTERED } else { MISSING }, Ordering::Relaxed);
    }

    pub(super) fn fence() -> bool {
        let fence = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        match STATE.load(Ordering::Relaxed) {
            REGISTERED if fence() => true,
            MISSING => false,
            // Not registered yet: or not any more, should a fork have lost it. Through the list of what comes before `main`, so
            // that no linker leaves that out.
            _ => {
                black_box(&BEFORE_MAIN)();
                fence()
            }
        }
    }
}

/// No such call here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn fence_other_threads() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static ENDED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn on_end(value: *mut c_void) {
        ENDED.fetch_add(value.addr(), Ordering::SeqCst);
    }

    #[test]
    fn the_end_of_an_armed_thread_is_told_with_its_value() {
        let key = thread_exit_key(on_end).expect("a test uses few keys");
        let arm =
            move |value| arm_thread_exit(key, NonNull::without_provenance(std::num::NonZero::new(value).unwrap()));
        std::thread::spawn(move || assert!(arm(1) && arm(40))).join().unwrap();
        std::thread::spawn(|| {}).join().unwrap();
        assert_eq!(ENDED.load(Ordering::SeqCst), 40);
    }

    /// The table of a thread's first 32 values lies in the thread; the next key would make glibc allocate.
    #[cfg(target_env = "gnu")]
    #[test]
    fn keys_that_would_need_malloc_are_not_handed_out() {
        // In a process of its own: it takes all keys that there are.
        // SAFETY: the child makes keys, which takes no lock, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let handed_out = (0..100).map_while(|_| thread_exit_key(on_end)).fold(0, |_, key| key + 1);
            // The one after that was given back: there is a key again, and it is of no use again.
            let code = i32::from(handed_out > KEYS_WITHOUT_MALLOC || thread_exit_key(on_end).is_some());
            // SAFETY: ends the child, without destructors.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: a child of ours, and a place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn other_threads_can_be_fenced() {
        // Kernels from 4.14 on can, unless they were built without.
        assert_eq!(fence_other_threads(), fence_other_threads());
    }

    #[test]
    fn a_thread_with_a_blocked_signal_may_be_in_a_handler() {
        std::thread::spawn(|| {
            assert!(!may_be_in_signal_handler());
            let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
            // SAFETY: a place for a set.
            unsafe { libc::sigemptyset(set.as_mut_ptr()) };
            // SAFETY: initialised one line above.
            unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR1) };
            // SAFETY: an initialised set; only this thread's mask changes.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
            assert!(may_be_in_signal_handler());
        })
        .join()
        .unwrap();
    }
}
