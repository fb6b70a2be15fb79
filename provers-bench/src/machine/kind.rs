//! The kind of host: what decides how dear memory is, and so what an allocator can gain.

use crate::machine::{chosen, line_of};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::Path;

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// Settings are `None` if the kernel does not say.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Kind {
    pub(crate) is_virtual: bool,
    /// The smallest block of free memory that is reported to a hypervisor, in bytes; `None` if the machine keeps its free memory.
    pub(crate) reported_bytes: Option<u64>,
    /// Setting of transparent huge pages: `always`, `madvise` or `never`.
    pub(crate) huge_pages: Option<String>,
    /// What a page fault does if there is no huge page: `always`, `defer`, `defer+madvise`, `madvise` or `never`.
    pub(crate) defrag: Option<String>,
    /// Multi-size huge pages: each size below 2 MiB in KiB, with its setting.
    pub(crate) folios: Vec<(u64, String)>,
}

impl Kind {
    pub(crate) fn observe() -> Self {
        let setting = |name: &str| chosen(&line_of(&format!("{HUGE_PAGES}/{name}"))?);
        Self {
            is_virtual: fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" hypervisor")),
            reported_bytes: line_of("/sys/module/page_reporting/parameters/page_reporting_order")
                .and_then(|order| reported_bytes(&order)),
            huge_pages: setting("enabled"),
            defrag: setting("defrag"),
            folios: folios(Path::new(HUGE_PAGES)),
        }
    }

    /// The multi-size huge pages that are on, in KiB.
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

/// The block of that order, in bytes. The order is -1 if nothing is reported, which some kernels print without its sign.
fn reported_bytes(order: &str) -> Option<u64> {
    let order = order.parse::<u32>().ok().filter(|&order| order < 32)?;
    Some((4 << 10) << order)
}

fn folios(folder: &Path) -> Vec<(u64, String)> {
    let setting = |kib: u64| {
        let line = fs::read_to_string(folder.join(format!("hugepages-{kib}kB/enabled"))).ok()?;
        Some((kib, chosen(&line)?))
    };
    (3..=10).filter_map(|log2_kib| setting(1 << log2_kib)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_by_what_makes_memory_dear() {
        let [huge_pages, defrag] = ["always", "madvise"].map(|setting| Some(setting.to_owned()));
        let metal = Kind { huge_pages, defrag, ..Kind::default() };
        assert_eq!(metal.to_string(), "bare metal, keeps free memory, THP always (defrag madvise)");
        let folios = vec![(16, "always".into()), (64, "inherit".into()), (128, "never".into())];
        let guest = Kind { is_virtual: true, reported_bytes: reported_bytes("9"), folios, ..Kind::default() };
        assert_eq!(
            guest.to_string(),
            "virtual machine, reports free memory, THP unknown (defrag unknown), multi-size THP 16 KiB, 64 KiB"
        );
        assert_eq!((reported_bytes("5"), reported_bytes("-1")), (Some(128 << 10), None));
        assert_eq!((reported_bytes("4294967295"), reported_bytes("")), (None, None));
    }
}
