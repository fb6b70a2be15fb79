//! The generation of this process, the clocks, and the module that keeps this code loaded.
//!
//! The generation is a number that differs between a forked child and its parent. A vforked child runs in its parent's memory, and has the
//! same number.
//!
//! A process id can't serve as that number: a vforked child has its own id, but it runs in its parent's memory, where live threads of the
//! parent have claimed caches. So the number is on a page that the kernel clears in a forked child (`MADV_WIPEONFORK`). The first caller
//! that finds 0 on it takes the next number.
//!
//! Without such a page, the number is always 1. This is so before Linux 4.14, in sandboxes that lack this advice (gVisor), and if no page
//! can be mapped. Other systems have no such pages at all, and their pthread_atfork(3) is no substitute: it allocates, and misses some
//! kinds of fork. Without the page, a forked child mistakes its parent's claims for those of its own threads. A cache that another thread
//! had claimed at the fork stays claimed, and the child claims no more caches. That memory stays unused; nothing is handed out twice.
#![allow(unsafe_code, reason = "lays a word over a page")]

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::Mapping;

/// The word with the generation, on a page that the kernel clears in a forked child; null until the first call of [`word`].
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The word that is used if there is no such page.
static UNCHANGING: AtomicU64 = AtomicU64::new(1);
/// The last number that this process or an ancestor took.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns the generation of this process: at least 1, and different from that of every process that it was forked from. Allocates nothing,
/// and never waits.
pub(crate) fn process_generation() -> u64 {
    number(word(), &LAST)
}

/// Returns the number in `word`. If it is 0, stores the next number there first.
fn number(word: &AtomicU64, last: &AtomicU64) -> u64 {
    let known = word.load(Ordering::Acquire);
    if known != 0 {
        return known;
    }
    let next = last.load(Ordering::Relaxed) + 1;
    // Record the number before it is in use: a child forked in between finds 0 in `word`, and must not take the same number.
    last.fetch_max(next, Ordering::AcqRel);
    word.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire).map_or_else(|other| other, |_| next)
}

fn word() -> &'static AtomicU64 {
    let known = WORD.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or points to a word that lasts as long as the process.
    unsafe { known.as_ref() }.unwrap_or_else(find)
}

/// Maps a page that the kernel clears in a forked child, if the system has such pages, and returns the word on it.
#[cold]
fn find() -> &'static AtomicU64 {
    // SAFETY: the page is a mapping of our own. A child finds 0 on it, as intended.
    let is_wiped = |page: &Mapping| unsafe { super::wipe_on_fork(page.start().as_ptr(), page.len()) }.is_ok();
    let page = super::map_zeroed(super::page_bytes()).ok().filter(is_wiped);
    // SAFETY: the page is zeroed, aligned, and only accessed as an atomic. It is leaked before this function returns the word.
    let found = page.as_ref().map_or(&UNCHANGING, |page| unsafe { page.start().cast::<AtomicU64>().as_ref() });
    let at = std::ptr::from_ref(found).cast_mut();
    match WORD.compare_exchange(std::ptr::null_mut(), at, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // Other threads may read the word from now on, so keep the page mapped.
            std::mem::forget(page);
            found
        }
        // SAFETY: `other` is another thread's word, which lasts as long as the process. Our own page is dropped: no other thread has its
        // address.
        Err(other) => unsafe { &*other },
    }
}

/// Takes this process's generation, registers for [`fence_other_threads`](super::fence_other_threads), and keeps this code loaded. Runs
/// before `main`, or before `dlopen` returns. Usually, memory is not short then, no system-call filter is in force, and there are no other
/// threads.
#[cfg(target_os = "linux")]
pub(super) fn begin() {
    // Most processes with the preload library never open the arena, so that library maps the page when the arena opens.
    #[cfg(not(feature = "c-api"))]
    process_generation();
    super::register_fence();
    #[cfg(all(target_env = "gnu", not(target_feature = "crt-static"), not(feature = "c-api")))]
    pin::pin();
}

/// Returns the time of a monotonic clock, in nanoseconds.
#[cfg(unix)]
pub(crate) fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Returns the same time as [`monotonic_ns`]. On Linux, it may lag by a few milliseconds, but reading it takes only a few loads, without a
/// processor counter or a system call.
#[cfg(unix)]
pub(crate) fn coarse_ns() -> u64 {
    read_ns(super::imp::COARSE_CLOCK)
}

#[cfg(unix)]
fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writes. If the system had no such clock, the time would stand still.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

#[cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static"), not(feature = "c-api")))]
mod pin {
    //! Keeps the shared object that contains this code (a plugin, for example) mapped until the process ends.
    //!
    //! dlclose(3) would unmap it, with the arena's tables and our code. But each thread that allocated memory here calls our code when it
    //! ends (the destructor of a thread-local key), and nothing can cancel that call. The program may also still use memory of the arena.
    //! So when the object is loaded, this code asks the loader never to unload it (`RTLD_NODELETE`). A later dlclose(3) succeeds but
    //! unloads nothing, and another dlopen(3) finds the object as it was left.
    //!
    //! This is for glibc only. musl's dlclose(3) unloads nothing, and a static program has no such objects. (libzk_alloc.so has a flag in
    //! its file for the same effect. It may be loaded by another C library, which has no `dladdr1`.)
    #![allow(unsafe_code, reason = "asks the loader")]

    use std::ffi::{c_char, c_void};
    use std::mem::MaybeUninit;
    use std::ptr::null_mut;

    /// The beginning of glibc's `struct link_map` (link.h).
    #[repr(C)]
    struct LinkMap {
        base: usize,
        name: *const c_char,
    }

    /// `RTLD_DL_LINKMAP` (dlfcn.h).
    const LINK_MAP: libc::c_int = 2;

    pub(super) fn pin() {
        let (mut info, mut map) = (MaybeUninit::<libc::Dl_info>::uninit(), null_mut::<c_void>());
        let own = (&raw const super::LAST).cast();
        // SAFETY: `info` and `map` are valid for writes.
        if unsafe { libc::dladdr1(own, info.as_mut_ptr(), &raw mut map, LINK_MAP) } == 0 || map.is_null() {
            return;
        }
        // SAFETY: `map` was written by a call that succeeded. The loader's entry for this object begins with these fields, and lasts as
        // long as the object.
        let name = unsafe { (*map.cast::<LinkMap>()).name };
        // SAFETY: the name is a C string of the loader. Only the program itself has a null or an empty name.
        if name.is_null() || unsafe { *name } == 0 {
            return;
        }
        // SAFETY: `name` is the name of a loaded object, so the call only sets the flag. The handle is closed once.
        unsafe {
            let handle = libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
            if !handle.is_null() {
                libc::dlclose(handle);
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::os::forks::{code_of, in_a_fork};

    /// With its parent's number, a child would mistake its parent's claims for live ones. If its number changed, it would cancel its own
    /// claims.
    #[test]
    fn every_process_in_a_line_of_forks_has_its_own_generation() {
        let own = process_generation();
        assert!(own >= 1);
        let others = [(); 2].map(|()| {
            in_a_fork(|| {
                let child = process_generation();
                let grandchild = in_a_fork(|| process_generation() as u8) as u64;
                let all_differ = child != own && grandchild != child && grandchild != own;
                if all_differ && process_generation() == child { child as u8 } else { 0 }
            })
        });
        assert!(others.iter().all(|&child| (1..1_000).contains(&child)), "{others:?}, {own}");
        assert_eq!(process_generation(), own, "the parent keeps its number");
    }

    /// A vforked child with a number of its own would cancel the claims of the threads whose memory it shares.
    #[test]
    fn a_vforked_child_has_its_parents_generation() {
        extern "C" fn tell(seen: *mut libc::c_void) -> libc::c_int {
            // SAFETY: `seen` is a variable of the parent, which is suspended until the child ends.
            unsafe { seen.cast::<u64>().write(process_generation()) };
            0
        }
        let (mut stack, mut seen) = (vec![0_u8; 64 << 10], 0_u64);
        let stack_end = stack.as_mut_ptr_range().end;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the child has a stack of its own, of which it uses an aligned part. The call returns when the child has ended.
        let child = unsafe {
            let stack_end = stack_end.sub(stack_end.addr() % 16);
            libc::clone(tell, stack_end.cast(), flags, (&raw mut seen).cast())
        };
        assert_eq!((code_of(child), seen), (0, process_generation()));
    }

    /// A child that is forked after the number was recorded, but before it is in use, must not take the same number.
    #[test]
    fn a_generation_is_recorded_before_it_is_used() {
        let (word, last) = (AtomicU64::new(0), AtomicU64::new(2));
        assert_eq!((number(&word, &last), number(&word, &last)), (3, 3));
        assert_eq!((word.into_inner(), last.into_inner()), (3, 3));
    }
}
