//! What the arena asks of the kernel. One place picks the platform.
//!
//! Addresses and lengths are multiples of the page size. Nothing here allocates, locks, panics or aborts: a refusal is
//! an [`Errno`], and what it means is decided above.

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
mod generation;
mod host;
mod mapping;
mod own_thread;
mod pages;
mod parking;
#[cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static"), not(feature = "c-api")))]
mod pin;
mod sandbox;
#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/support/seccomp.rs"]
mod seccomp;
#[cfg(unix)]
mod stderr;
mod text;
#[cfg(thread_blocks)]
mod thread_block;
#[cfg(unix)]
mod threads;

#[cfg(test)]
pub(crate) use environment::VARIABLES;
pub(crate) use environment::{Value, variable};
pub(crate) use generation::process_generation;
#[cfg(feature = "c-api")]
pub(crate) use host::postpone as postpone_asking_host;
pub(crate) use host::{Host, host};
#[cfg(not(unix))]
pub(crate) use imp::write_stderr;
pub(crate) use imp::{
    advise_huge, coarse_ns, collapse, commit, discard, extend, forbid_huge, leave_out_of_dumps, lock, minor_faults,
    monotonic_ns, nap, populate, prefault, purge_lazily, trim_heap, wipe_on_fork,
};
#[cfg(not(unix))]
pub(crate) use imp::{arm_thread_exit, fence_other_threads, may_be_in_signal_handler, return_key, thread_exit_key};
pub(crate) use imp::{count_resident, move_pages};
pub(crate) use mapping::{Mapping, Room, map_guarded, map_zeroed, may_map_sparsely, reserve, round_up};
pub(crate) use own_thread::OwnThread;
pub(crate) use pages::page_bytes;
pub(crate) use parking::Parking;
#[cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static"), not(feature = "c-api")))]
pub(crate) use pin::refer as refer_to_pin;
pub(crate) use sandbox::{SANDBOX, enter_sandbox, is_in_sandbox};
#[cfg(unix)]
pub(crate) use stderr::write_stderr;
pub(crate) use text::{Cut, warn};
#[cfg(thread_blocks)]
pub(crate) use thread_block::{THREAD_BLOCK_BYTES, thread_block};
#[cfg(unix)]
pub(crate) use threads::{arm_thread_exit, fence_other_threads, may_be_in_signal_handler, return_key, thread_exit_key};

/// Nothing unloads the code here.
#[cfg(not(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static"), not(feature = "c-api"))))]
pub(crate) fn refer_to_pin() {}

/// The number of an operating system's error, as `errno` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// Why pages were not moved, and what became of the place where they were to go.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux moves pages"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotMoved {
    pub(crate) errno: Errno,
    /// It is mapped and accessible, all of it. Otherwise nobody may touch it, nor unmap it: it may be another thread's by now.
    pub(crate) is_target_whole: bool,
}

impl From<Errno> for NotMoved {
    fn from(errno: Errno) -> Self {
        Self { errno, is_target_whole: true }
    }
}

/// What the host says of transparent huge pages.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux can be asked for huge pages"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostHugePages {
    /// The kernel gives them where a program asks.
    Available,
    /// It does where no program asks, too.
    Unasked,
    /// It does where a program asks, but free memory is handed to the hypervisor, which has to be asked for it again, page by page,
    /// at the first touch.
    Costly,
    /// As above, and the kernel gives them where no program asks, too.
    CostlyUnasked,
    /// Off, unknown to this kernel, or not to be read.
    Unavailable,
}

/// The variable that has a virtual machine pass for a host that reports no free memory, in builds with debug assertions: what is
/// tested on the one is used on the other.
pub(crate) const TEST_BARE_METAL: &str = "ZK_ALLOC_TEST_BARE_METAL";

/// The size of a huge page on the platforms that have them, in bytes.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
