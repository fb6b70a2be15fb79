//! The command `host`: measures the cost of memory on this machine, and derives settings from it.

use crate::machine::{Machine, host, process};
use crate::plan::whole;
use crate::report::{self, Style};
use crate::results::format;
use anyhow::Context;
use clap::Args;
use memmap2::{Advice, MmapMut};
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Number of bytes that each measurement touches, or a tenth of the available memory if that is less.
const TOUCHED_BYTES: u64 = 256 << 20;
const HUGE_BYTES: usize = 2 << 20;

/// Options of `host`.
#[derive(Args, Debug)]
pub(crate) struct Job {
    /// Seconds to idle before each cold measurement; a kernel reports free memory to a hypervisor after 2
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = whole::<u64>(0..=600))]
    idle: u64,
}

/// Runs the measurements, and returns the text to print.
pub(crate) fn run(job: &Job) -> anyhow::Result<String> {
    let host = Machine::observe();
    let room = host::available_bytes().unwrap_or(TOUCHED_BYTES * 10) / 10;
    let bytes = (room.min(TOUCHED_BYTES) as usize).max(HUGE_BYTES) / HUGE_BYTES * HUGE_BYTES;
    let idle = Duration::from_secs(job.idle);
    let touches = [first_touch(Advice::NoHugePage, bytes, idle)?, first_touch(Advice::HugePage, bytes, idle)?];
    let counts = (0..).map(|log2| 1 << log2).take_while(|&threads| threads < host.cores).chain([host.cores]);
    let rates = counts.map(|threads| Ok((threads, faults_a_second(threads, bytes)?)));
    let rates = rates.collect::<anyhow::Result<Vec<_>>>()?;
    let settings = settings(&host, &touches);
    let facts = report::words("the host|is set to|which matters because", facts(&host));
    Ok([line(&host), cost_table(&touches, idle), rate_table(&rates), facts, text(&settings)].join("\n\n"))
}

fn cost_table(touches: &[Touch; 2], idle: Duration) -> String {
    let idle = idle.as_secs();
    let header = format!("first touch, for each 4 KiB|right after as much was freed|after {idle} idle seconds");
    let huge = format!("huge pages where the kernel makes them ({:.0}% of 2 MiB)", touches[1].huge_share * 100.0);
    let rows = ["small pages".to_owned(), huge].into_iter().zip(touches).map(|(kind, touch)| {
        let cost = |cost: Duration| format!("{:.2} us", cost.as_nanos() as f64 / 1e3);
        [kind, cost(touch.warm), cost(touch.cold)]
    });
    report::drawn(&header, rows, Style::Terminal)
}

fn rate_table(rates: &[(usize, f64)]) -> String {
    let single = rates.first().map_or(1.0, |&(_, rate)| rate);
    let rows = rates.iter().map(|&(threads, rate)| {
        let name = format!("on {threads} {}", if threads == 1 { "thread" } else { "threads" });
        [name, format!("{:.2} million", rate / 1e6), format!("{:.0}%", rate / single / threads as f64 * 100.0)]
    });
    report::drawn("page faults at once|per second|of perfect scaling", rows, Style::Terminal)
}

/// Returns a row for each fact: its name, what was found, and what it means for a prover.
fn facts(host: &Machine) -> [[String; 3]; 9] {
    let known = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
    let kind = host.kind.clone().unwrap_or_default();
    let folios = match (kind.folios.is_empty(), kind.folios_on()) {
        (true, _) => "none: they need Linux 6.8".into(),
        (_, on) if on.is_empty() => "off".into(),
        (_, on) => on,
    };
    let reported = kind.reported_bytes.map_or("no".into(), |bytes| format!("in blocks of {} KiB", bytes >> 10));
    let limit = host.limit_bytes.map_or("none".into(), format::bytes);
    let cpus = host.cpu_limit.map_or("none".into(), |cpus| format!("{cpus:.1} CPUs"));
    let nodes = known(host.numa_nodes.map(|nodes| nodes.to_string()));
    [
        ("transparent huge pages", known(kind.huge_pages), "one page fault for 2 MiB"),
        ("multi-size huge pages", folios, "one page fault for 16 KiB to 1 MiB"),
        ("defrag of huge pages", known(kind.defrag), "whether a fault waits while the kernel makes a huge page"),
        ("free memory reported to a hypervisor", reported, "the first touch after a pause waits for the hypervisor"),
        ("memory limit of the control group", limit, "the kernel kills the process beyond it"),
        ("CPU limit of the control group", cpus, "more threads than that wait for each other"),
        ("vm.overcommit_memory", known(host.overcommit_memory.clone()), "2 counts address space against a limit"),
        ("NUMA nodes", nodes, "memory lies on the node that touches it first"),
        ("vm.max_map_count", known(host.max_map_count.map(format::count)), "the most mappings of a process"),
    ]
    .map(|(name, found, meaning)| [name.into(), found, meaning.into()])
}

/// Describes the machine in one line.
fn line(host: &Machine) -> String {
    let (cpu, kernel) = (report::known(host.cpu.as_deref()), report::known(host.kernel.as_deref()));
    let cores = format!("{} {}", host.cores, if host.cores == 1 { "core" } else { "cores" });
    let memory = host.memory_bytes.map_or("unknown".into(), format::bytes);
    format!("{cpu}, {cores}, {memory} of memory, Linux {kernel}, {}", host.kind_of_host())
}

/// Formats the settings as shell commands, each below its reason.
fn text(settings: &[(String, String)]) -> String {
    if settings.is_empty() {
        return "The defaults fit this host: nothing to set.\n".into();
    }
    let text = settings.iter().map(|(reason, lines)| format!("# {reason}\n{lines}\n"));
    format!("Settings for this host:\n\n{}", text.collect::<Vec<_>>().join("\n"))
}

/// Linux's default for `vm.max_map_count`. When `madvise` splits a mapping, each part counts as a mapping.
const USUAL_MAP_COUNT: u64 = 65_530;

/// The smallest cost ratio that justifies a setting. Page costs vary by this much from run to run.
const WORTH: f64 = 1.25;

/// Free memory counts as fragmented if faults on at least this share of huge pages wait for the kernel.
const STALLS: f64 = 1.0 / 16.0;

/// Returns the settings for a prover on this host, each as its reason and its shell commands. Empty if the defaults fit.
fn settings(host: &Machine, touches: &[Touch; 2]) -> Vec<(String, String)> {
    let limit = host.limit_bytes.filter(|&limit| host.memory_bytes.is_some_and(|memory| limit < memory)).map(|limit| {
        let reason =
            format!("The control group allows {}; at nine tenths of it, the arena purges.", format::bytes(limit));
        (reason, format!("export ZK_ALLOC_MAX_BYTES={}M", (limit / 10 * 9) >> 20))
    });
    let cpus = host.cpu_limit.filter(|&cpus| cpus < host.cores as f64).map(|cpus| {
        let reason = format!("The control group allows {cpus:.1} CPUs of {}, and throttles more threads.", host.cores);
        (reason, format!("export RAYON_NUM_THREADS={}", (cpus.floor() as usize).max(1)))
    });
    let overcommit = (host.overcommit_memory.as_deref() == Some("2")).then(|| {
        let reason = "Overcommit is forbidden: a prover's large vectors count in full, touched or not.";
        (reason.into(), "sudo sysctl -w vm.overcommit_memory=0".into())
    });
    let nodes = host.numa_nodes.filter(|&nodes| nodes > 1).map(|nodes| {
        let reason = format!("The machine has {nodes} NUMA nodes, and the arena reuses a page on any thread.");
        let lines = "numactl --cpunodebind=0 --membind=0 YOUR-PROVER    # if a proof fits in one node\n\
                     numactl --interleave=all YOUR-PROVER               # if it does not";
        (reason, lines.into())
    });
    let mappings = host.max_map_count.filter(|&count| count < USUAL_MAP_COUNT).map(|count| {
        let reason = format!("A process may have {} mappings, fewer than usual.", format::count(count));
        (reason, format!("sudo sysctl -w vm.max_map_count={USUAL_MAP_COUNT}"))
    });
    let measured = [defrag(host, touches), huge_pages(host, touches)];
    measured.into_iter().chain([limit, cpus, overcommit, nodes, mappings]).flatten().collect()
}

/// Returns the setting for a host whose free memory is so fragmented that faults wait until the kernel has assembled a huge page.
fn defrag(host: &Machine, touches: &[Touch; 2]) -> Option<(String, String)> {
    let touch = touches.iter().find(|touch| touch.stalls >= STALLS)?;
    let setting = host.kind.as_ref().and_then(|kind| kind.defrag.as_deref()).unwrap_or("unknown");
    let (waited, share) = (touch.stalls * 100.0, touch.huge_share * 100.0);
    Some((
        format!(
            "Free memory is fragmented: {waited:.0} of 100 huge pages waited while the kernel moved other pages (defrag is {setting}), \
             and {share:.0}% of the memory got huge pages. With this setting, faults take small pages at once instead."
        ),
        "echo defer | sudo tee /sys/kernel/mm/transparent_hugepage/defrag".into(),
    ))
}

/// Returns the huge page setting that the measured costs suggest.
fn huge_pages(host: &Machine, [small, huge]: &[Touch; 2]) -> Option<(String, String)> {
    let kind = host.kind.clone().unwrap_or_default();
    if kind.huge_pages.is_none_or(|setting| setting == "never") {
        let reason = "The host forbids huge pages. Measure again after this.";
        return Some((reason.into(), "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled".into()));
    }
    let (warm, cold) = (small.warm.div_duration_f64(huge.warm), small.cold.div_duration_f64(huge.cold));
    // On a host that reports free memory to a hypervisor, `auto` forbids huge pages. Elsewhere it requests them.
    match kind.reported_bytes {
        Some(_) if cold >= WORTH => Some((
            format!(
                "Huge pages are {cold:.1} times as cheap as small ones, also after a pause; the default forbids them here."
            ),
            "export ZK_ALLOC_THP=always".into(),
        )),
        Some(_) if warm >= WORTH => Some((
            format!(
                "For large proofs without a pause between them: huge pages are {warm:.1} times as cheap as small ones then, \
                 and {:.1} times as expensive after a pause.",
                1.0 / cold
            ),
            "export ZK_ALLOC_THP=always    # or leave it out".into(),
        )),
        None if warm.max(cold) < 1.0 / WORTH => Some((
            format!("Huge pages are {:.1} times as expensive as small ones here.", 1.0 / warm.max(cold)),
            "export ZK_ALLOC_THP=never".into(),
        )),
        _ => None,
    }
}

/// The amount of memory that each cost refers to.
const PAGE_BYTES: usize = 4 << 10;
/// Number of warm touches, and of attempts to measure each rate. The median counts.
const WARM: usize = 3;

/// The cost of first touching [`PAGE_BYTES`]. A host has one such cost for small pages, and one for a process that requests huge pages
/// (`MADV_HUGEPAGE`).
#[derive(Clone, Copy, Debug)]
struct Touch {
    /// Cost right after the same amount of memory was freed.
    warm: Duration,
    /// Cost after the machine has idled.
    cold: Duration,
    /// The share of the memory in huge pages of 2 MiB, from 0 to 1.
    huge_share: f64,
    /// Number of faults per 2 MiB that waited while the kernel moved other pages away.
    stalls: f64,
}

/// Measures the cost of first touching `bytes`, once after idling for `idle` and then warm. `bytes` must be a multiple of the huge page
/// size.
fn first_touch(pages: Advice, bytes: usize, idle: Duration) -> anyhow::Result<Touch> {
    thread::sleep(idle);
    let stalled_before = host::compaction_stalls();
    let (cold, huge_share) = touched(pages, bytes)?;
    let mut warm = (0..WARM).map(|_| Ok(touched(pages, bytes)?.0)).collect::<anyhow::Result<Vec<_>>>()?;
    let stalled = host::compaction_stalls().saturating_sub(stalled_before);
    warm.sort();
    let each = |took: Duration| took / (bytes / PAGE_BYTES) as u32;
    let stalls = stalled as f64 / ((WARM + 1) as f64 * bytes as f64 / HUGE_BYTES as f64);
    Ok(Touch { warm: each(warm[WARM / 2]), cold: each(cold), huge_share, stalls })
}

/// Returns the cost of one first touch, and the share of the memory in huge pages.
fn touched(pages: Advice, bytes: usize) -> anyhow::Result<(Duration, f64)> {
    let mut mapping = Mapping::new(bytes, pages)?;
    let huge_before = process::huge_page_bytes().unwrap_or(0);
    let began = Instant::now();
    mapping.touch();
    let took = began.elapsed();
    let huge_bytes = process::huge_page_bytes().unwrap_or(0).saturating_sub(huge_before);
    Ok((took, huge_bytes as f64 / bytes as f64))
}

/// Returns the page faults per second on `threads` threads, each with its own mapping: the median of three attempts.
fn faults_a_second(threads: usize, bytes: usize) -> anyhow::Result<f64> {
    let each = (bytes / threads).next_multiple_of(HUGE_BYTES);
    let rate = |_| {
        let mut mappings =
            (0..threads).map(|_| Mapping::new(each, Advice::NoHugePage)).collect::<anyhow::Result<Vec<_>>>()?;
        let start = &Barrier::new(threads + 1);
        let began = thread::scope(|scope| {
            for mapping in &mut mappings {
                scope.spawn(move || {
                    start.wait();
                    mapping.touch();
                });
            }
            start.wait();
            Instant::now()
        });
        Ok((threads * each / PAGE_BYTES) as f64 / began.elapsed().as_secs_f64())
    };
    let mut rates = (0..WARM).map(rate).collect::<anyhow::Result<Vec<_>>>()?;
    rates.sort_by(f64::total_cmp);
    Ok(rates[WARM / 2])
}

/// A mapping of private, untouched memory, aligned to 2 MiB.
struct Mapping {
    map: MmapMut,
    start: usize,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize, pages: Advice) -> anyhow::Result<Self> {
        let mapped_bytes = bytes + HUGE_BYTES;
        let map = MmapMut::map_anon(mapped_bytes).with_context(|| format!("cannot map {mapped_bytes} bytes"))?;
        let address = map.as_ptr().addr();
        let start = address.next_multiple_of(HUGE_BYTES) - address;
        // A kernel without huge pages rejects both kinds of advice, and uses small pages anyway.
        let _ = map.advise_range(pages, start, bytes);
        Ok(Self { map, start, bytes })
    }

    fn touch(&mut self) {
        for from in (self.start..self.start + self.bytes).step_by(PAGE_BYTES) {
            // Nothing reads the byte. `black_box` keeps the compiler from dropping the write.
            *black_box(&mut self.map[from]) = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::host::Kind;

    #[test]
    fn the_machine_is_measured_and_described() {
        let _alone = process::tests::alone();
        let text = run(&Job { idle: 0 }).expect("memory");
        for part in [" core", "small pages", " us ", "on 1 thread ", " million ", "vm.overcommit_memory", "NUMA nodes"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let touch = first_touch(Advice::NoHugePage, 8 << 20, Duration::ZERO).expect("memory");
        assert!(touch.warm > Duration::ZERO && touch.huge_share < 0.01, "small pages are small: {touch:?}");
    }

    fn host() -> Machine {
        let (memory_bytes, max_map_count) = (Some(64_000_000_000), Some(USUAL_MAP_COUNT));
        Machine { cores: 8, memory_bytes, kind: kind("madvise", None), max_map_count, ..Machine::default() }
    }

    fn kind(huge_pages: &str, reported_bytes: Option<u64>) -> Option<Kind> {
        let (huge_pages, defrag) = (Some(huge_pages.into()), Some("madvise".into()));
        Some(Kind { huge_pages, defrag, reported_bytes, ..Kind::default() })
    }

    #[test]
    fn settings_follow_from_the_costs_and_from_the_limits() {
        // Each row has the host; the warm and the cold cost of a first touch, for small and for huge pages; how often a fault waited; and
        // the expected lines.
        let usual = [[500, 1000], [120, 300]];
        let reporting = || Machine { kind: kind("madvise", Some(2 << 20)), ..host() };
        let forbidding = Machine { kind: kind("never", None), ..host() };
        let contained = Machine { limit_bytes: Some(8 << 30), cpu_limit: Some(2.5), ..host() };
        let odd =
            Machine { overcommit_memory: Some("2".into()), numa_nodes: Some(2), max_map_count: Some(1000), ..host() };
        let cases: [(_, _, _, &[&str]); 9] = [
            (host(), usual, 0.01, &[]),
            // On a host that reports free memory, `auto` forbids huge pages. The measured costs show whether that is right.
            (reporting(), [[500, 1700], [150, 9000]], 0.0, &["export ZK_ALLOC_THP=always    # or leave it out"]),
            (reporting(), [[500, 1700], [150, 400]], 0.0, &["export ZK_ALLOC_THP=always"]),
            (reporting(), [[500, 1700], [500, 9000]], 0.0, &[]),
            (host(), [[500, 500], [2000, 2000]], 0.0, &["export ZK_ALLOC_THP=never"]),
            (forbidding, [[500, 500], [500, 500]], 0.0, &["transparent_hugepage/enabled"]),
            (host(), usual, 0.5, &["transparent_hugepage/defrag"]),
            (contained, usual, 0.0, &["export ZK_ALLOC_MAX_BYTES=7372M", "export RAYON_NUM_THREADS=2"]),
            (odd, usual, 0.0, &["vm.overcommit_memory=0", "# if it does not", "vm.max_map_count=65530"]),
        ];
        for (host, costs, stalls, expected) in cases {
            let touches = costs.map(|costs| {
                let [warm, cold] = costs.map(Duration::from_nanos);
                Touch { warm, cold, huge_share: 0.0, stalls }
            });
            let settings = settings(&host, &touches);
            let lines: Vec<_> = settings.into_iter().map(|(_, line)| line).collect();
            let agree = lines.iter().zip(expected).all(|(line, end)| line.ends_with(end));
            assert!(agree && lines.len() == expected.len(), "{lines:?}, not {expected:?}");
        }
    }
}
