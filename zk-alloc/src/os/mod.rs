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
mod sandbox;
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
pub(crate) use imp::{
    advise_huge, coarse_ns, collapse, commit, discard, extend, forbid_huge, leave_out_of_dumps, lock, minor_faults,
    monotonic_ns, nap, page_in, populate, soften, trim_heap, wipe_on_fork, write_stderr,
};
#[cfg(not(unix))]
pub(crate) use imp::{arm_thread_exit, fence_other_threads, give_back_key, may_be_in_signal_handler, thread_exit_key};
pub(crate) use imp::{count_resident, move_pages};
pub(crate) use mapping::{Mapping, Room, map_guarded, map_zeroed, reserve, round_up};
pub(crate) use own_thread::OwnThread;
pub(crate) use pages::page_bytes;
pub(crate) use parking::Parking;
pub(crate) use sandbox::{enter_sandbox, is_in_sandbox};
pub(crate) use text::{Cut, warn};
#[cfg(thread_blocks)]
pub(crate) use thread_block::{THREAD_BLOCK_BYTES, thread_block};
#[cfg(unix)]
pub(crate) use threads::{
    arm_thread_exit, fence_other_threads, give_back_key, may_be_in_signal_handler, thread_exit_key,
};

/// The number of an operating system's error, as `errno` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

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
