//! Memory as Linux accounts for it: of this process, and of its machine or container.

use anyhow::Context;
use nix::unistd::{SysconfVar, sysconf};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Resident memory of this process.
pub(crate) fn rss_bytes() -> anyhow::Result<u64> {
    status_bytes("VmRSS:")
}

/// Resident memory of the process `pid`; `None` if it has ended. Cheaper than reading its `status`.
pub(crate) fn rss_bytes_of(pid: u32) -> Option<u64> {
    resident_of(pid).map(|resident| resident.anonymous_bytes + resident.file_bytes)
}

/// The same, in anonymous memory and file pages.
pub(crate) fn resident_of(pid: u32) -> Option<Resident> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = statm.split(' ').skip(1).map_while(|pages| pages.parse::<u64>().ok());
    let (pages, of_files) = (fields.next()?, fields.next()?);
    // A process that has ended and was not waited for has no pages.
    let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok()??.unsigned_abs();
    (pages > 0).then(|| Resident {
        anonymous_bytes: pages.saturating_sub(of_files) * page_bytes,
        file_bytes: of_files.min(pages) * page_bytes,
    })
}

/// Memory of this process in huge pages; `None` if the kernel does not say. Takes milliseconds.
pub(crate) fn huge_page_bytes() -> Option<u64> {
    field_bytes(&fs::read_to_string("/proc/self/smaps_rollup").ok()?, "AnonHugePages:")
}

/// Memory of this process in huge pages. If it has none, this counts the machine's anonymous folios of several pages.
/// Some kernels make only those, and report them only for the whole machine.
pub(crate) fn large_folio_bytes() -> Option<u64> {
    match huge_page_bytes()? {
        0 => Some(folio_bytes(Path::new("/sys/kernel/mm/transparent_hugepage"))),
        bytes => Some(bytes),
    }
}

/// How often a request on this machine waited while the kernel moved pages to make a larger one; 0 if the kernel does not say.
pub(crate) fn compaction_stalls() -> u64 {
    let counters = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let stalls = counters.lines().find_map(|line| line.strip_prefix("compact_stall ")?.parse().ok());
    stalls.unwrap_or(0)
}

/// Bytes of the machine's anonymous folios of 16 KiB to 1 MiB. The kernel's `folder` has a subfolder for each size.
fn folio_bytes(folder: &Path) -> u64 {
    let of_size = |kib: u64| {
        let folios = fs::read_to_string(folder.join(format!("hugepages-{kib}kB/stats/nr_anon"))).ok()?;
        Some(folios.trim().parse::<u64>().ok()? * (kib << 10))
    };
    (4..=10).filter_map(|log2_kib| of_size(1 << log2_kib)).sum()
}

/// This process's own account, kept open. Reading it allocates nothing, so it does not disturb a measurement of
/// allocations.
#[derive(Debug)]
pub(crate) struct Account(File);

/// Resident memory of a process, in parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    /// Memory that the process wrote: heaps, arenas, stacks.
    pub(crate) anonymous_bytes: u64,
    /// Pages of files, including its own code.
    pub(crate) file_bytes: u64,
}

impl Account {
    pub(crate) fn open() -> anyhow::Result<Self> {
        Ok(Self(File::open("/proc/self/status").context("resident memory is read from /proc (Linux)")?))
    }

    pub(crate) fn resident(&self) -> anyhow::Result<Resident> {
        // The lines on memory are within the first 512 bytes, and the whole file takes 1.5 KiB.
        let mut buffer = [0; 4096];
        let read = self.0.read_at(&mut buffer, 0).context("cannot read /proc/self/status")?;
        let text = buffer[..read].utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let field = |name| field_bytes(text, name).with_context(|| format!("/proc/self/status has no {name}"));
        Ok(Resident { anonymous_bytes: field("RssAnon:")?, file_bytes: field("RssFile:")? })
    }
}

/// Highest resident memory of this process since it started, or since [`reset_peak`].
pub(crate) fn peak_rss_bytes() -> anyhow::Result<u64> {
    status_bytes("VmHWM:")
}

/// Resets [`peak_rss_bytes`]; false if the kernel does not offer that.
pub(crate) fn reset_peak() -> bool {
    // proc_pid_clear_refs(5): 5 resets the high water mark and touches no page table.
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Memory that new processes can use without swapping: the machine's `MemAvailable`, or the room below the cgroup's
/// limit if that is less. `None` if the kernel does not say.
pub(crate) fn available_bytes() -> Option<u64> {
    let machine = field_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    Some(cgroup_available_bytes().map_or(machine, |cgroup| machine.min(cgroup)))
}

/// Total memory of the machine.
pub(crate) fn total_bytes() -> Option<u64> {
    field_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// The least memory limit of this process's control groups (v2, else v1); `None` if there is none.
pub(crate) fn limit_bytes() -> Option<u64> {
    let of_version_2 = limits_of_groups("memory.max", |text| text.parse().ok()).into_iter().min();
    of_version_2.or_else(|| {
        let folders = folders("/sys/fs/cgroup/memory", |line| Some(line.split_once(":memory:/")?.1));
        let limit = values(&folders, "memory.limit_in_bytes", |text| text.parse().ok()).into_iter().min();
        // Without a limit, version 1 has a number of some exabytes.
        limit.filter(|&limit| limit < 1 << 60)
    })
}

/// The values of the file `name` in this process's control group (v2) and in those above it, whose limits apply as well. `parse`
/// returns `None` for no limit.
pub(crate) fn limits_of_groups<T>(name: &str, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
    values(&groups(), name, parse)
}

fn values<T>(folders: &[PathBuf], name: &str, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
    folders.iter().filter_map(|folder| parse(fs::read_to_string(folder.join(name)).ok()?.trim())).collect()
}

fn cgroup_available_bytes() -> Option<u64> {
    groups().iter().filter_map(|folder| room_in(folder)).min()
}

/// The folders of this process's control group (v2) and of those above it.
fn groups() -> Vec<PathBuf> {
    folders("/sys/fs/cgroup", |line| line.strip_prefix("0::/"))
}

/// The folders below `root` of the control group whose path `path_of` finds in a line of `/proc/self/cgroup`, and of those above it.
fn folders(root: &str, path_of: impl Fn(&str) -> Option<&str>) -> Vec<PathBuf> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = membership.lines().find_map(path_of) else { return Vec::new() };
    let own = Path::new(root).join(path);
    own.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect()
}

fn room_in(cgroup: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(cgroup.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max", which is no number, means no limit.
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}

fn status_bytes(name: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("resident memory is read from /proc (Linux)")?;
    field_bytes(&status, name).with_context(|| format!("/proc/self/status has no {name}"))
}

/// The value of a line such as `VmRSS:   1956 kB`.
fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Tests run in threads of one process and share its memory accounts, so tests that read them take turns.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn kernel_fields_are_read_in_bytes() {
        assert_eq!(field_bytes("VmHWM:\t    1956 kB\nVmRSS:\t 12 kB\n", "VmRSS:"), Some(12 * 1024));
        assert_eq!(field_bytes("VmHWM:\t    1956 kB\n", "VmRSS:"), None);
    }

    /// The peak must fall after memory is freed, or every proof would show the peak of the largest one.
    #[test]
    fn the_peak_starts_over_after_a_reset() {
        let _alone = alone();
        let filled = std::hint::black_box(vec![1_u8; 128 << 20]);
        let high = peak_rss_bytes().unwrap();
        drop(filled);
        if reset_peak() {
            assert!(peak_rss_bytes().unwrap() + (64 << 20) < high);
        }
    }
}
