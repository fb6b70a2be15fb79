//! The kernel's settings for memory, and the limits of this process.

use crate::machine::kind::Kind;
use crate::machine::{self, memory};
use crate::results::format;
use std::fs;
use std::path::Path;

/// Fields are `None` where the kernel does not say.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    pub(super) cpu: Option<String>,
    pub(super) cores: usize,
    pub(super) memory_bytes: Option<u64>,
    pub(super) kernel: Option<String>,
    pub(super) kind: Kind,
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
            kind: Kind::observe(),
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
        let on = self.kind.folios_on();
        let rows = [
            ("transparent huge pages", known(self.kind.huge_pages.clone()), "one page fault for 2 MiB"),
            (
                "multi-size huge pages",
                match (self.kind.folios.is_empty(), on.is_empty()) {
                    (true, _) => "none: they need Linux 6.8".into(),
                    (_, true) => "off".into(),
                    _ => on,
                },
                "one page fault for 16 KiB to 1 MiB",
            ),
            (
                "defrag of huge pages",
                known(self.kind.defrag.clone()),
                "whether a fault waits while the kernel makes a huge page",
            ),
            (
                "free memory reported to a hypervisor",
                self.kind.reported_bytes.map_or("no".into(), |bytes| format!("in blocks of {} KiB", bytes >> 10)),
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
        [self.cpu.clone(), cores, memory, kernel, Some(self.kind.to_string())]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", ")
    }
}

fn number(path: &str) -> Option<u64> {
    machine::line_of(path)?.parse().ok()
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
    fn every_machine_has_a_line_and_its_rows() {
        let host = Host::observe();
        assert!(host.line().contains("core"), "{}", host.line());
        assert_eq!(host.rows().len(), 9);
        assert!(host.nodes >= 1);
    }
}
