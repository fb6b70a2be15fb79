//! Facts about the host, read once when the process starts.
//!
//! A program may lose the right to read them before its first allocation: by a filter of system calls (seccomp), or by a change of
//! its root or user. So on Linux a function before `main` reads them. It also gives each [advice](imp::rehearse) once that the arena
//! will give. Later changes of the control group or the allowed processors are not seen.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{HostHugePages, imp};
use crate::sync::WrittenOnce;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) limits: Limits,
    pub(crate) huge_pages: HostHugePages,
}

/// The threads and the memory that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Threads of this process that can run at once. At least 1.
    pub(crate) threads: usize,
    /// The memory that this process may use, in bytes.
    pub(crate) memory_bytes: usize,
    /// Whether a control group limits the memory, and not the machine.
    pub(crate) is_memory_grouped: bool,
}

static HOST: WrittenOnce<Host> = WrittenOnce::new();

#[cfg(feature = "c-api")]
static IS_POSTPONED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Postpones the questions to the host until the arena opens, or the process enters a sandbox. By default they are asked when the process
/// starts. Call this before `main`, from a function of priority 104.
#[cfg(feature = "c-api")]
pub fn postpone() {
    IS_POSTPONED.store(true, std::sync::atomic::Ordering::Relaxed);
}

/// The most mappings that this process may have; 0 before it was read.
static MAX_MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// The most mappings that this process may have: `vm.max_map_count`, or the kernel's default if that can't be read.
pub(crate) fn max_mappings() -> usize {
    const DEFAULT: usize = 65_530;
    match MAX_MAPPINGS.load(Ordering::Relaxed) {
        0 => DEFAULT,
        known => known,
    }
}

/// Sets another limit, for a test.
#[cfg(all(test, not(loom), target_os = "linux"))]
pub(crate) fn set_max_mappings(mappings: usize) {
    MAX_MAPPINGS.store(mappings, Ordering::Relaxed);
}

fn ask() -> Host {
    MAX_MAPPINGS.store(imp::max_mappings().unwrap_or(0), Ordering::Relaxed);
    Host { limits: imp::limits(), huge_pages: imp::host_huge_pages() }
}

/// The facts about the host. Allocates nothing.
pub(crate) fn host() -> Host {
    let take_now = || {
        hook::keep();
        HOST.write(ask);
        HOST.get()
    };
    // A signal handler that interrupts this read does a read of its own.
    HOST.get().or_else(take_now).copied().unwrap_or_else(ask)
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "runs before main")]
mod hook {
    use std::hint::black_box;

    use crate::os;

    // SAFETY: the loader calls the C functions listed in this section before `main`. It may pass arguments, which they ignore.
    #[used]
    #[unsafe(link_section = ".init_array.00105")]
    static BEFORE_MAIN: extern "C" fn() = begin;

    extern "C" fn begin() {
        #[cfg(feature = "c-api")]
        if super::IS_POSTPONED.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        let host = super::host();
        // A filter that kills for one of these calls may already be in force. The variable tells us.
        let is_told = os::variable("ZK_ALLOC_SANDBOX").is_some_and(|value| value.text() == Some("1"));
        if !is_told {
            super::imp::rehearse(host.huge_pages);
        }
    }

    /// Refers to [`BEFORE_MAIN`], so that the linker keeps it.
    pub(super) fn keep() {
        black_box(&BEFORE_MAIN);
    }
}

#[cfg(not(target_os = "linux"))]
mod hook {
    pub(super) fn keep() {}
}
