//! The command `host`: the price of memory on this machine, and the settings that follow from it.

use crate::machine::host;
use crate::machine::host::Host;
use crate::plan::whole;
use crate::report::{self, Style};
use crate::results::format;
use clap::Args;
use std::time::Duration;
use touch::{Pages, Touch};

mod touch;

/// The memory that each measurement touches, or a tenth of the available memory if that is less.
const TOUCHED_BYTES: u64 = 256 << 20;
const HUGE_BYTES: u64 = 2 << 20;

/// The job of the command.
#[derive(Args, Debug)]
pub(crate) struct Job {
    /// Seconds to idle before each cold measurement; a kernel reports free memory to a hypervisor after 2
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = whole::<u64>(0..=600))]
    idle: u64,
}

/// Measures, and returns the text to print.
pub(crate) fn run(job: &Job) -> anyhow::Result<String> {
    let host = Host::observe();
    let room = host::available_bytes().unwrap_or(TOUCHED_BYTES * 10) / 10;
    let bytes = (room.clamp(HUGE_BYTES, TOUCHED_BYTES) / HUGE_BYTES * HUGE_BYTES) as usize;
    let idle = Duration::from_secs(job.idle);
    let touches = touches(bytes, idle)?;
    let mut counts: Vec<usize> = (0..).map(|log2| 1 << log2).take_while(|&threads| threads < host.cores).collect();
    counts.push(host.cores);
    let rates = counts.into_iter().map(|threads| Ok((threads, touch::faults_a_second(threads, bytes)?)));
    let rates = rates.collect::<anyhow::Result<Vec<_>>>()?;
    let settings = settings(&host, &touches);
    let facts = report::words(&facts(&host).map(|row| row.into()));
    Ok([line(&host), cost_table(&touches, idle), rate_table(&rates), facts, text(&settings)].join("\n\n"))
}

/// The cost of each kind of page that the kernel has.
fn touches(bytes: usize, idle: Duration) -> anyhow::Result<Vec<Touch>> {
    let small = touch::first_touch(Pages::Small, bytes, idle)?;
    // Kernels before 5.14 refuse to populate. That row is then missing.
    let others = [Pages::Populated, Pages::Huge].map(|pages| touch::first_touch(pages, bytes, idle).ok());
    Ok([Some(small)].into_iter().chain(others).flatten().collect())
}

fn cost_table(touches: &[Touch], idle: Duration) -> String {
    let after = format!("after {} idle seconds", idle.as_secs());
    let header = vec!["first touch, for each 4 KiB".into(), "right after as much was freed".into(), after];
    let rows = touches.iter().map(|touch| {
        let kind = match touch.pages {
            Pages::Small => "small pages".to_owned(),
            Pages::Populated => "small pages, 2 MiB in a call (MADV_POPULATE_WRITE)".to_owned(),
            Pages::Huge => {
                format!("huge pages where the kernel makes them ({:.0}% of 2 MiB)", touch.huge_share * 100.0)
            }
        };
        let cost = |cost: Duration| format!("{:.2} us", cost.as_nanos() as f64 / 1e3);
        vec![kind, cost(touch.warm), cost(touch.cold)]
    });
    report::drawn(&[header].into_iter().chain(rows).collect::<Vec<_>>(), Style::Terminal)
}

fn rate_table(rates: &[(usize, f64)]) -> String {
    let header = ["page faults at once", "in a second", "of as many single threads"].map(str::to_owned);
    let single = rates.first().map_or(1.0, |&(_, rate)| rate);
    let rows = rates.iter().map(|&(threads, rate)| {
        let name = format!("on {threads} {}", if threads == 1 { "thread" } else { "threads" });
        vec![name, format!("{:.2} million", rate / 1e6), format!("{:.0}%", rate / single / threads as f64 * 100.0)]
    });
    report::drawn(&[header.into()].into_iter().chain(rows).collect::<Vec<_>>(), Style::Terminal)
}

/// A header, and a row for each fact: its name, what was found, what it means for a prover.
fn facts(host: &Host) -> [[String; 3]; 10] {
    let known = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
    let kind = &host.kind;
    let folios = match (kind.folios.is_empty(), kind.folios_on()) {
        (true, _) => "none: they need Linux 6.8".into(),
        (_, on) if on.is_empty() => "off".into(),
        (_, on) => on,
    };
    let reported = kind.reported_bytes.map_or("no".into(), |bytes| format!("in blocks of {} KiB", bytes >> 10));
    let cpus = host.cpu_limit.map_or("none".into(), |cpus| format!("{cpus:.1} CPUs"));
    [
        ("the host", "is set to".into(), "which matters because"),
        ("transparent huge pages", known(kind.huge_pages.clone()), "one page fault for 2 MiB"),
        ("multi-size huge pages", folios, "one page fault for 16 KiB to 1 MiB"),
        (
            "defrag of huge pages",
            known(kind.defrag.clone()),
            "whether a fault waits while the kernel makes a huge page",
        ),
        ("free memory reported to a hypervisor", reported, "the first touch after a pause waits for the hypervisor"),
        (
            "memory limit of the control group",
            host.limit_bytes.map_or("none".into(), format::bytes),
            "the kernel kills the process beyond it",
        ),
        ("CPU limit of the control group", cpus, "more threads than that wait for each other"),
        (
            "vm.overcommit_memory",
            known(host.overcommit.map(|mode| mode.to_string())),
            "2 counts address space against a limit",
        ),
        ("NUMA nodes", host.nodes.to_string(), "memory lies on the node that touches it first"),
        ("vm.max_map_count", known(host.max_map_count.map(format::count)), "the most mappings of a process"),
    ]
    .map(|(name, found, meaning)| [name.into(), found, meaning.into()])
}

/// One line on the machine.
fn line(host: &Host) -> String {
    let memory = host.memory_bytes.map(|bytes| format!("{} of memory", format::bytes(bytes)));
    let cores = Some(format!("{} {}", host.cores, if host.cores == 1 { "core" } else { "cores" }));
    let kernel = host.kernel.as_ref().map(|kernel| format!("Linux {kernel}"));
    [host.cpu.clone(), cores, memory, kernel, Some(host.kind.to_string())]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

/// The settings as lines of a shell, each under its reason.
fn text(settings: &[(String, String)]) -> String {
    if settings.is_empty() {
        return "The defaults fit this host: nothing to set.\n".into();
    }
    let said = settings.iter().map(|(reason, lines)| format!("# {reason}\n{lines}\n"));
    format!("Settings for this host:\n\n{}", said.collect::<Vec<_>>().join("\n"))
}

/// The default of Linux. Memory that was advised in parts takes a mapping for each part.
const USUAL_MAP_COUNT: u64 = 65_530;

/// A difference that is worth a setting: page costs vary by this much from run to run.
const WORTH: f64 = 1.25;

/// The share of huge pages that wait for the kernel from which on free memory counts as fragmented.
const STALLS: f64 = 1.0 / 16.0;

/// The settings for a prover on this host: the reason of each, and lines of a shell. Empty if the defaults fit.
fn settings(host: &Host, touches: &[Touch]) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    settings.extend(defrag(host, touches));
    settings.extend(huge_pages(host, touches).map(|(reason, line)| (reason, line.to_owned())));
    if let (Some(limit), Some(memory)) = (host.limit_bytes, host.memory_bytes)
        && limit < memory
    {
        settings.push((
            format!("The control group allows {}; at nine tenths of it, the arena purges.", format::bytes(limit)),
            format!("export ZK_ALLOC_MAX_BYTES={}M", (limit / 10 * 9) >> 20),
        ));
    }
    if let Some(cpus) = host.cpu_limit.filter(|&cpus| cpus < host.cores as f64) {
        settings.push((
            format!("The control group allows {cpus:.1} CPUs of {}, and throttles more threads.", host.cores),
            format!("export RAYON_NUM_THREADS={}", (cpus.floor() as usize).max(1)),
        ));
    }
    if host.overcommit == Some(2) {
        settings.push((
            "Overcommit is forbidden: a prover's large vectors count in full, touched or not.".into(),
            "sudo sysctl -w vm.overcommit_memory=0".into(),
        ));
    }
    if host.nodes > 1 {
        settings.push((
            format!("The machine has {} NUMA nodes, and the arena reuses a page on any thread.", host.nodes),
            "numactl --cpunodebind=0 --membind=0 YOUR-PROVER    # if a proof fits in one node\n\
             numactl --interleave=all YOUR-PROVER               # if it does not"
                .into(),
        ));
    }
    if let Some(count) = host.max_map_count.filter(|&count| count < USUAL_MAP_COUNT) {
        settings.push((
            format!("A process may have {} mappings, fewer than usual.", format::count(count)),
            format!("sudo sysctl -w vm.max_map_count={USUAL_MAP_COUNT}"),
        ));
    }
    settings
}

/// The setting for a host whose free memory is in pieces, and where a fault waits until the kernel has made a huge page of them.
fn defrag(host: &Host, touches: &[Touch]) -> Option<(String, String)> {
    let touch = touches.iter().find(|touch| touch.stalls >= STALLS)?;
    let setting = host.kind.defrag.as_deref().unwrap_or("unknown");
    let (waited, share) = (touch.stalls * 100.0, touch.huge_share * 100.0);
    Some((
        format!(
            "Free memory is fragmented: {waited:.0} of 100 huge pages waited while the kernel moved others away (defrag is {setting}), \
             and {share:.0}% were had. With this, faults take small pages at once instead."
        ),
        "echo defer | sudo tee /sys/kernel/mm/transparent_hugepage/defrag".into(),
    ))
}

/// The setting of huge pages that the measured costs ask for.
fn huge_pages(host: &Host, touches: &[Touch]) -> Option<(String, &'static str)> {
    if host.kind.huge_pages.as_deref().is_none_or(|setting| setting == "never") {
        return Some((
            "The host forbids huge pages. Measure again after this.".into(),
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ));
    }
    let of = |pages| touches.iter().find(|touch| touch.pages == pages);
    let by = |small: std::time::Duration, huge: std::time::Duration| small.as_secs_f64() / huge.as_secs_f64();
    let (small, huge) = (of(Pages::Small)?, of(Pages::Huge)?);
    let (warm, cold) = (by(small.warm, huge.warm), by(small.cold, huge.cold));
    // Where memory is reported, `auto` forbids huge pages; elsewhere it asks for them.
    match host.kind.reported_bytes {
        Some(_) if cold >= WORTH => Some((
            format!(
                "Huge pages are {cold:.1} times as cheap as small ones, also after a pause; the default forbids them here."
            ),
            "export ZK_ALLOC_THP=always",
        )),
        Some(_) if warm >= WORTH => Some((
            format!(
                "For large proofs without a pause between them: huge pages are {warm:.1} times as cheap as small ones then, \
                 and {:.1} times as dear after a pause.",
                1.0 / cold
            ),
            "export ZK_ALLOC_THP=always    # or leave it out",
        )),
        None if warm.max(cold) < 1.0 / WORTH => Some((
            format!("Huge pages are {:.1} times as dear as small ones here.", 1.0 / warm.max(cold)),
            "export ZK_ALLOC_THP=never",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::host::Kind;
    use std::time::Duration;

    #[test]
    fn every_machine_has_a_line_and_its_rows() {
        let host = Host::observe();
        assert!(line(&host).contains("core"), "{}", line(&host));
        assert!(facts(&host).iter().flatten().all(|cell| !cell.is_empty()), "{:?}", facts(&host));
        assert!(host.nodes >= 1);
    }

    fn host() -> Host {
        let (memory_bytes, max_map_count) = (Some(64_000_000_000), Some(USUAL_MAP_COUNT));
        Host { cores: 8, memory_bytes, kind: kind("madvise", None), nodes: 1, max_map_count, ..Host::default() }
    }

    fn kind(huge_pages: &str, reported_bytes: Option<u64>) -> Kind {
        Kind { huge_pages: Some(huge_pages.into()), defrag: Some("madvise".into()), reported_bytes, ..Kind::default() }
    }

    /// The lines for a host where the first touch of small pages and of huge pages costs so much, warm and cold.
    fn lines(host: &Host, small_ns: [u64; 2], huge_ns: [u64; 2]) -> String {
        let touches = [(Pages::Small, small_ns), (Pages::Huge, huge_ns)].map(|(pages, costs)| {
            let [warm, cold] = costs.map(Duration::from_nanos);
            Touch { pages, warm, cold, huge_share: 0.0, stalls: 0.0 }
        });
        settings(host, &touches).into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_usual_host_needs_no_setting() {
        assert_eq!(lines(&host(), [500, 1000], [120, 300]), "");
    }

    /// On a host that reports, `auto` forbids huge pages. The measured costs say whether that is right.
    #[test]
    fn huge_pages_follow_the_costs() {
        let reporting = Host { kind: kind("madvise", Some(2 << 20)), ..host() };
        let sometimes = "export ZK_ALLOC_THP=always    # or leave it out";
        assert_eq!(lines(&reporting, [500, 1700], [150, 9000]), sometimes);
        assert_eq!(lines(&reporting, [500, 1700], [150, 400]), "export ZK_ALLOC_THP=always");
        assert_eq!(lines(&reporting, [500, 1700], [500, 9000]), "");
        assert_eq!(lines(&host(), [500, 500], [2000, 2000]), "export ZK_ALLOC_THP=never");
        let forbidden = Host { kind: kind("never", None), ..host() };
        assert!(lines(&forbidden, [500, 500], [500, 500]).contains("echo madvise"));
    }

    #[test]
    fn faults_that_wait_for_huge_pages_are_told() {
        let (warm, cold) = (Duration::from_micros(3), Duration::from_micros(3));
        let touch = |stalls| Touch { pages: Pages::Huge, warm, cold, huge_share: 0.4, stalls };
        let (reason, line) = defrag(&host(), &[touch(0.5)]).expect("half of them waited");
        assert!(reason.contains("50 of 100") && reason.contains("madvise") && reason.contains("40%"), "{reason}");
        assert!(line.contains("defrag"));
        assert_eq!(defrag(&host(), &[touch(0.0), touch(0.01)]), None);
    }

    #[test]
    fn limits_nodes_and_kernel_settings_have_their_lines() {
        let contained = Host { limit_bytes: Some(8 << 30), cpu_limit: Some(2.5), ..host() };
        let said = lines(&contained, [500, 1000], [120, 300]);
        assert_eq!(said, "export ZK_ALLOC_MAX_BYTES=7372M; export RAYON_NUM_THREADS=2");
        let odd = Host { overcommit: Some(2), nodes: 2, max_map_count: Some(1000), ..host() };
        assert_eq!(lines(&odd, [500, 1000], [120, 300]).lines().count(), 2);
        assert_eq!(lines(&odd, [500, 1000], [120, 300]).split("; ").count(), 3);
    }
}
