//! Which functions of a command take its page faults, whatever its allocator is: samples of the kernel's software event
//! (perf_event_open(2)), with their call chains.
//!
//! - `ring`: a buffer that the kernel writes
//! - `records`: what the kernel writes

mod records;
mod ring;

use anyhow::{Context, bail};
use records::{Mapping, Record};
use ring::Ring;
use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A sample stands for this many page faults.
const PERIOD: u64 = 16;
/// Time between two looks at the buffers. A buffer of 512 KiB has room for the faults of 50 ms or more.
const EVERY: Duration = Duration::from_millis(5);
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// A recording of the page faults of all processes that this thread starts.
pub(super) struct Faults {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Sampled>,
}

/// The page faults of the processes of a command.
#[derive(Default)]
pub(super) struct Sampled {
    processes: HashMap<u32, Process>,
    /// Samples for which the buffers had no room.
    pub(super) lost: u64,
}

/// The page faults of one process.
#[derive(Default)]
struct Process {
    mappings: Vec<Mapping>,
    /// Samples by call chain, the innermost address first.
    chains: HashMap<Vec<u64>, u64>,
}

impl Faults {
    /// Begins. The calling thread must also start the command.
    pub(super) fn begin() -> anyhow::Result<Self> {
        let cpus = thread::available_parallelism().map_or(1, usize::from).max(online_cpus());
        let rings = (0..cpus).map(|cpu| Ring::open(cpu, PERIOD)).collect::<std::io::Result<Vec<_>>>();
        let rings = match rings {
            Ok(rings) => rings,
            Err(error) => {
                let paranoid = fs::read_to_string(PARANOID).unwrap_or_default();
                bail!(
                    "the system refuses to sample page faults ({error}): {PARANOID} is {}, and must be 2 or less; a \
                     container may also forbid the system call perf_event_open (seccomp)",
                    if paranoid.is_empty() { "unknown" } else { paranoid.trim() }
                );
            }
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = is_over.clone();
        let thread = thread::Builder::new().name("faults".into()).spawn(move || read_until(&stop, rings));
        Ok(Self { is_over, thread: thread.context("cannot start a thread")? })
    }

    /// Ends it, after the command has ended.
    pub(super) fn end(self) -> anyhow::Result<Sampled> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the thread that reads page faults panicked"))
    }
}

/// Processors that run, by the kernel's list, such as `0-3,8`.
fn online_cpus() -> usize {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map_or(1, |last| last + 1)
}

fn read_until(is_over: &AtomicBool, mut rings: Vec<Ring>) -> Sampled {
    let mut sampled = Sampled::default();
    loop {
        // Reads once more after the end.
        let is_last = is_over.load(Ordering::Relaxed);
        for ring in &mut rings {
            ring.read(|record| sampled.add(records::parse(record)));
        }
        if is_last {
            return sampled;
        }
        thread::sleep(EVERY);
    }
}

impl Sampled {
    fn add(&mut self, record: Option<Record>) {
        match record {
            Some(Record::Fault { process, chain }) => {
                *self.processes.entry(process).or_default().chains.entry(chain).or_default() += 1;
            }
            Some(Record::Mapped { process, mapping }) => {
                self.processes.entry(process).or_default().mappings.push(mapping);
            }
            Some(Record::Lost(count)) => self.lost += count,
            None => {}
        }
    }

    /// The process with the most page faults, and its part of all of them, from 0 to 1. The text is a raw profile for
    /// `zk-alloc-profile`: the bytes of the faulted pages, by call chain, as fresh bytes. `None` without samples.
    pub(super) fn largest(&self, page_bytes: u64) -> Option<(String, f64)> {
        let all: u64 = self.processes.values().map(Process::samples).sum();
        let (id, largest) = self.processes.iter().max_by_key(|(id, process)| (process.samples(), **id))?;
        let samples = largest.samples();
        // A forked child has the mappings of its parent, which the kernel does not tell again.
        let inherited = self.processes.iter().filter(|(other, _)| largest.mappings.is_empty() && *other != id);
        let mappings = largest.mappings.iter().chain(inherited.flat_map(|(_, process)| &process.mappings));
        let mut text = "zk-alloc-profile 1\nmean_bytes 1\nmissed 0\n".to_owned();
        for (chain, samples) in &largest.chains {
            let _ = write!(text, "site 0 0 0 0 0 0 {} :", samples * PERIOD * page_bytes);
            for address in chain {
                let _ = write!(text, " {address:x}");
            }
            text.push('\n');
        }
        text += "maps\n";
        for Mapping { start, end, offset, path } in mappings {
            let _ = writeln!(text, "{start:x}-{end:x} r-xp {offset:08x} 00:00 0 {path}");
        }
        (samples > 0).then(|| (text, samples as f64 / all as f64))
    }
}

impl Process {
    fn samples(&self) -> u64 {
        self.chains.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text must be what `zk-alloc-profile` reads.
    #[test]
    fn the_process_with_most_faults_is_told_with_its_mappings() {
        let mut sampled = Sampled::default();
        let fault = |process, address| Some(Record::Fault { process, chain: vec![address, 0x2000] });
        let mapping = Mapping { start: 0x1000, end: 0x3000, offset: 0x400, path: "/bin/prover".into() };
        sampled.add(Some(Record::Mapped { process: 7, mapping }));
        for one in [fault(7, 0x1234), fault(7, 0x1234), fault(8, 0x99), fault(7, 0x1500), None] {
            sampled.add(one);
        }
        sampled.add(Some(Record::Lost(3)));
        let (text, share) = sampled.largest(4096).unwrap();
        assert_eq!((share, sampled.lost), (0.75, 3));
        assert!(text.contains(&format!("site 0 0 0 0 0 0 {} : 1234 2000\n", 2 * 16 * 4096)), "{text}");
        assert!(text.ends_with("maps\n1000-3000 r-xp 00000400 00:00 0 /bin/prover\n"), "{text}");
        assert!(Sampled::default().largest(4096).is_none());
    }

    /// A real command, under the kernel that the test runs on.
    #[test]
    fn the_faults_of_a_command_are_sampled() {
        let faults = match Faults::begin() {
            Ok(faults) => faults,
            Err(refused) => return eprintln!("skipped: {refused}"),
        };
        let mut command = std::process::Command::new("sort");
        let status = command.arg("/proc/self/exe").stdout(std::process::Stdio::null()).status();
        assert!(status.unwrap().success());
        let (text, _) = faults.end().unwrap().largest(4096).expect("a program has page faults");
        assert!(text.contains("/sort") && text.contains("site 0 0 0 0 0 0 "), "{text}");
    }
}
