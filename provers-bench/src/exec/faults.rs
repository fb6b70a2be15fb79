//! Which functions of a command take its page faults, whatever its allocator is: samples of the kernel's software event
//! (perf_event_open(2)), with their call chains.

use crate::child::profiling::Sampler;
use anyhow::anyhow;
use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag};
use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;
use std::{fs, io, iter, thread};

/// A sample stands for this many page faults.
const PERIOD: u64 = 16;
/// How often the buffers are read. A buffer holds the faults of 50 ms or more. The system lets each user lock a buffer of this size for
/// each processor.
const EVERY: Duration = Duration::from_millis(5);
const BUFFER_BYTES: usize = 512 << 10;
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

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

/// Begins a recording of the page faults of all processes that this thread starts.
pub(super) fn begin() -> anyhow::Result<Sampler<Sampled>> {
    let cpus = thread::available_parallelism().map_or(1, usize::from).max(online_cpus());
    let rings = (0..cpus).map(ring).collect::<io::Result<Vec<_>>>();
    let mut rings = rings.map_err(|error| {
        let paranoid = fs::read_to_string(PARANOID).unwrap_or_default();
        anyhow!(
            "the system refuses to sample page faults ({error}): {PARANOID} is {}, and must be 2 or less; a container may \
             also forbid the system call perf_event_open (seccomp)",
            if paranoid.is_empty() { "unknown" } else { paranoid.trim() }
        )
    })?;
    Sampler::begin("faults", Sampled::default(), move |sampled, _| {
        for ring in &mut rings {
            while let Some(record) = ring.next_record() {
                record.parse_record().iter().for_each(|record| sampled.add(record));
            }
        }
        EVERY
    })
}

/// The page faults on a processor, of the programs that the calling thread starts.
fn ring(cpu: usize) -> io::Result<perf_event::Sampler> {
    let mut event = Builder::new(Software::PAGE_FAULTS_MIN);
    event.one_cpu(cpu).inherit(true).enable_on_exec(true).exclude_callchain_kernel(true).mmap(true).mmap2(true);
    event.sample_period(PERIOD).sample(SampleFlag::IP | SampleFlag::TID | SampleFlag::CALLCHAIN);
    event.build()?.sampled(BUFFER_BYTES)
}

/// Processors that run, by the kernel's list, such as `0-3,8`.
fn online_cpus() -> usize {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map_or(1, |last| last + 1)
}

impl Sampled {
    fn add(&mut self, record: &Record<'_>) {
        match record {
            Record::Sample(sample) => {
                if let (Some(process), Some(at), Some(chain)) = (sample.pid(), sample.ip(), sample.callchain()) {
                    self.fault(process, at, chain);
                }
            }
            Record::Mmap2(mapped) => {
                let (start, end, offset) = (mapped.addr, mapped.addr + mapped.len, mapped.pgoff);
                let path = String::from_utf8_lossy(&mapped.filename).into_owned();
                self.processes.entry(mapped.pid).or_default().mappings.push(Mapping { start, end, offset, path });
            }
            Record::Lost(lost) => self.lost += lost.lost,
            _ => {}
        }
    }

    /// Adds a page fault of the instruction `at`, with its call chain, innermost first.
    fn fault(&mut self, process: u32, at: u64, chain: &[u64]) {
        // The chain begins with the instruction itself. The others are where calls return to. As in all profiles here, each lies behind
        // the call.
        let addresses = chain.iter().copied().filter(|address| (FIRST_ADDRESS..FIRST_MARK).contains(address));
        let outer = addresses.skip_while(|&address| address == at);
        let chain = iter::once(at + 1).chain(outer).collect();
        *self.processes.entry(process).or_default().chains.entry(chain).or_default() += 1;
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

/// Nothing is mapped below. A walk without frame pointers may end there.
const FIRST_ADDRESS: u64 = 0x1000;
/// From here on, values of a call chain are not addresses: they say in which mode the next calls were.
const FIRST_MARK: u64 = -4095_i64 as u64;

/// A file that was mapped to run code from it.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text must be what `zk-alloc-profile` reads. A mark of the kernel in a call chain is no address.
    #[test]
    fn the_process_with_most_faults_is_told_with_its_mappings() {
        let mut sampled = Sampled::default();
        let mapping = Mapping { start: 0x1000, end: 0x3000, offset: 0x400, path: "/bin/prover".into() };
        sampled.processes.entry(7).or_default().mappings.push(mapping);
        for (process, at) in [(7, 0x1233), (7, 0x1233), (8, 0x98), (7, 0x14ff)] {
            sampled.fault(process, at, &[-512_i64 as u64, at, 0x2000]);
        }
        let (text, share) = sampled.largest(4096).unwrap();
        assert_eq!(share, 0.75);
        assert!(text.contains(&format!("site 0 0 0 0 0 0 {} : 1234 2000\n", 2 * 16 * 4096)), "{text}");
        assert!(text.ends_with("maps\n1000-3000 r-xp 00000400 00:00 0 /bin/prover\n"), "{text}");
        assert!(Sampled::default().largest(4096).is_none());
    }

    /// A real command, under the kernel that the test runs on.
    #[test]
    fn the_faults_of_a_command_are_sampled() {
        let faults = match begin() {
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
