//! The arena's interface to the kernel. This file alone picks the platform.
//!
//! Addresses and lengths are multiples of the page size. Nothing here allocates, locks, panics or aborts. A refused call returns an
//! [`Errno`], and the caller decides what that means.

#[cfg_attr(target_os = "linux", path = "linux/mod.rs")]
#[cfg_attr(not(target_os = "linux"), path = "elsewhere.rs")]
mod imp;

mod environment;
#[cfg(all(test, target_os = "linux"))]
#[allow(dead_code, reason = "unit tests use a part")]
#[path = "../../tests/support/process.rs"]
pub(crate) mod forks;
mod mapping;
mod process;
#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/support/seccomp.rs"]
mod seccomp;
#[cfg(thread_blocks)]
mod thread_block;
#[cfg(unix)]
mod threads;

#[cfg(feature = "c-api")]
pub use environment::postpone_asking_host;
pub(crate) use environment::*;
pub(crate) use imp::*;
pub(crate) use mapping::*;
pub(crate) use process::*;
#[cfg(thread_blocks)]
pub(crate) use thread_block::*;
#[cfg(unix)]
pub(crate) use threads::*;

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
