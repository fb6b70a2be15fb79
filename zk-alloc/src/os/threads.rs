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
/// where no key is left. Takes no lock.
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
    if number.is_none() {
        // SAFETY: made above, and nobody else knows of it.
        unsafe { libc::pthread_key_delete(key) };
    }
    number
}

/// Gives a key back that no thread was armed with.
pub(crate) fn return_key(key: u32) {
    // SAFETY: the caller's key, which no thread has a value for.
    unsafe { libc::pthread_key_delete(key as libc::pthread_key_t) };
}

/// Has the function of a key from [`thread_exit_key`] called with `value` when this thread ends; `false` where the system
/// refuses. The function's needs are the caller's: `value` is what it was made for. Takes no lock, and leaves `errno` alone.
///
/// glibc may call `calloc` for a key that was made after 31 others. Then this refuses as well while the thread [may be in a signal
/// handler](may_be_in_signal_handler): a later call may succeed.
pub(crate) fn arm_thread_exit(key: u32, value: NonNull<u8>) -> bool {
    #[cfg(target_env = "gnu")]
    if key >= KEYS_WITHOUT_MALLOC {
        // SAFETY: always the address of this thread's own number.
        let errno = unsafe { *libc::__errno_location() };
        let is_armed = !may_be_in_signal_handler() && store(key, value);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        return is_armed;
    }
    store(key, value)
}

fn store(key: u32, value: NonNull<u8>) -> bool {
    // The type of keys differs between systems; this number came out of one.
    let key = key as libc::pthread_key_t;
    // SAFETY: a key from `thread_exit_key`, which is never deleted once a thread was armed with it; were it none, the call refuses.
    unsafe { libc::pthread_setspecific(key, value.as_ptr().cast()) == 0 }
}

/// Whether any signal is blocked in this thread: then it may be in a signal handler, which may have interrupted anything,
/// `malloc` among it. Conservative, but no proof: threads may block signals for reasons of their own, and a handler that
/// was installed with `SA_NODEFER` and an empty mask blocks none.
pub(crate) fn may_be_in_signal_handler() -> bool {
    if super::is_in_sandbox() {
        return true;
    }
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
/// `false` where the kernel has no such call, or a [sandbox](super::sandbox) may forbid it: then nothing is fenced.
#[cfg(target_os = "linux")]
pub(crate) fn fence_other_threads() -> bool {
    !super::is_in_sandbox() && membarrier::fence()
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

    /// Doing so twice does no harm. Fences once, as [`rehearse`](crate::os::host) does with other calls.
    extern "C" fn register() {
        let registered = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
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

    /// The table of a thread's first 32 values lies in the thread; for the next key glibc allocates, which a handler must not that
    /// interrupted an allocation.
    #[cfg(target_env = "gnu")]
    #[test]
    fn a_key_that_needs_malloc_is_stored_in_calm_moments_only() {
        let keys: Vec<_> = (0..40).map_while(|_| thread_exit_key(on_no_end)).collect();
        let (early, late) = (keys[0], *keys.last().unwrap());
        assert!(early < KEYS_WITHOUT_MALLOC && late >= KEYS_WITHOUT_MALLOC, "{keys:?}");
        let arm = |key| arm_thread_exit(key, NonNull::dangling());
        std::thread::spawn(move || {
            assert!(arm(early) && arm(late));
            block_a_signal();
            assert!(arm(early) && !arm(late));
        })
        .join()
        .unwrap();
        keys.into_iter().for_each(return_key);
    }

    #[cfg(target_env = "gnu")]
    unsafe extern "C" fn on_no_end(_: *mut c_void) {}

    fn block_a_signal() {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: a place for a set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: initialised one line above.
        unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR1) };
        // SAFETY: an initialised set; only this thread's mask changes.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_fence_that_the_kernel_refuses_is_none() {
        use crate::os::seccomp::{self, Answer};
        use rustix::thread::{MembarrierCommand, membarrier_query};

        // Kernels from 4.14 on can, unless they were built without.
        let is_known = membarrier_query().contains_command(MembarrierCommand::PrivateExpedited);
        assert_eq!(fence_other_threads(), is_known);
        for error in [libc::EPERM, libc::ENOSYS] {
            // SAFETY: the child takes no lock, and ends without destructors.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let is_refused = seccomp::refuse(&[libc::SYS_membarrier], Answer::Errno(error));
                let code = i32::from(!is_refused || fence_other_threads() || fence_other_threads());
                // SAFETY: ends the child.
                unsafe { libc::_exit(code) };
            }
            let mut status = -1;
            // SAFETY: a child of ours, and a place for the answer.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "error {error}");
        }
    }

    /// A thread writes that it is busy, and looks at the claim; its processor keeps the write back meanwhile. A claimant that saw it idle
    /// after the fence must have its claim seen.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_is_seen_idle_after_the_fence_sees_the_claim() {
        use std::sync::atomic::{AtomicBool, AtomicU64, compiler_fence};

        const LOOKS: usize = 1 << 12;
        /// By the number of the look: the number, and what claim was seen.
        static SEEN: [[AtomicU64; 2]; LOOKS] = [const { [const { AtomicU64::new(0) }; 2] }; LOOKS];
        static BUSY: AtomicU64 = AtomicU64::new(0);
        static CLAIM: AtomicU64 = AtomicU64::new(0);
        static STOP: AtomicBool = AtomicBool::new(false);

        let owner = std::thread::spawn(|| {
            let mut look = 0;
            while !STOP.load(Ordering::Relaxed) {
                look += 1;
                BUSY.store(look, Ordering::Relaxed);
                compiler_fence(Ordering::SeqCst);
                let claim = CLAIM.load(Ordering::Relaxed);
                let [number, seen] = &SEEN[look as usize % LOOKS];
                seen.store(claim, Ordering::Relaxed);
                number.store(look, Ordering::Release);
            }
        });
        let mut checked = 0;
        for claim in 1..=5_000 {
            CLAIM.store(claim, Ordering::SeqCst);
            if !fence_other_threads() {
                break;
            }
            let next = BUSY.load(Ordering::Acquire) + 1;
            let [number, seen] = &SEEN[next as usize % LOOKS];
            while number.load(Ordering::Acquire) < next {
                std::hint::spin_loop();
            }
            let seen_claim = seen.load(Ordering::Acquire);
            // Unless the owner is a round ahead by now.
            if number.load(Ordering::Relaxed) == next {
                checked += 1;
                assert!(seen_claim >= claim, "look {next} saw the claim {seen_claim}, not {claim}");
            }
        }
        STOP.store(true, Ordering::Relaxed);
        owner.join().unwrap();
        println!("{checked} claims were checked");
    }

    #[test]
    fn a_thread_with_a_blocked_signal_may_be_in_a_handler() {
        std::thread::spawn(|| {
            assert!(!may_be_in_signal_handler());
            block_a_signal();
            assert!(may_be_in_signal_handler());
        })
        .join()
        .unwrap();
    }
}
