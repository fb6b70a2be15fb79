//! The kernel's settings for memory, and the limits of this process.

use crate::machine::{self, memory};
use crate::results::format;
use std::fs;
use std::path::Path;

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// Fields are `None` where the kernel does not say.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    pub(super) cpu: Option<String>,
    pub(super) cores: usize,
    pub(super) memory_bytes: Option<u64>,
    pub(super) kernel: Option<String>,
    pub(super) is_virtual: bool,
    /// `always`, `madvise` or `never`.
    pub(super) huge_pages: Option<String>,
    /// Multi-size huge pages: each size below 2 MiB in KiB, with its setting.
    pub(super) folios: Vec<(u64, String)>,
    /// The smallest block of free memory that is reported to a hypervisor, in bytes; `None` if none is.
    pub(super) reported_bytes: Option<u64>,
    /// The least memory limit of this process's control groups.
    pub(super) limit_bytes: Option<u64>,
    /// CPUs by the limit of the control groups.
    pub(super) cpu_limit: Option<f64>,
    pub(super) overcommit: Option<u64>,
    pub(super) nodes: usize,
    pub(super) max_map_count: Option<u64>,
}

impl Host {
    pub(super) fn observe() -> Self {
        Self {
            cpu: machine::cpu_model(),
            cores: machine::cores(),
            memory_bytes: memory::total_bytes(),
            kernel: machine::kernel(),
            is_virtual: fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" hypervisor")),
            huge_pages: machine::transparent_huge_pages(),
            folios: folios(Path::new(HUGE_PAGES)),
            reported_bytes: machine::line_of("/sys/module/page_reporting/parameters/page_reporting_order")
                .and_then(|order| reported_bytes(&order)),
            limit_bytes: memory::limit_bytes(),
            cpu_limit: cpu_limit(),
            overcommit: number("/proc/sys/vm/overcommit_memory"),
            nodes: nodes(Path::new("/sys/devices/system/node")),
            max_map_count: number("/proc/sys/vm/max_map_count"),
        }
    }

    /// A row for each fact: its name, what was found, what it means for a prover.
    pub(super) fn rows(&self) -> Vec<[String; 3]> {
        let known = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
        let on = self.folios.iter().filter(|(_, setting)| setting != "never");
        let on = on.map(|(kib, _)| format!("{kib} KiB")).collect::<Vec<_>>().join(", ");
        let rows = [
            ("transparent huge pages", known(self.huge_pages.clone()), "one page fault for 2 MiB"),
            (
                "multi-size huge pages",
                match (self.folios.is_empty(), on.is_empty()) {
                    (true, _) => "none: they need Linux 6.8".into(),
                    (_, true) => "off".into(),
                    _ => on,
                },
                "one page fault for 16 KiB to 1 MiB",
            ),
            (
                "free memory reported to a hypervisor",
                self.reported_bytes.map_or("no".into(), |bytes| format!("in blocks of {} KiB", bytes >> 10)),
                "the first touch after a pause waits for the hypervisor",
            ),
            (
                "memory limit of the control group",
                self.limit_bytes.map_or("none".into(), format::bytes),
                "the kernel kills the process beyond it",
            ),
            (
                "CPU limit of the control group",
                self.cpu_limit.map_or("none".into(), |cpus| format!("{cpus:.1} CPUs")),
                "more threads than that wait for each other",
            ),
            (
                "vm.overcommit_memory",
                known(self.overcommit.map(|mode| mode.to_string())),
                "2 counts address space against a limit",
            ),
            ("NUMA nodes", self.nodes.to_string(), "memory lies on the node that touches it first"),
            ("vm.max_map_count", known(self.max_map_count.map(format::count)), "the most mappings of a process"),
        ];
        rows.into_iter().map(|(name, found, meaning)| [name.into(), found, meaning.into()]).collect()
    }

    /// One line on the machine.
    pub(super) fn line(&self) -> String {
        let memory = self.memory_bytes.map(|bytes| format!("{} of memory", format::bytes(bytes)));
        let cores = Some(format!("{} {}", self.cores, if self.cores == 1 { "core" } else { "cores" }));
        let kernel = self.kernel.as_ref().map(|kernel| format!("Linux {kernel}"));
        let kind = self.is_virtual.then(|| "virtual machine".to_owned());
        [self.cpu.clone(), cores, memory, kernel, kind].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

fn number(path: &str) -> Option<u64> {
    machine::line_of(path)?.parse().ok()
}

/// The block of that order, in bytes. The order is -1 if nothing is reported, which some kernels print without its sign.
fn reported_bytes(order: &str) -> Option<u64> {
    let order = order.parse::<u32>().ok().filter(|&order| order < 32)?;
    Some((4 << 10) << order)
}

fn folios(folder: &Path) -> Vec<(u64, String)> {
    let setting = |kib: u64| {
        let line = fs::read_to_string(folder.join(format!("hugepages-{kib}kB/enabled"))).ok()?;
        Some((kib, machine::chosen(&line)?))
    };
    (3..=10).filter_map(|log2_kib| setting(1 << log2_kib)).collect()
}

fn nodes(folder: &Path) -> usize {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    names.filter(|name| name.to_str().is_some_and(is_node)).count().max(1)
}

/// `cpu.max` has the microseconds of CPU time in a period, and the period.
fn cpu_limit() -> Option<f64> {
    memory::limits_of_groups("cpu.max", |text| {
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    })
    .into_iter()
    .min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_block_of_bytes_or_nothing() {
        assert_eq!(reported_bytes("9"), Some(2 << 20));
        assert_eq!(reported_bytes("5"), Some(128 << 10));
        assert_eq!(reported_bytes("-1"), None);
        assert_eq!(reported_bytes("4294967295"), None);
        assert_eq!(reported_bytes(""), None);
    }

    #[test]
    fn every_machine_has_a_line_and_its_rows() {
        let host = Host::observe();
        assert!(host.line().contains("core"), "{}", host.line());
        assert_eq!(host.rows().len(), 8);
        assert!(host.nodes >= 1);
    }
}
