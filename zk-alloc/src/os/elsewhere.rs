//! Systems other than Linux. Other Unix systems go through libc. On non-Unix systems, the arena can't reserve address space and never
//! opens, so the backing allocator serves everything. Modules that need zeroed memory of their own get it from the system allocator.
#![allow(unsafe_code, reason = "the signatures of Linux, and mapping memory")]

use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicPtr, AtomicU32};
use std::thread::{self, Thread};
use std::time::Duration;

use super::{Errno, HostHugePages, NotMoved};

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(not(unix))]
pub(crate) use without_arena::*;

/// Defines stubs for system calls on a memory range that these systems lack. All stubs return the same result.
macro_rules! refuse {
    ($answer:expr => $($name:ident),+) => {$(
        /// Always returns the same result: this system has no such call.
        ///
        /// # Safety
        /// No requirements: it is `unsafe` only because all platforms share one signature.
        pub(crate) unsafe fn $name(_at: *mut u8, _len: usize) -> Result<(), Errno> {
            $answer
        }
    )+};
}
use refuse;

/// Defines functions that return a constant, on systems that lack the call.
macro_rules! answer {
    ($($(#[$doc:meta])+ $name:ident($($parameter:ty),*) -> $type:ty = $answer:expr;)+) => {$(
        $(#[$doc])+
        pub(crate) fn $name($(_: $parameter),*) -> $type {
            $answer
        }
    )+};
}
#[cfg(not(unix))]
use answer;

refuse!(Err(UNSUPPORTED) => leave_out_of_dumps, wipe_on_fork, leave_out_of_children, hand_to_children);

answer! {
    /// Refuses: on these systems, the arena reserves its address range, or there is no arena.
    try_place(*mut u8, usize) -> Result<(), Errno> = Err(UNSUPPORTED);
    /// Returns `None`: the limit on mappings is unknown.
    mappings_limit() -> Option<usize> = None;
    /// Returns 0: there are no control groups.
    missing_memory(usize, usize) -> usize = 0;
    /// Returns `Unavailable`: a program can't ask for huge pages.
    host_huge_pages() -> HostHugePages = HostHugePages::Unavailable;
    /// Does nothing: only glibc can trim its heap.
    trim_heap() -> () = ();
    /// Returns `false`: these systems have no such call.
    fence_other_threads() -> bool = false;
}

/// Refuses: these systems can't move pages.
///
/// # Safety
/// No requirements: it is `unsafe` only because all platforms share one signature.
pub(crate) unsafe fn move_pages(_from: *mut u8, _to: *mut u8, _len: usize) -> Result<(), NotMoved> {
    Err(UNSUPPORTED.into())
}

/// Refuses: no pages were moved, so none need a fresh mapping.
///
/// # Safety
/// No requirements: it is `unsafe` only because all platforms share one signature.
pub(crate) unsafe fn renew(_at: *mut u8, _len: usize) -> Result<(), NotMoved> {
    Err(UNSUPPORTED.into())
}

/// Returns `false`: these systems do not report which pages were touched.
///
/// # Safety
/// No requirements: it is `unsafe` only because all platforms share one signature.
pub(crate) unsafe fn copy_held(_from: *const u8, _to: *mut u8, _len: usize) -> bool {
    false
}

/// Returns `None`: mincore(2) answers differently on each Unix system.
///
/// # Safety
/// No requirements: it is `unsafe` only because all platforms share one signature.
pub(crate) unsafe fn count_resident(_at: *const u8, _len: usize) -> Option<usize> {
    None
}

/// The part of a [`Parking`](super::Parking) that depends on the system: the handle of the thread that sleeps, or null before the first
/// sleep. The handle is leaked, because a waker may use it at any time.
pub(super) struct Sleeper(AtomicPtr<Thread>);

impl Sleeper {
    pub(super) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    pub(super) fn wake(&self, _wakes: &AtomicU32) {
        self.known().inspect(|sleeper| sleeper.unpark());
    }

    pub(super) fn sleep(&self, wakes: &AtomicU32, ticket: u32, at_most: Option<Duration>) {
        let own = thread::current();
        if self.known().is_none_or(|known| known.id() != own.id()) {
            self.0.store(Box::leak(Box::new(own)), SeqCst);
        }
        if wakes.load(SeqCst) == ticket {
            at_most.map_or_else(thread::park, thread::park_timeout);
        }
    }

    fn known(&self) -> Option<&Thread> {
        // SAFETY: the pointer is null, or a handle that was leaked.
        unsafe { self.0.load(SeqCst).as_ref() }
    }
}

#[cfg(unix)]
mod unix {
    use std::ptr::{NonNull, null_mut};

    use crate::os::mapping::{covered, touch};
    use crate::os::{Errno, Limits};

    /// The error of a call that these systems lack, or that differs between them.
    pub(in crate::os) const UNSUPPORTED: Errno = Errno(libc::ENOTSUP);

    super::refuse!(Err(UNSUPPORTED) => keep_on_fork);
    // These calls only affect speed, so the stubs do nothing and report success.
    super::refuse!(Ok(()) => prefault, advise_huge, forbid_huge);

    fn last_error() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    fn checked(result: libc::c_int) -> Result<(), Errno> {
        if result == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// The clock that [`coarse_ns`](super::coarse_ns) reads. Not all of these systems have a coarser clock, so this is the monotonic one.
    pub(in crate::os) const COARSE_CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

    fn map(len: usize, protection: libc::c_int) -> Result<NonNull<u8>, Errno> {
        // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { libc::mmap(null_mut(), len, protection, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0) };
        if start == libc::MAP_FAILED { Err(last_error()) } else { NonNull::new(start.cast()).ok_or(Errno(0)) }
    }

    /// Maps `len` bytes of inaccessible address space.
    pub(in crate::os) fn map_inaccessible(len: usize) -> Result<NonNull<u8>, Errno> {
        map(len, libc::PROT_NONE)
    }

    /// Maps `len` bytes of zeroed memory.
    pub(in crate::os) fn map_accessible(len: usize) -> Result<NonNull<u8>, Errno> {
        map(len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Unmaps a mapping, or a part at either end of one.
    ///
    /// # Safety
    /// The range belongs to the caller, and is not used afterwards.
    pub(in crate::os) unsafe fn unmap(at: *mut u8, len: usize) {
        // SAFETY: upheld by the caller. If the kernel refuses, the range merely stays mapped.
        let _ = unsafe { libc::munmap(at.cast(), len) };
    }

    /// Makes part of a reservation readable and writable. Pages that are accessible already keep their contents.
    ///
    /// # Safety
    /// `[at, at + len)` lies within one reservation.
    pub(crate) unsafe fn commit(at: *mut u8, len: usize) -> Result<(), Errno> {
        let len = covered(at, len)?;
        // SAFETY: upheld by the caller: the range is ours, and access to it only widens.
        checked(unsafe { libc::mprotect(at.cast(), len, libc::PROT_READ | libc::PROT_WRITE) })
    }

    // On these systems, the whole address range is reserved, so extending it only makes pages accessible.
    pub(crate) use self::commit as extend;

    /// Purges the pages. The range reads as zeroes afterwards.
    ///
    /// # Errors
    /// The system's error. The range then has its old contents, or reads as zeroes. If the system has unmapped it and grants no new memory,
    /// it is not accessible.
    ///
    /// # Safety
    /// The range is committed, and its contents are not needed.
    pub(crate) unsafe fn discard(at: *mut u8, len: usize) -> Result<(), Errno> {
        let len = covered(at, len)?;
        // Outside of Linux, MADV_DONTNEED does not guarantee zeroes. A new mapping in place of the old one does.
        // SAFETY: upheld by the caller: the contents are not needed, and the range is inside a mapping of ours.
        let Err(refused) = (unsafe { replace(at, len, libc::PROT_READ | libc::PROT_WRITE) }) else { return Ok(()) };
        // POSIX allows a refused call to unmap the old mapping. An access to that hole would crash the process, and another thread's
        // mapping may land in it. mprotect(2) succeeds only if the memory is mapped.
        // SAFETY: upheld by the caller: the range is ours, and accessible unless the refused call unmapped it.
        if unsafe { libc::mprotect(at.cast(), len, libc::PROT_READ | libc::PROT_WRITE) } == 0 {
            return Err(refused);
        }
        // Fill the hole: the memory of the old mapping may be available now. If not, try at least to keep other mappings out.
        // SAFETY: as above.
        let filled = unsafe { replace(at, len, libc::PROT_READ | libc::PROT_WRITE) };
        if filled.is_err() {
            // SAFETY: as above.
            let _ = unsafe { replace(at, len, libc::PROT_NONE) };
        }
        filled
    }

    /// Maps new memory in place of the old.
    ///
    /// # Safety
    /// The range belongs to the caller, and its contents are not needed.
    unsafe fn replace(at: *mut u8, len: usize, protection: libc::c_int) -> Result<(), Errno> {
        let how = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED;
        // SAFETY: upheld by the caller.
        let start = unsafe { libc::mmap(at.cast(), len, protection, how, -1, 0) };
        if start == libc::MAP_FAILED { Err(last_error()) } else { Ok(()) }
    }

    /// Purges the pages lazily: the kernel may take them when it runs short of memory. Until then they keep their contents. A write to a
    /// page cancels this.
    ///
    /// # Safety
    /// The range is committed, and its contents are not needed.
    pub(crate) unsafe fn purge_lazily(at: *mut u8, len: usize) -> Result<(), Errno> {
        let len = covered(at, len)?;
        // SAFETY: upheld by the caller: the contents are not needed.
        checked(unsafe { libc::madvise(at.cast(), len, libc::MADV_FREE) })
    }

    /// Prefaults the range for writing.
    ///
    /// # Safety
    /// The range is committed, and belongs to the caller alone.
    pub(crate) unsafe fn populate(at: *mut u8, len: usize) -> Result<(), Errno> {
        let len = covered(at, len)?;
        // Use the smallest page size of any system: touching a page twice does no harm.
        // SAFETY: upheld by the caller.
        unsafe { touch(at, len, 4096) };
        Ok(())
    }

    /// Returns the number of online processors, and the machine's memory.
    pub(crate) fn limits() -> Limits {
        // SAFETY: the call only reads a number from the system.
        let number_of = |name| usize::try_from(unsafe { libc::sysconf(name) }).unwrap_or(0);
        let memory_bytes = number_of(libc::_SC_PHYS_PAGES).saturating_mul(number_of(libc::_SC_PAGESIZE));
        Limits { threads: number_of(libc::_SC_NPROCESSORS_ONLN).max(1), memory_bytes, is_memory_grouped: false }
    }

    /// Returns the number of minor page faults of this process so far (those without a disk read).
    pub(crate) fn minor_faults() -> u64 {
        // SAFETY: all zeroes is a valid value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is valid for writes. It stays zeroed if the call fails.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        u64::try_from(usage.ru_minflt).unwrap_or(0)
    }

    /// Calls a function of the C library that returns -1 if it fails. Does not preserve `errno`.
    pub(in crate::os) fn keeping_errno(call: impl FnOnce() -> libc::c_int) -> Result<(), Errno> {
        checked(call().min(0))
    }
}

#[cfg(not(unix))]
mod without_arena {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::ffi::c_void;
    use std::ptr::NonNull;
    use std::thread::{Builder, JoinHandle};

    use crate::os::{Errno, Limits};

    /// The error of every call: there is no arena.
    pub(in crate::os) const UNSUPPORTED: Errno = Errno(0);

    super::refuse!(
        Err(UNSUPPORTED) => commit, extend, discard, advise_huge, forbid_huge, purge_lazily, prefault, populate, lock, unlock
    );

    super::answer! {
        /// Returns `None`: there are no keys whose destructors run when a thread ends.
        thread_exit_key(unsafe extern "C" fn(*mut c_void)) -> Option<u32> = None;
        /// Does nothing: there are no keys.
        return_key(u32) -> () = ();
        /// Returns `false`: there are no keys.
        arm_thread_exit(u32, NonNull<u8>) -> bool = false;
        /// Returns `None`: no signal can be handled here.
        signal_number(&str) -> Option<i32> = None;
        /// Returns `false`: no signal can be handled here.
        on_signal(i32, fn()) -> bool = false;
        /// Returns `false`: no signal interrupts a thread.
        may_be_in_signal_handler() -> bool = false;
        /// Returns 0: the limit is unknown.
        lockable_bytes() -> usize = 0;
        /// Returns 0: page faults are unknown.
        minor_faults() -> u64 = 0;
        /// Returns `false`: there are no signal handlers.
        may_be_on_signal_stack() -> bool = false;
    }

    /// Returns the alignment of memory from [`map_accessible`], in bytes.
    pub(in crate::os) fn real_page_bytes() -> usize {
        4096
    }

    /// Returns the layout of `len` bytes, aligned to a page.
    fn pages(len: usize) -> Result<Layout, Errno> {
        Layout::from_size_align(len, crate::os::page_bytes()).map_err(|_| UNSUPPORTED)
    }

    /// Refuses: this platform has no arena.
    pub(in crate::os) fn map_inaccessible(_len: usize) -> Result<NonNull<u8>, Errno> {
        Err(UNSUPPORTED)
    }

    /// Allocates `len` bytes of zeroed memory.
    pub(in crate::os) fn map_accessible(len: usize) -> Result<NonNull<u8>, Errno> {
        let layout = pages(len)?;
        if layout.size() == 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: the layout's size is not 0.
        NonNull::new(unsafe { System.alloc_zeroed(layout) }).ok_or(Errno(0))
    }

    /// Frees memory.
    ///
    /// # Safety
    /// `at` and `len` are those of one call of [`map_accessible`], and the memory is not used afterwards.
    pub(in crate::os) unsafe fn unmap(at: *mut u8, len: usize) {
        if let Ok(layout) = pages(len) {
            // SAFETY: upheld by the caller: the memory came from `System` with this layout.
            unsafe { System.dealloc(at, layout) };
        }
    }

    /// Returns the number of threads that can run at once, at least 1. The amount of memory is unknown, and given as 0.
    pub(crate) fn limits() -> Limits {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Limits { threads, memory_bytes: 0, is_memory_grouped: false }
    }

    /// Returns the time of the wall clock, in nanoseconds. If the clock is set, a wait may be too long or too short.
    pub(crate) fn monotonic_ns() -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the same as [`monotonic_ns`].
    pub(crate) fn coarse_ns() -> u64 {
        monotonic_ns()
    }

    /// Writes to standard error, and ignores errors.
    pub(crate) fn write_stderr(bytes: &[u8]) {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), bytes);
    }

    /// A thread of the allocator, started by the standard library. Dropping it leaves the thread running.
    pub(crate) struct OwnThread(JoinHandle<()>);

    impl OwnThread {
        /// Starts a thread that runs `run`, which must not panic, on a stack of this size, or of the default size for `None`.
        ///
        /// # Errors
        /// The system's error, if it can't create a thread.
        pub(crate) fn start(run: fn(), stack_bytes: Option<usize>) -> Result<Self, Errno> {
            let builder = Builder::new().name("zk-alloc".into());
            let builder = stack_bytes.into_iter().fold(builder, Builder::stack_size);
            builder.spawn(run).map(Self).map_err(|error| Errno(error.raw_os_error().unwrap_or(0)))
        }

        /// Waits until the thread has ended.
        pub(crate) fn join(self) {
            let _ = self.0.join();
        }
    }
}
