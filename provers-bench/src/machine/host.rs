//! The host: its kind, the memory that it has, the kernel's settings for memory, and the limits of this process.

use super::process::{field_bytes, huge_page_bytes};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::{fs, thread};

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// The kind of host, which determines what memory costs and what an allocator can gain. Settings are `None` if the kernel does not report
/// them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Kind {
    pub(crate) is_virtual: bool,
    /// The smallest block of free memory that the kernel reports to a hypervisor, in bytes; `None` if it reports none.
    pub(crate) reported_bytes: Option<u64>,
    /// Setting for transparent huge pages: `always`, `madvise` or `never`.
    pub(crate) huge_pages: Option<String>,
    /// What a page fault does if no huge page is free: `always`, `defer`, `defer+madvise`, `madvise` or `never`.
    pub(crate) defrag: Option<String>,
    /// Multi-size huge pages: each size below 2 MiB in KiB, with its setting.
    pub(crate) folios: Vec<(u64, String)>,
}

impl Kind {
    pub(super) fn observe() -> Self {
        let reported = line_of("/sys/module/page_reporting/parameters/page_reporting_order");
        let folio = |kib: u64| Some((kib, chosen(&format!("hugepages-{kib}kB/enabled"))?));
        Self {
            is_virtual: fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" hypervisor")),
            reported_bytes: reported.and_then(|order| reported_bytes(&order)),
            huge_pages: chosen("enabled"),
            defrag: chosen("defrag"),
            folios: (3..=10).filter_map(|log2_kib| folio(1 << log2_kib)).collect(),
        }
    }

    /// Lists the multi-size huge pages that are enabled.
    pub(crate) fn folios_on(&self) -> String {
        let on = self.folios.iter().filter(|(_, setting)| setting != "never");
        on.map(|(kib, _)| format!("{kib} KiB")).collect::<Vec<_>>().join(", ")
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let known = |setting: &Option<String>| setting.clone().unwrap_or_else(|| "unknown".into());
        let machine = if self.is_virtual { "virtual machine" } else { "bare metal" };
        let keeps = if self.reported_bytes.is_some() { "reports free memory" } else { "keeps free memory" };
        write!(f, "{machine}, {keeps}, THP {} (defrag {})", known(&self.huge_pages), known(&self.defrag))?;
        match self.folios_on() {
            on if on.is_empty() => Ok(()),
            on => write!(f, ", multi-size THP {on}"),
        }
    }
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Returns the text of a file, without surrounding white space.
pub(super) fn line_of(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

pub(super) fn number(path: impl AsRef<Path>) -> Option<u64> {
    line_of(path)?.parse().ok()
}

/// Returns the active value of a setting for transparent huge pages. For `enabled` it is `always`, `madvise` or `never`. The kernel lists
/// every value, with the active one in brackets.
pub(crate) fn chosen(name: &str) -> Option<String> {
    Some(line_of(format!("{HUGE_PAGES}/{name}"))?.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// Returns the smallest reported block, in bytes, from the text of `page_reporting_order`. The order is -1 if no free memory is reported;
/// some kernels print -1 as an unsigned number.
fn reported_bytes(order: &str) -> Option<u64> {
    let order = order.parse::<u32>().ok().filter(|&order| order < 32)?;
    Some((4 << 10) << order)
}

/// Returns the number of NUMA nodes.
pub(super) fn nodes() -> usize {
    let names = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    names.filter(|name| name.to_str().is_some_and(is_node)).count().max(1)
}

/// Returns the lowest CPU limit of this process's control groups, in CPUs. `cpu.max` contains the CPU time allowed per period, and the
/// length of the period, both in microseconds.
pub(super) fn cpu_limit() -> Option<f64> {
    let limits = groups().into_iter().filter_map(|group| {
        let text = line_of(group.join("cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    limits.min_by(f64::total_cmp)
}

/// Returns how often an allocation of a large page on this machine waited while the kernel moved other pages away; 0 if the kernel does not
/// report it.
pub(crate) fn compaction_stalls() -> u64 {
    let counters = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let stalls = counters.lines().find_map(|line| line.strip_prefix("compact_stall ")?.parse().ok());
    stalls.unwrap_or(0)
}

/// Returns this process's memory in huge pages. If there is none, counts the anonymous multi-page folios of the whole
/// machine: some kernels create only those, and do not report them per process.
pub(crate) fn large_folio_bytes() -> Option<u64> {
    let of_size = |kib: u64| Some(number(format!("{HUGE_PAGES}/hugepages-{kib}kB/stats/nr_anon"))? * (kib << 10));
    match huge_page_bytes()? {
        // Folios of 16 KiB to 1 MiB.
        0 => Some((4..=10).filter_map(|log2_kib| of_size(1 << log2_kib)).sum()),
        bytes => Some(bytes),
    }
}

/// Returns the memory that new processes can use without swapping: the machine's `MemAvailable`, or what remains below
/// the cgroup's limit if that is less. `None` if the kernel does not report it.
pub(crate) fn available_bytes() -> Option<u64> {
    let machine = field_bytes("/proc/meminfo", "MemAvailable:")?;
    // "max", which is not a number, means no limit.
    let room_in =
        |group: &PathBuf| Some(number(group.join("memory.max"))?.saturating_sub(number(group.join("memory.current"))?));
    Some(groups().iter().filter_map(room_in).fold(machine, u64::min))
}

/// Returns the lowest memory limit of this process's control groups (v2, else v1); `None` if there is none.
pub(super) fn limit_bytes() -> Option<u64> {
    let of_version_1 = || folders("/sys/fs/cgroup/memory", |line| Some(line.split_once(":memory:/")?.1));
    let lowest = |groups: Vec<PathBuf>, name| groups.iter().filter_map(|group| number(group.join(name))).min();
    // Version 1 shows a limit of several exabytes if there is none.
    lowest(groups(), "memory.max")
        .or_else(|| lowest(of_version_1(), "memory.limit_in_bytes").filter(|&limit| limit < 1 << 60))
}

/// Returns the folders of this process's control group (v2) and of the groups above it.
fn groups() -> Vec<PathBuf> {
    folders("/sys/fs/cgroup", |line| line.strip_prefix("0::/"))
}

/// Returns the folders below `root` of this process's control group and of the groups above it. Given a line of `/proc/self/cgroup`,
/// `path_of` returns the group's path if the line contains it.
fn folders(root: &str, path_of: impl Fn(&str) -> Option<&str>) -> Vec<PathBuf> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = membership.lines().find_map(path_of) else { return Vec::new() };
    let own = Path::new(root).join(path);
    own.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_description_names_virtualisation_and_huge_pages() {
        let [huge_pages, defrag] = ["always", "madvise"].map(|setting| Some(setting.to_owned()));
        let metal = Kind { huge_pages, defrag, ..Kind::default() };
        assert_eq!(metal.to_string(), "bare metal, keeps free memory, THP always (defrag madvise)");
        let folios = vec![(16, "always".into()), (64, "inherit".into()), (128, "never".into())];
        let guest = Kind { is_virtual: true, reported_bytes: reported_bytes("9"), folios, ..Kind::default() };
        assert_eq!(
            guest.to_string(),
            "virtual machine, reports free memory, THP unknown (defrag unknown), multi-size THP 16 KiB, 64 KiB"
        );
    }

    #[test]
    fn a_reporting_order_is_a_block_size_or_none() {
        let blocks = ["9", "5", "-1", "4294967295", ""].map(reported_bytes);
        assert_eq!(blocks, [Some(2 << 20), Some(128 << 10), None, None, None]);
    }
}
