//! Which functions of a command take its page faults, whatever its allocator is: samples of the kernel's software event
//! (perf_event_open(2)), with their call chains.
#![allow(unsafe_code, reason = "shares memory with the kernel")]

use crate::child::profiling::Sampler;
use crate::machine::process::page_bytes;
use anyhow::anyhow;
use memmap2::{MmapOptions, MmapRaw};
use std::collections::HashMap;
use std::fmt::Write;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use std::{fs, io};

/// A sample stands for this many page faults.
const PERIOD: u64 = 16;
/// Time between two looks at the buffers. A buffer of 512 KiB has room for the faults of 50 ms or more.
const EVERY: Duration = Duration::from_millis(5);
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
    let rings = (0..cpus).map(|cpu| Ring::open(cpu, PERIOD)).collect::<io::Result<Vec<_>>>();
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
            ring.read(|record| sampled.add(parse(record)));
        }
        EVERY
    })
}

/// Processors that run, by the kernel's list, such as `0-3,8`.
fn online_cpus() -> usize {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map_or(1, |last| last + 1)
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

/// A record of the kernel.
#[derive(Debug, PartialEq)]
enum Record {
    /// A page fault, with the addresses of its calls, the innermost first. As in all profiles here, each lies behind the
    /// call.
    Fault { process: u32, chain: Vec<u64> },
    /// A file was mapped to run code from it.
    Mapped { process: u32, mapping: Mapping },
    /// There was no room for this many records.
    Lost(u64),
}

#[derive(Clone, Debug, PartialEq)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
}

/// Types of records.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;

/// The fields of a sample: `PERF_SAMPLE_IP`, `PERF_SAMPLE_TID` and `PERF_SAMPLE_CALLCHAIN`, in this order.
const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 5;

/// From here on, values of a call chain are not addresses: they say in which mode the next calls were.
const FIRST_MARK: u64 = -4095_i64 as u64;

/// Reads a record, its header included; `None` for other types.
fn parse(bytes: &[u8]) -> Option<Record> {
    let mut fields = Fields(bytes.get(8..)?);
    match u32::from_ne_bytes(bytes[..4].try_into().ok()?) {
        SAMPLE => {
            let at = fields.u64()?;
            let process = fields.u32()?;
            fields.u32()?;
            let calls = fields.u64()?;
            let chain = (0..calls).map_while(|_| fields.u64()).filter(|&address| address < FIRST_MARK);
            // The chain begins with the instruction itself. The others are where calls return to.
            let outer = chain.skip_while(|&address| address == at);
            Some(Record::Fault { process, chain: std::iter::once(at + 1).chain(outer).collect() })
        }
        MMAP2 => {
            let process = fields.u32()?;
            fields.u32()?;
            let (start, bytes, offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
            // Device, inode, its generation, protection and flags.
            fields.0 = fields.0.get(32..)?;
            let path = fields.0.split(|&byte| byte == 0).next()?;
            let path = String::from_utf8_lossy(path).into_owned();
            Some(Record::Mapped { process, mapping: Mapping { start, end: start + bytes, offset, path } })
        }
        LOST => {
            fields.u64()?;
            Some(Record::Lost(fields.u64()?))
        }
        _ => None,
    }
}

/// The rest of a record.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*value))
    }

    fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*value))
    }
}

/// Pages of a buffer, without the first, which describes it. The system lets each user lock this much for each processor.
const PAGES: usize = 128;
/// Where the first page has the ends of the records: written by the kernel, and by the reader.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Bytes of a record's header, with its length in the last two.
const HEADER: usize = 8;

/// `struct perf_event_attr` in its fifth version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    /// Fields that stay 0.
    rest: [u64; 8],
}

const _: () = assert!(size_of::<Attributes>() == 112);

/// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_PAGE_FAULTS_MIN` and `PERF_FLAG_FD_CLOEXEC`.
const SOFTWARE: u32 = 1;
const MINOR_FAULTS: u64 = 5;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// Flags: disabled, inherit, exclude_kernel, exclude_hv, mmap, enable_on_exec, exclude_callchain_kernel, mmap2.
const FLAGS: u64 = 1 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 12 | 1 << 21 | 1 << 23;

struct Ring {
    map: MmapRaw,
    page_bytes: usize,
    /// Closed after the buffer is unmapped.
    _event: File,
}

impl Ring {
    /// Samples each `period`th page fault on a processor, of the programs that the calling thread starts.
    fn open(cpu: usize, period: u64) -> io::Result<Self> {
        let attributes = Attributes {
            kind: SOFTWARE,
            bytes: size_of::<Attributes>() as u32,
            config: MINOR_FAULTS,
            sample_period: period,
            sample_type: SAMPLE_TYPE,
            flags: FLAGS,
            ..Attributes::default()
        };
        let (this_thread, no_group) = (0, -1);
        // SAFETY: reads a valid structure of the length that it names.
        let event = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                this_thread,
                cpu as libc::c_int,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned this descriptor, and nobody else has it.
        let event = unsafe { File::from_raw_fd(event as libc::c_int) };
        let page_bytes = page_bytes() as usize;
        let map = MmapOptions::new().len((1 + PAGES) * page_bytes).map_raw(&event)?;
        Ok(Self { map, page_bytes, _event: event })
    }

    /// Calls `f` with each record since the last call.
    fn read(&mut self, mut f: impl FnMut(&[u8])) {
        // Pairs with the kernel's store after it wrote the records.
        let head = self.end(HEAD).load(Ordering::Acquire);
        let mut tail = self.end(TAIL).load(Ordering::Relaxed);
        let mut record = Vec::new();
        while tail < head {
            self.copy(tail, HEADER, &mut record);
            let bytes = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            if bytes < HEADER {
                tail = head;
                break;
            }
            self.copy(tail, bytes, &mut record);
            f(&record);
            tail += bytes as u64;
        }
        // The kernel may write there again.
        self.end(TAIL).store(tail, Ordering::Release);
    }

    fn end(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both lie in the first page, aligned, and the kernel accesses them whole.
        unsafe { &*self.map.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Copies `bytes` from a position of the records. They may go on at the start of the buffer.
    fn copy(&self, from: u64, bytes: usize, into: &mut Vec<u8>) {
        let length = PAGES * self.page_bytes;
        into.clear();
        into.extend((0..bytes).map(|index| {
            let offset = (from as usize + index) % length;
            // SAFETY: it lies in the buffer, and the kernel writes nothing between the two ends.
            unsafe { self.map.as_ptr().add(self.page_bytes + offset).read() }
        }));
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

    fn record(kind: u32, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let len = u16::try_from(body.len() + 8).unwrap();
        [&kind.to_ne_bytes()[..], &0_u16.to_ne_bytes(), &len.to_ne_bytes(), &body].concat()
    }

    #[test]
    fn samples_mappings_and_losses_are_read() {
        let [ip, user] = [0x5000_u64, -512_i64 as u64].map(u64::to_ne_bytes);
        let ids = [7_u32.to_ne_bytes(), 8_u32.to_ne_bytes()].concat();
        let chain = [&3_u64.to_ne_bytes()[..], &user, &ip, &0x4000_u64.to_ne_bytes()].concat();
        let sample = record(SAMPLE, &[&ip, &ids, &chain]);
        assert_eq!(parse(&sample), Some(Record::Fault { process: 7, chain: vec![0x5001, 0x4000] }));
        // A record that is cut short has no part that is made up.
        assert_eq!(parse(&sample[..20]), None);
        let numbers = [0x1000_u64, 0x2000, 0x300].map(u64::to_ne_bytes).concat();
        let mapped = record(MMAP2, &[&ids, &numbers, &[0; 32], b"/bin/x\0\0"]);
        let mapping = Mapping { start: 0x1000, end: 0x3000, offset: 0x300, path: "/bin/x".into() };
        assert_eq!(parse(&mapped), Some(Record::Mapped { process: 7, mapping }));
        assert_eq!(parse(&record(LOST, &[&[0; 8], &9_u64.to_ne_bytes()])), Some(Record::Lost(9)));
        assert_eq!(parse(&record(3, &[&[0; 16]])), None);
    }
}
