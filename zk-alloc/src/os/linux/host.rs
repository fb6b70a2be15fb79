//! Facts about the host, read without allocating.
#![allow(unsafe_code, reason = "asks for the time")]

use rustix::fs::{CWD, Mode, OFlags};

use crate::os::{self, HostHugePages};

/// The setting in `/sys/kernel/mm/transparent_hugepage/enabled`, and whether huge pages are costly.
pub(crate) fn host_huge_pages() -> HostHugePages {
    let mut buffer = [0; 128];
    let text = read_small(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut buffer);
    if !text.contains("[always]") && !text.contains("[madvise]") {
        HostHugePages::Unavailable
    } else if is_free_memory_reported() {
        HostHugePages::Costly
    } else {
        HostHugePages::Available
    }
}

/// Whether the kernel reports free memory to a hypervisor, which then takes it. The size of the reported pieces does not matter: the
/// host later supplies small pages, even for memory that it took in huge ones.
fn is_free_memory_reported() -> bool {
    if cfg!(debug_assertions) && os::variable(os::TEST_BARE_METAL).is_some() {
        return false;
    }
    let mut buffer = [0; 16];
    reports(read_small(c"/sys/module/page_reporting/parameters/page_reporting_order", &mut buffer))
}

/// Whether the text of `page_reporting_order` says that memory is reported. It is empty if there is no such file. While no driver
/// reports, it is -1, or the largest number on kernels that print it without its sign. Otherwise it is the order of the smallest
/// reported piece.
fn reports(order: &str) -> bool {
    order.trim().parse::<u32>().is_ok_and(|order| order != u32::MAX)
}

/// The most mappings that a process may have (`vm.max_map_count`); `None` if that can't be read.
pub(crate) fn max_mappings() -> Option<usize> {
    let mut buffer = [0; 32];
    read_small(c"/proc/sys/vm/max_map_count", &mut buffer).trim().parse().ok()
}

/// Page faults of this process so far that read nothing from a disk; 0 in a [sandbox](super::super::is_in_sandbox), which may end the process
/// for the question.
pub(crate) fn minor_faults() -> u64 {
    if super::super::is_in_sandbox() {
        return 0;
    }
    let mut buffer = [0; 512];
    // The second field, the name, may hold spaces and ends with the last parenthesis; minflt is the tenth.
    let text = read_small(c"/proc/self/stat", &mut buffer);
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_ascii_whitespace().nth(7).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Nanoseconds of a clock that only goes forward.
pub(crate) fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// As [`monotonic_ns`], but up to a few milliseconds behind, and as cheap as a few loads. It reads no counter of the processor, and
/// makes no system call.
pub(crate) fn coarse_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC_COARSE)
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time. If the system had no such clock, the time would stand still.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// The beginning of a file, as much as the buffer holds; empty if it cannot be read.
pub(super) fn read_small<'a>(path: &std::ffi::CStr, buffer: &'a mut [u8]) -> &'a str {
    let Ok(file) = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return "" };
    // The kernel returns all of such a file in one read, if the buffer has room.
    let len = rustix::io::read(&file, &mut *buffer).unwrap_or(0);
    std::str::from_utf8(&buffer[..len]).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_reported_where_the_order_is_a_number_from_zero_on() {
        assert!(["0\n", "5\n", "9\n", "10"].into_iter().all(reports));
        assert!(!["", "\n", "-1\n", "4294967295\n", "garbage"].into_iter().any(reports));
    }
}
