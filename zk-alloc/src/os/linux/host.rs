//! Facts about the host and its control groups, read without allocating.
#![allow(unsafe_code, reason = "asks for the processors and the time, and lays buffers over mapped memory")]

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

/// Page faults of this process so far that read nothing from a disk.
pub(crate) fn minor_faults() -> u64 {
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

/// The number of threads of this process that can run at once, at least 1, and the memory that it may use, in bytes. The threads are
/// limited by the processors that it may run on, and by its control groups. The memory is the smallest of the machine's and its
/// control groups' limits.
pub(crate) fn threads_and_memory() -> (usize, usize) {
    let info = rustix::system::sysinfo();
    let mut memory = (info.totalram as usize).saturating_mul(info.mem_unit as usize);
    let mut threads = allowed_processors().unwrap_or(usize::MAX);
    with_room(GROUPS_BYTES + PATH_BYTES, |room| {
        let (groups, path) = room.split_at_mut(GROUPS_BYTES);
        let groups = read_small(c"/proc/self/cgroup", groups);
        visit_groups(groups, "cpu", path, |mut group| {
            threads = threads.min(group.granted_processors().unwrap_or(usize::MAX));
        });
        visit_groups(groups, "memory", path, |mut group| {
            let file = if group.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
            let mut buffer = [0; 64];
            memory = memory.min(group.read(file, &mut buffer).trim().parse().unwrap_or(usize::MAX));
        });
    });
    (if threads == usize::MAX { 1 } else { threads.max(1) }, memory)
}

/// Runs `work` on zeroed memory outside of the stack, which may be small. `None` if the system has no memory.
fn with_room<R>(bytes: usize, work: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
    let room = os::map_zeroed(bytes).ok()?;
    // SAFETY: a mapping of `bytes` zeroes, which only this reference reaches, and which is unmapped when this function ends.
    Some(work(unsafe { std::slice::from_raw_parts_mut(room.start().as_ptr(), bytes) }))
}

/// The number of processors that this thread may run on.
fn allowed_processors() -> Option<usize> {
    // One bit for each processor that Linux can be built for.
    let count = with_room(8192 / 8, |mask| {
        let answered = super::keeping_errno(|| {
            // SAFETY: a buffer of that length, aligned to a page.
            unsafe { libc::sched_getaffinity(0, mask.len(), mask.as_mut_ptr().cast()) }
        });
        answered.map(|()| mask.iter().map(|byte| byte.count_ones() as usize).sum())
    });
    count?.ok().filter(|&count| count > 0)
}

/// A control group that this process is in.
struct Group<'a> {
    root: &'a str,
    path: &'a str,
    is_v2: bool,
    /// Room for a file's path.
    room: &'a mut [u8],
}

impl Group<'_> {
    /// The number of processors whose time the group may use, rounded down; `None` if the group has no limit.
    fn granted_processors(&mut self) -> Option<usize> {
        let (mut first, mut second) = ([0; 64], [0; 64]);
        let (quota, period) = if self.is_v2 {
            // "max 100000" or "150000 100000".
            self.read("cpu.max", &mut first).trim().split_once(' ')?
        } else {
            (self.read("cpu.cfs_quota_us", &mut first), self.read("cpu.cfs_period_us", &mut second))
        };
        // Without a limit, the quota is "max", or -1.
        let quota = quota.trim().parse::<usize>().ok()?;
        quota.checked_div(period.trim().parse().ok()?)
    }

    /// Reads the beginning of one of the group's files.
    fn read<'b>(&mut self, file: &str, buffer: &'b mut [u8]) -> &'b str {
        let mut len = 0;
        for part in [self.root, self.path, "/", file, "\0"] {
            let Some(place) = self.room.get_mut(len..len + part.len()) else { return "" };
            place.copy_from_slice(part.as_bytes());
            len += part.len();
        }
        std::ffi::CStr::from_bytes_until_nul(self.room).map_or("", |path| read_small(path, buffer))
    }
}

/// The length of the part of `/proc/self/cgroup` that is read, and of the longest path of a group, in bytes.
const GROUPS_BYTES: usize = 4096;
const PATH_BYTES: usize = 1024;

/// Visits the groups of one controller that limit this process: its own group, and all groups above it up to the root.
fn visit_groups(groups: &str, controller: &str, room: &mut [u8], mut visit: impl FnMut(Group<'_>)) {
    for line in groups.lines() {
        // "0::/path" is v2, "N:memory:/path" is v1.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
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
            visit(Group { root, path, is_v2, room: &mut *room });
            match path.rsplit_once('/') {
                Some((parent, _)) => path = parent.trim_end_matches('/'),
                None => break,
            }
        }
    }
}

/// The beginning of a file, as much as the buffer holds; empty if it cannot be read.
fn read_small<'a>(path: &std::ffi::CStr, buffer: &'a mut [u8]) -> &'a str {
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

    /// The standard library counts the same way, but allocates.
    #[test]
    fn threads_are_counted_as_the_standard_library_counts_them() {
        assert_eq!(threads_and_memory().0, std::thread::available_parallelism().unwrap().get());
    }
}
