//! The arena's interface to the kernel. `imp` is the module `linux` on Linux, and `elsewhere` on all other systems. The other files contain
//! the code that several systems share.
//!
//! Addresses and lengths are multiples of the page size. Nothing here allocates, locks, panics or aborts. A refused call returns an
//! [`Errno`], and the caller decides what that means.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

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
pub(crate) mod seccomp;
#[cfg(thread_blocks)]
mod thread_block;
#[cfg(unix)]
mod threads;

pub(crate) use environment::*;
#[cfg(feature = "c-api")]
pub use environment::{is_in_sandbox, postpone_asking_host, warn, write_line};
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
    /// Whether the whole target is mapped and accessible. If not, it must not be touched or unmapped, because another thread's mapping may
    /// be there now.
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
    /// The kernel provides huge pages, but returns free memory to the hypervisor, and has to get it back page by page when the memory is
    /// next touched.
    Costly,
    /// Huge pages are off, this kernel does not know them, or the setting can't be read.
    Unavailable,
}

/// In builds with debug assertions, this variable makes a virtual machine look like a host that reports no free memory to a hypervisor. So
/// tests that run in a virtual machine can cover the code for bare metal.
pub(crate) const TEST_BARE_METAL: &str = "ZK_ALLOC_TEST_BARE_METAL";

/// A place where one thread sleeps until another wakes it, or until a timeout has passed. A wake takes no lock and allocates nothing.
pub(crate) struct Parking {
    /// The number of wakes so far.
    wakes: AtomicU32,
    sleeper: imp::Sleeper,
}

impl Parking {
    pub(crate) const fn new() -> Self {
        Self { wakes: AtomicU32::new(0), sleeper: imp::Sleeper::new() }
    }

    /// Returns a ticket for [`sleep`](Self::sleep). Take it before you look for work: if a wake comes in between, the sleep ends at once.
    pub(crate) fn ticket(&self) -> u32 {
        self.wakes.load(Ordering::SeqCst)
    }

    /// Wakes the thread that sleeps here.
    pub(crate) fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.sleeper.wake(&self.wakes);
    }

    /// Sleeps until the first wake after `ticket` was taken, or until `at_most` has passed. May return earlier.
    pub(crate) fn sleep(&self, ticket: u32, at_most: Option<Duration>) {
        self.sleeper.sleep(&self.wakes, ticket, at_most);
    }
}

/// The size of a huge page on the platforms that have them, in bytes.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn sleep_ends_on_wake_or_timeout_and_an_old_ticket_prevents_it() {
        static PLACE: Parking = Parking::new();
        let old = PLACE.ticket();
        PLACE.wake();
        PLACE.sleep(old, None);
        let began = Instant::now();
        PLACE.sleep(PLACE.ticket(), Some(Duration::from_micros(300)));
        assert!(began.elapsed() >= Duration::from_micros(300));
        let ticket = PLACE.ticket();
        let sleeper = std::thread::spawn(move || {
            while PLACE.ticket() == ticket {
                PLACE.sleep(ticket, None);
            }
        });
        std::thread::sleep(Duration::from_millis(5));
        PLACE.wake();
        sleeper.join().unwrap();
    }
}
