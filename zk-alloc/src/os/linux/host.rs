//! Facts about the host and the control groups of this process, read without allocating.
#![allow(unsafe_code, reason = "asks for the processors, and lays a buffer over mapped memory")]

use std::io::Write as _;

use rustix::fs::{CWD, Mode, OFlags};

use crate::os::{self, HostHugePages, Limits};

/// Returns the host's setting for huge pages (`/sys/kernel/mm/transparent_hugepage/enabled`), and whether huge pages are costly.
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

/// Returns whether the kernel reports free memory to a hypervisor, which then reclaims it. The size of the reported blocks does not matter:
/// the host later supplies small pages, even for memory that it reclaimed as huge pages.
fn is_free_memory_reported() -> bool {
    if cfg!(debug_assertions) && os::variable(os::TEST_BARE_METAL).is_some() {
        return false;
    }
    let mut buffer = [0; 16];
    reports(read_small(c"/sys/module/page_reporting/parameters/page_reporting_order", &mut buffer))
}

/// Returns whether the text of `page_reporting_order` means that memory is reported. The text is empty if there is no such file. While no
/// driver reports memory, the number is -1, or `u32::MAX` on kernels that print it unsigned. Otherwise it is the order of the smallest
/// reported block.
fn reports(order: &str) -> bool {
    order.trim().parse::<u32>().is_ok_and(|order| order != u32::MAX)
}

/// Returns how many mappings a process may have (`vm.max_map_count`); `None` if that can't be read.
pub(crate) fn mappings_limit() -> Option<usize> {
    let mut buffer = [0; 32];
    read_small(c"/proc/sys/vm/max_map_count", &mut buffer).trim().parse().ok()
}

/// Returns the number of minor page faults of this process so far (those without a disk read). Returns 0 in a
/// [sandbox](super::super::is_in_sandbox), which may kill the process for reading the file.
pub(crate) fn minor_faults() -> u64 {
    if super::super::is_in_sandbox() {
        return 0;
    }
    let mut buffer = [0; 512];
    // The second field, the name, may contain spaces and ends with the last parenthesis. minflt is the tenth field.
    let text = read_small(c"/proc/self/stat", &mut buffer);
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_ascii_whitespace().nth(7).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Reads as much of the beginning of a file as fits into the buffer. Returns an empty text if the file can't be read.
fn read_small<'a>(path: &std::ffi::CStr, buffer: &'a mut [u8]) -> &'a str {
    let Ok(file) = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return "" };
    // The kernel returns all of such a file in one read, if the buffer has room.
    let len = rustix::io::read(&file, &mut *buffer).unwrap_or(0);
    std::str::from_utf8(&buffer[..len]).unwrap_or("")
}

/// Returns the limits of this process. The number of threads is limited by the processors that the process may run on, and by its control
/// groups. The memory limit is the smallest of the machine's memory and the limits of its control groups.
pub(crate) fn limits() -> Limits {
    let info = rustix::system::sysinfo();
    let machine_bytes = (info.totalram as usize).saturating_mul(info.mem_unit as usize);
    let mut memory_bytes = machine_bytes;
    let mut threads = allowed_processors().unwrap_or(usize::MAX);
    with_groups(|groups, path| {
        visit_groups(groups, "cpu", path, |mut group| {
            threads = threads.min(group.granted_processors().unwrap_or(usize::MAX));
        });
        visit_groups(groups, "memory", path, |mut group| {
            memory_bytes = memory_bytes.min(group.memory_limit().unwrap_or(usize::MAX));
        });
    });
    let threads = if threads == usize::MAX { 1 } else { threads.max(1) };
    Limits { threads, memory_bytes, is_memory_grouped: memory_bytes < machine_bytes }
}

/// Returns how many bytes to purge so that each control group of the process has 1/`spare_part` of its limit left. Returns 0 if each group
/// has that much left already, and `usize::MAX` if threads of a group waited for memory for `stall_percent` of the last ten seconds.
pub(crate) fn missing_memory(spare_part: usize, stall_percent: usize) -> usize {
    let mut missing = 0;
    with_groups(|groups, buffer| {
        let (path, stat) = buffer.split_at_mut(PATH_BYTES);
        visit_groups(groups, "memory", path, |mut group| {
            missing = missing.max(group.missing_memory(spare_part, stall_percent, stat).unwrap_or(0));
        });
    });
    missing
}

/// Calls `work` with the text of `/proc/self/cgroup`, and with a buffer for a path and for a group's statistics. Text and buffer are in a
/// temporary mapping, because the stack may be small. Does nothing if the system refuses the mapping.
fn with_groups(work: impl FnOnce(&str, &mut [u8])) {
    const BYTES: usize = GROUPS_BYTES + PATH_BYTES + STAT_BYTES;
    let Ok(mapping) = os::map_zeroed(BYTES) else { return };
    // SAFETY: the mapping has `BYTES` zeroed bytes. There is no other reference to it, and it stays mapped until this function ends.
    let buffer = unsafe { std::slice::from_raw_parts_mut(mapping.start().as_ptr(), BYTES) };
    let (groups, buffer) = buffer.split_at_mut(GROUPS_BYTES);
    work(read_small(c"/proc/self/cgroup", groups), buffer);
}

/// Returns the number of processors that this thread may run on.
fn allowed_processors() -> Option<usize> {
    // One bit for each processor that Linux can be built for. If the call fails, the mask stays empty.
    let mut mask = [0_u64; 8192 / 64];
    // SAFETY: `mask` is valid for writes of its length.
    let ask = || unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    let _ = super::keeping_errno(ask);
    Some(mask.iter().map(|word| word.count_ones() as usize).sum()).filter(|&count| count > 0)
}

/// A control group that this process is in.
struct Group<'a> {
    root: &'a str,
    path: &'a str,
    is_v2: bool,
    /// The buffer in which `read` builds the path of a file.
    path_buffer: &'a mut [u8],
}

impl Group<'_> {
    /// Returns the number of processors whose time the group may use, rounded down; `None` if the group has no limit.
    fn granted_processors(&mut self) -> Option<usize> {
        let (mut first, mut second) = ([0; 64], [0; 64]);
        let (quota, period) = if self.is_v2 {
            // For example, "max 100000" or "150000 100000".
            self.read("cpu.max", &mut first).trim().split_once(' ')?
        } else {
            (self.read("cpu.cfs_quota_us", &mut first), self.read("cpu.cfs_period_us", &mut second))
        };
        // Without a limit, the quota is "max", or -1.
        let quota = quota.trim().parse::<usize>().ok()?;
        quota.checked_div(period.trim().parse().ok()?)
    }

    /// Returns the memory that the group may use, in bytes; `None` if it has no limit.
    fn memory_limit(&mut self) -> Option<usize> {
        let files: &[&str] = if self.is_v2 { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        files.iter().filter_map(|file| self.read_number(file)).min()
    }

    /// Computes [`missing_memory`] for this group. `stat` is a buffer for the group's statistics.
    fn missing_memory(&mut self, spare_part: usize, stall_percent: usize, stat: &mut [u8]) -> Option<usize> {
        let limit = self.memory_limit()?;
        let (used, files) = if self.is_v2 {
            ("memory.current", "inactive_file ")
        } else {
            ("memory.usage_in_bytes", "total_inactive_file ")
        };
        let used = self.read_number(used)?;
        // Control groups of version 1 have no `memory.pressure`.
        let mut buffer = [0; 256];
        let pressure = if self.is_v2 { self.read("memory.pressure", &mut buffer) } else { "" };
        if stalled_percent(pressure).is_some_and(|percent| percent >= stall_percent) {
            return Some(usize::MAX);
        }
        // Cached files that were not used lately count as free: the kernel drops them before memory runs short.
        let stat = self.read("memory.stat", stat);
        let files = stat.lines().find_map(|line| line.strip_prefix(files)?.trim().parse().ok()).unwrap_or(0);
        Some(used.saturating_sub(files).saturating_sub(limit - limit / spare_part))
    }

    /// Reads a number from one of the group's files; `None` if the file contains no number.
    fn read_number(&mut self, file: &str) -> Option<usize> {
        let mut buffer = [0; 64];
        self.read(file, &mut buffer).trim().parse().ok()
    }

    /// Reads the beginning of one of the group's files.
    fn read<'b>(&mut self, file: &str, buffer: &'b mut [u8]) -> &'b str {
        let mut left = &mut *self.path_buffer;
        if write!(left, "{}{}/{file}\0", self.root, self.path).is_err() {
            return "";
        }
        std::ffi::CStr::from_bytes_until_nul(self.path_buffer).map_or("", |path| read_small(path, buffer))
    }
}

/// Returns the percentage of the last ten seconds in which threads waited for memory, rounded down, from the text of `memory.pressure`.
fn stalled_percent(pressure: &str) -> Option<usize> {
    let waited = pressure.split_ascii_whitespace().nth(1)?.strip_prefix("avg10=")?;
    waited.split('.').next()?.parse().ok()
}

/// The lengths of buffers, in bytes: for the beginning of `/proc/self/cgroup`, for the path of a group's file, and for the beginning of its
/// statistics.
const GROUPS_BYTES: usize = 4096;
const PATH_BYTES: usize = 1024;
const STAT_BYTES: usize = 4096;

/// Visits the groups of one controller that limit this process: its own group, and all groups above it up to the root.
fn visit_groups(groups: &str, controller: &str, path_buffer: &mut [u8], mut visit: impl FnMut(Group<'_>)) {
    // "0::/path" is v2, "N:memory:/path" is v1.
    for (controllers, path) in groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':')) {
        let (root, is_v2) = match controllers {
            "" => ("/sys/fs/cgroup", true),
            list if list.split(',').any(|name| name == controller) => match controller {
                "memory" => ("/sys/fs/cgroup/memory", false),
                _ => ("/sys/fs/cgroup/cpu", false),
            },
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            visit(Group { root, path, is_v2, path_buffer: &mut *path_buffer });
            let Some((parent, _)) = path.rsplit_once('/') else { break };
            path = parent.trim_end_matches('/');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_reporting_is_recognised_by_its_order() {
        assert!(["0\n", "5\n", "9\n", "10"].into_iter().all(reports));
        assert!(!["", "\n", "-1\n", "4294967295\n", "garbage"].into_iter().any(reports));
    }

    /// The standard library counts the same way, but allocates.
    #[test]
    fn threads_are_counted_as_the_standard_library_counts_them() {
        assert_eq!(limits().threads, std::thread::available_parallelism().unwrap().get());
    }

    #[test]
    fn stalled_percent_is_that_of_the_last_ten_seconds_for_some_threads() {
        let text =
            "some avg10=12.34 avg60=50.00 avg300=70.00 total=9\nfull avg10=90.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(stalled_percent(text), Some(12));
        assert_eq!(stalled_percent("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"), Some(0));
        assert!(
            ["", "some", "some avg60=12.00", "full of nonsense"]
                .into_iter()
                .all(|text| stalled_percent(text).is_none())
        );
    }
}
