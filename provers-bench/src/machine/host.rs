//! The kind of host: its processor, its memory, the kernel's settings for memory, and the limits of this process.

use super::process::{field_bytes, huge_page_bytes};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::{fs, thread};

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// Fields are `None` where the kernel does not say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    pub(crate) cpu: Option<String>,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    pub(crate) memory_bytes: Option<u64>,
    /// The kernel's release.
    pub(crate) kernel: Option<String>,
    pub(crate) is_virtual: bool,
    /// `always`, `madvise` or `never`.
    pub(crate) huge_pages: Option<String>,
    /// Multi-size huge pages: each size below 2 MiB in KiB, with its setting.
    pub(crate) folios: Vec<(u64, String)>,
    /// The smallest block of free memory that is reported to a hypervisor, in bytes; `None` if none is.
    pub(crate) reported_bytes: Option<u64>,
    /// The least memory limit of this process's control groups.
    pub(crate) limit_bytes: Option<u64>,
    /// CPUs by the limit of the control groups.
    pub(crate) cpu_limit: Option<f64>,
    /// `vm.overcommit_memory`.
    pub(crate) overcommit: Option<u64>,
    pub(crate) nodes: usize,
    pub(crate) max_map_count: Option<u64>,
}

impl Host {
    pub(crate) fn observe() -> Self {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
        let reported = line_of("/sys/module/page_reporting/parameters/page_reporting_order");
        Self {
            cpu: model.map(|(_, model)| model.trim().to_owned()),
            cores: cores(),
            memory_bytes: total_bytes(),
            kernel: line_of("/proc/sys/kernel/osrelease"),
            is_virtual: cpus.contains(" hypervisor"),
            huge_pages: chosen(Path::new(HUGE_PAGES)),
            folios: folios(),
            reported_bytes: reported.and_then(|order| reported_bytes(&order)),
            limit_bytes: limit_bytes(),
            cpu_limit: cpu_limit(),
            overcommit: number("/proc/sys/vm/overcommit_memory"),
            nodes: nodes(Path::new("/sys/devices/system/node")),
            max_map_count: number("/proc/sys/vm/max_map_count"),
        }
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// The text of a file, without the white space around it.
pub(super) fn line_of(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    line_of(path)?.parse().ok()
}

/// The setting in a folder: the kernel lists every choice, and has the active one in brackets.
fn chosen(folder: &Path) -> Option<String> {
    in_brackets(&fs::read_to_string(folder.join("enabled")).ok()?)
}

fn in_brackets(line: &str) -> Option<String> {
    Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn folios() -> Vec<(u64, String)> {
    let setting = |kib: u64| Some((kib, chosen(&Path::new(HUGE_PAGES).join(format!("hugepages-{kib}kB")))?));
    (3..=10).filter_map(|log2_kib| setting(1 << log2_kib)).collect()
}

/// The block of that order, in bytes. The order is -1 if nothing is reported, which some kernels print without its sign.
fn reported_bytes(order: &str) -> Option<u64> {
    let order = order.parse::<u32>().ok().filter(|&order| order < 32)?;
    Some((4 << 10) << order)
}

fn nodes(folder: &Path) -> usize {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    names.filter(|name| name.to_str().is_some_and(is_node)).count().max(1)
}

/// `cpu.max` has the microseconds of CPU time in a period, and the period.
fn cpu_limit() -> Option<f64> {
    let limits = limits_of_groups("cpu.max", |text| {
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    limits.into_iter().min_by(f64::total_cmp)
}

/// Memory of this process in huge pages. If it has none, this counts the machine's anonymous folios of several pages.
/// Some kernels make only those, and report them only for the whole machine.
pub(crate) fn large_folio_bytes() -> Option<u64> {
    let of_size = |kib: u64| {
        let count = format!("/sys/kernel/mm/transparent_hugepage/hugepages-{kib}kB/stats/nr_anon");
        Some(fs::read_to_string(count).ok()?.trim().parse::<u64>().ok()? * (kib << 10))
    };
    match huge_page_bytes()? {
        // Folios of 16 KiB to 1 MiB.
        0 => Some((4..=10).filter_map(|log2_kib| of_size(1 << log2_kib)).sum()),
        bytes => Some(bytes),
    }
}

/// Memory that new processes can use without swapping: the machine's `MemAvailable`, or the room below the cgroup's
/// limit if that is less. `None` if the kernel does not say.
pub(crate) fn available_bytes() -> Option<u64> {
    let machine = field_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    let room_in = |group: &PathBuf| {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        // "max", which is no number, means no limit.
        Some(read("memory.max")?.saturating_sub(read("memory.current")?))
    };
    Some(groups().iter().filter_map(room_in).fold(machine, u64::min))
}

/// Total memory of the machine.
pub(crate) fn total_bytes() -> Option<u64> {
    field_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// The least memory limit of this process's control groups (v2, else v1); `None` if there is none.
fn limit_bytes() -> Option<u64> {
    let of_version_2 = limits_of_groups("memory.max", |text| text.parse().ok()).into_iter().min();
    of_version_2.or_else(|| {
        let folders = folders("/sys/fs/cgroup/memory", |line| Some(line.split_once(":memory:/")?.1));
        let limit = values(&folders, "memory.limit_in_bytes", |text| text.parse().ok()).into_iter().min();
        // Without a limit, version 1 has a number of some exabytes.
        limit.filter(|&limit| limit < 1 << 60)
    })
}

/// The values of the file `name` in this process's control group (v2) and in those above it, whose limits apply as well.
/// `parse` returns `None` for no limit.
fn limits_of_groups<T>(name: &str, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
    values(&groups(), name, parse)
}

fn values<T>(folders: &[PathBuf], name: &str, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
    folders.iter().filter_map(|folder| parse(fs::read_to_string(folder.join(name)).ok()?.trim())).collect()
}

/// The folders of this process's control group (v2) and of those above it.
fn groups() -> Vec<PathBuf> {
    folders("/sys/fs/cgroup", |line| line.strip_prefix("0::/"))
}

/// The folders below `root` of the control group whose path `path_of` finds in a line of `/proc/self/cgroup`, and of
/// those above it.
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
    fn the_kernels_choice_is_the_word_in_brackets() {
        assert_eq!(in_brackets("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(in_brackets("none"), None);
    }

    #[test]
    fn an_order_is_a_block_of_bytes_or_nothing() {
        assert_eq!(reported_bytes("9"), Some(2 << 20));
        assert_eq!(reported_bytes("5"), Some(128 << 10));
        assert_eq!(reported_bytes("-1"), None);
        assert_eq!(reported_bytes("4294967295"), None);
        assert_eq!(reported_bytes(""), None);
    }
}
