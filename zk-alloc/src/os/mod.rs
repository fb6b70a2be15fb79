//! The arena's interface to the kernel. This file alone picks the platform.
//!
//! Addresses and lengths are multiples of the page size. Nothing here allocates, locks, panics or aborts. A refused call returns an
//! [`Errno`], and the caller decides what that means.

/// Calls on a range of memory that a system lacks, each with the same answer.
#[cfg(not(target_os = "linux"))]
macro_rules! absent {
    ($answer:expr => $($name:ident),+) => {$(
        /// This system has no such call.
        ///
        /// # Safety
        /// None is needed; the platforms share one signature.
        pub(crate) unsafe fn $name(_at: *mut u8, _len: usize) -> Result<(), Errno> {
            $answer
        }
    )+};
}

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
#[path = "linux/mod.rs"]
mod imp;
#[cfg(all(unix, not(target_os = "linux")))]
#[path = "unix.rs"]
mod imp;
#[cfg(not(unix))]
#[path = "other.rs"]
mod imp;

mod environment;
#[cfg(all(test, target_os = "linux"))]
#[allow(dead_code, reason = "unit tests use a part")]
#[path = "../../tests/support/process.rs"]
pub(crate) mod forks;
mod host;
mod mapping;
mod own_thread;
#[cfg(unix)]
mod posix;
mod process;
#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/support/seccomp.rs"]
mod seccomp;
mod text;
#[cfg(thread_blocks)]
mod thread_block;
#[cfg(unix)]
mod threads;

#[cfg(feature = "c-api")]
pub(crate) use environment::is_any_variable;
pub(crate) use environment::{Value, nearest_variable, unknown_variable, variable};
#[cfg(feature = "c-api")]
pub use host::postpone as postpone_asking_host;
#[cfg(all(test, not(loom), target_os = "linux"))]
pub(crate) use host::set_max_mappings;
pub(crate) use host::{Host, Limits, host, max_mappings};
#[cfg(unix)]
pub(crate) use imp::keep_on_fork;
#[cfg(all(not(unix), feature = "profile"))]
pub(crate) use imp::may_be_on_signal_stack;
pub(crate) use imp::{
    advise_huge, commit, copy_held, count_resident, discard, extend, forbid_huge, hand_to_children,
    leave_out_of_children, leave_out_of_dumps, minor_faults, missing_memory, move_pages, populate, prefault,
    purge_lazily, renew, trim_heap, wipe_on_fork,
};
#[cfg(not(unix))]
pub(crate) use imp::{
    arm_thread_exit, coarse_ns, fence_other_threads, lock, lockable_bytes, may_be_in_signal_handler, monotonic_ns,
    on_signal, return_key, signal_number, thread_exit_key, unlock,
};
pub(crate) use mapping::{AddressRange, Mapping, map_guarded, map_zeroed, may_map_sparsely, reserve, round_up};
#[cfg(any(not(loom), feature = "profile"))]
pub(crate) use mapping::{AllZero, MappedOnce};
pub(crate) use mapping::{TEST_PAGE_BYTES, page_bytes};
pub(crate) use own_thread::{OwnThread, Parking, SMALL_STACK_BYTES};
#[cfg(unix)]
pub(crate) use posix::{coarse_ns, lock, lockable_bytes, monotonic_ns, unlock};
pub(crate) use process::{process_generation, refer_to_pin};
#[cfg(feature = "c-api")]
pub(crate) use text::{abort, write_line};
pub(crate) use text::{enter_sandbox, is_in_sandbox, warn};
#[cfg(all(thread_blocks, feature = "profile"))]
pub(crate) use thread_block::{PROFILE_BLOCK_BYTES, profile_block};
#[cfg(thread_blocks)]
pub(crate) use thread_block::{THREAD_BLOCK_BYTES, thread_block};
#[cfg(all(unix, feature = "profile"))]
pub(crate) use threads::may_be_on_signal_stack;
#[cfg(unix)]
pub(crate) use threads::{
    Signals, arm_thread_exit, at_fork, fence_other_threads, may_be_in_signal_handler, on_signal, return_key,
    signal_number, thread_exit_key, thread_id,
};

/// An error number of the operating system, as in `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// The error of [`extend`] if something is mapped there already (`EEXIST`, the same number on all systems).
pub(crate) const OCCUPIED: Errno = Errno(17);

/// Why pages were not moved, and whether their target can still be used.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux moves pages"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotMoved {
    pub(crate) errno: Errno,
    /// The whole target is mapped and accessible. If not, nobody may touch or unmap it: another thread's mapping may lie there by
    /// now.
    pub(crate) is_target_whole: bool,
}

impl From<Errno> for NotMoved {
    fn from(errno: Errno) -> Self {
        Self { errno, is_target_whole: true }
    }
}

/// The host's setting for transparent huge pages.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux can be asked for huge pages"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostHugePages {
    /// The kernel provides huge pages.
    Available,
    /// The kernel provides them. But it hands free memory to the hypervisor, and has to ask for it again, page by page, at the first
    /// touch.
    Costly,
    /// Off, unknown to this kernel, or not readable.
    Unavailable,
}

/// In builds with debug assertions, this variable makes a virtual machine pass for a host that reports no free memory. So tests in a
/// virtual machine cover the code for bare metal.
pub(crate) const TEST_BARE_METAL: &str = "ZK_ALLOC_TEST_BARE_METAL";

/// The size of a huge page on the platforms that have them, in bytes.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
