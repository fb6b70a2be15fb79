//! The commands `record` and `replay`. `record` writes the allocations of a prover to a trace. `replay` repeats them under real allocators
//! on real memory: the binary of each arm replays the trace, and the driver prints the measurements. docs/experiments/placement.md has
//! results.
//!
//! This module is the driver's side. The code that records and replays is in [`child`](crate::child), and the file format is in `protocol`.

use crate::arms::{Arm, DEFAULT_SET};
use crate::child::traces::{HEADER, PATH};
use crate::machine::host;
use crate::measure::{Failure, Interrupt, binaries, process};
use crate::plan::{self, Contestant, Size, bytes};
use crate::protocol::{self, Header, Op, RECORD_WORDS, REPLAY, RSS_AT_LIVE_PEAK, RSS_RELEASED, Record, Shape, VERSION};
use crate::report::{self, Style};
use crate::results::{format, stats};
use crate::sample::Sample;
use crate::workloads::Prover;
use anyhow::{Context, ensure};
use clap::Args;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::alloc::Layout;
use std::collections::HashMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// The recorder. It is not an arm of the bench, because recording distorts its times.
static RECORDER: Arm = Arm::new("recorder", "record");

/// Options of `record`.
#[derive(Args, Debug)]
pub(crate) struct RecordArgs {
    /// Prover to record
    #[arg(value_name = "PROVER")]
    prover: String,
    /// Rows of the trace as a power of two, 2^N, for every workload [default: the workload's own]
    #[arg(long, value_name = "N")]
    log_rows: Option<u32>,
    /// Comma-separated workloads to record [default: all of the prover]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Proofs to record, including the cold one
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    proofs: u32,
    /// Threads of the prover's pool [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
    /// Smallest request to record, in bytes; the suffixes k, m and g are powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "1k", value_parser = bytes)]
    min_bytes: u64,
    /// Folder for the traces [default: prove-bench/traces in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Records every workload. Returns the paths of the traces, one per line. If a recording is interrupted, the traces of the
/// earlier workloads remain.
pub(crate) fn record(provers: &'static [Prover], args: &RecordArgs) -> anyhow::Result<String> {
    let prover = plan::find("prover", &args.prover, provers, |prover| prover.name)?;
    let workloads = plan::sized(prover, &args.workloads, args.log_rows.map_or(Size::Own, Size::LogRows))?;
    let interrupt = Interrupt::on_signals()?;
    let recorder = Contestant { label: RECORDER.name.into(), arm: &RECORDER };
    let folder = binaries::folder(&[recorder], &interrupt)?;
    let out = args.out.clone().map_or_else(|| Ok(binaries::measured_folder()?.join("traces")), anyhow::Ok)?;
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    // The child may use another working directory, so the path must be absolute.
    let out = out.canonicalize().with_context(|| format!("cannot find {}", out.display()))?;
    let threads = args.threads.map(|threads| threads.to_string());
    let (proofs, counted) = (args.proofs, threads.as_deref().unwrap_or("one a core"));
    let mut paths = String::new();
    for workload in workloads {
        let (name, log_rows) = (workload.spec.name, workload.log_rows);
        let path = out.join(format!("{}-{name}-{log_rows}.trace", prover.name));
        let sized = format!("{name} 2^{log_rows}");
        let title = format!("{} {sized}, {proofs} proofs, threads: {counted}", prover.name);
        eprintln!("{title}");
        let header = Header { version: VERSION, title, min_bytes: args.min_bytes, lost: 0, shape: None };
        let mut environment =
            vec![(PATH.to_owned(), path.display().to_string()), (HEADER.to_owned(), serde_json::to_string(&header)?)];
        environment.extend(threads.clone().map(|threads| ("RAYON_NUM_THREADS".to_owned(), threads)));
        process::prove((&folder, &RECORDER), &environment, (prover.name, name, log_rows), proofs, &interrupt)
            .with_context(|| format!("{sized} was not recorded"))?;
        let (header, records) = protocol::open(&path)?;
        eprintln!("{} records, {} lost: {}", records.count(), header.lost, path.display());
        paths += &format!("{}\n", path.display());
    }
    Ok(paths)
}

/// Options of `replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// Traces written by `record`
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Comma-separated allocators to replay them under, or sets of allocators
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = DEFAULT_SET)]
    allocators: Vec<String>,
    /// Replay a block only while it is at least this large [default: replay every recorded block]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    min_bytes: Option<u64>,
    /// Replays under each allocator, each in its own process; results are medians
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// Replays every trace under every arm. Returns the tables, and whether any arm failed that is not known to fail.
pub(crate) fn replay(args: &ReplayArgs) -> anyhow::Result<(String, bool)> {
    let contestants = &plan::contestants(&args.allocators)?[..];
    // Opens all traces first, so that a misspelled name at the end is reported before the long replays begin.
    for path in &args.traces {
        drop(protocol::open(path).context("nothing was replayed")?);
    }
    let interrupt = Interrupt::on_signals()?;
    let folder = binaries::folder(contestants, &interrupt)?;
    let (mut text, mut failed) = (String::new(), false);
    for path in &args.traces {
        let (header, shape, records) = script(path, args.min_bytes.unwrap_or(0))?;
        check_script(path, &records, shape, header.min_bytes)?;
        // A file in memory vanishes with the driver, even if the driver is killed.
        let file = memfd_create("script", MFdFlags::MFD_CLOEXEC).context("no file for the script")?;
        let file_path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        protocol::write(Path::new(&file_path), &header, records.into_iter())?;
        eprintln!("{}", header.title);
        let row = |contestant| Row { contestant, replays: Vec::new(), settings: Vec::new(), failure: None };
        let mut rows: Vec<_> = contestants.iter().map(row).collect();
        for round in 1..=args.rounds {
            for row in rows.iter_mut().filter(|row| row.failure.is_none()) {
                eprintln!("round {round} of {}: {}", args.rounds, row.contestant.label);
                match row.replay(&folder, &file_path, &interrupt) {
                    Ok(()) => {}
                    Err(Failure::Interrupted) => return Err(Failure::Interrupted.into()),
                    Err(failure) => row.failure = Some(failure.to_string()),
                }
            }
        }
        failed |= rows.iter().any(|row| row.failure.is_some() && row.contestant.arm.known_to_fail.is_none());
        text += &format!("{}\n\n", table(&header, shape, &rows));
    }
    Ok((text, failed))
}

/// Fails if the script is empty, or if replaying it needs more memory than is available.
fn check_script(path: &Path, records: &[Record], shape: Shape, min_bytes: u64) -> anyhow::Result<()> {
    let named = path.display();
    ensure!(shape.records > 0, "{named} holds no block of {min_bytes} bytes or more: there is nothing to replay");
    // The records in the child's table, and the script's file, which is also in memory.
    let script_bytes = size_of_val(records) + shape.records * RECORD_WORDS * size_of::<u64>();
    let needed = shape.live_peak_bytes + script_bytes as u64;
    let available = host::available_bytes().unwrap_or(u64::MAX);
    let [needs, has] = [needed, available].map(format::bytes);
    ensure!(needed <= available, "{named} needs at least {needs} of memory, but {has} are available: not replayed");
    Ok(())
}

/// An arm, with the results of its replays.
struct Row<'a> {
    contestant: &'a Contestant,
    replays: Vec<Sample>,
    /// Settings that the arm's process found in its environment.
    settings: Vec<String>,
    /// Why the arm failed, if it did. It then takes no part in further replays.
    failure: Option<String>,
}

impl Row<'_> {
    /// Replays the script in this file once, in a new process.
    fn replay(&mut self, folder: &Path, script: &str, interrupt: &Interrupt) -> Result<(), Failure> {
        let arm = self.contestant.arm;
        let (identity, replayed) = process::prove((folder, arm), &[], (REPLAY, script, 0), 1, interrupt)?;
        let broken = replayed.iter().find_map(|sample| arm.objection(sample));
        self.settings = identity.settings;
        self.replays.extend(replayed);
        broken.map_or(Ok(()), |reason| Err(Failure::Failed(reason)))
    }

    /// Returns the median over the replays, in multiples of `unit`, with `digits` decimals; a dash if the arm failed or
    /// a replay lacks the value.
    fn median(&self, unit: f64, digits: usize, figure: impl Fn(&Sample) -> Option<u64>) -> String {
        let values: Option<Vec<_>> =
            self.replays.iter().map(|replay| figure(replay).map(|value| value as f64)).collect();
        let median = values.filter(|_| self.failure.is_none()).and_then(|values| stats::median(&values));
        median.map_or_else(|| "-".into(), |value| format!("{:.digits$}", value / unit))
    }

    fn cells(&self, live_peak_bytes: u64) -> Vec<String> {
        let peak = |replay: &Sample| Some(replay.peak_rss_bytes);
        let told = |name| move |replay: &Sample| replay.counters.get(name).or(replay.gauges.get(name)).copied();
        vec![
            self.contestant.label.clone(),
            self.median(live_peak_bytes as f64, 3, peak),
            self.median(MIB, 1, peak),
            format!("{:.1}", live_peak_bytes as f64 / MIB),
            self.median(MIB, 1, told(RSS_AT_LIVE_PEAK)),
            self.median(MIB, 1, |replay| Some(replay.rss_bytes)),
            self.median(MIB, 1, told(RSS_RELEASED)),
            self.median(MIB, 1, told("overflow_bytes")),
            self.median(1.0, 0, told("system_calls")),
            self.median(1.0, 0, |replay| Some(replay.minflt)),
            self.median(1e9, 2, |replay| Some(replay.wall_ns)),
        ]
    }

    /// Returns notes on the arm, one per line: its failure, and its settings.
    fn notes(&self) -> String {
        let (label, arm) = (&self.contestant.label, self.contestant.arm);
        let known = arm.known_to_fail.map_or_else(String::new, |why| format!(" (known to fail: {why})"));
        let failed = self.failure.iter().map(|reason| format!("\n{label}: FAILED: {reason}{known}"));
        // Settings that the arm itself defines need no note.
        let is_own = |setting: &str| arm.environment.iter().any(|(name, value)| setting == format!("{name}={value}"));
        let found = self.settings.iter().filter(|setting| !is_own(setting));
        failed.chain(found.map(|setting| format!("\n{label}: {setting} was set"))).collect()
    }
}

const MIB: f64 = 1048576.0;
const COLUMNS: &str = "allocator|peak RSS / live peak|peak RSS MiB|live peak MiB|RSS at live peak MiB|\
                       RSS after all frees MiB|after release() MiB|fallback MiB|system calls|minor faults|wall s";

/// Formats the table of one trace as Markdown, with a row per arm, and without a final line break.
fn table(header: &Header, shape: Shape, rows: &[Row<'_>]) -> String {
    let lines = rows.iter().map(|row| row.cells(shape.live_peak_bytes));
    let replays = rows.iter().map(|row| row.replays.len()).max().unwrap_or(0);
    let title = format!(
        "{}; {} operations on {} threads, of {} bytes and more; replays of each allocator: {replays}",
        header.title, shape.records, shape.threads, header.min_bytes
    );
    let lost = match header.lost {
        0 => String::new(),
        lost => format!("\n{lost} records were lost, so the replay differs from the recorded run."),
    };
    let notes: String = rows.iter().map(Row::notes).collect();
    let notes = if notes.is_empty() { notes } else { format!("\n{notes}") };
    format!("{title}{lost}\n\n{}{notes}", report::drawn(COLUMNS, lines, Style::Markdown))
}

/// Converts the trace at `path` into a script: its header, its shape and its records. Requests below `min_bytes` are left out.
fn script(path: &Path, min_bytes: u64) -> anyhow::Result<(Header, Shape, Vec<Record>)> {
    let (header, records) = protocol::open(path)?;
    let min_bytes = min_bytes.max(header.min_bytes);
    let mut writer = Writer { min_bytes, ..Writer::default() };
    for (index, record) in records.enumerate() {
        let taken = writer.take(record?);
        taken.with_context(|| format!("record {index} of the trace {} can't be replayed", path.display()))?;
    }
    let (shape, records) = writer.finish();
    Ok((Header { min_bytes, shape: Some(shape), ..header }, shape, records))
}

#[derive(Default)]
struct Writer {
    records: Vec<Record>,
    shape: Shape,
    min_bytes: u64,
    /// The record in the script that allocated each live block or last reallocated it, by the block's address in the recorded process.
    live: HashMap<u64, Record>,
    live_bytes: u64,
    /// The block whose `realloc` each thread has begun: its old address, and its record if the block is known.
    moving: HashMap<u16, (u64, Option<Record>)>,
    free_numbers: Vec<u64>,
}

impl Writer {
    fn take(&mut self, record: Record) -> anyhow::Result<()> {
        match record.op {
            Op::Alloc | Op::AllocZeroed => self.place(record, None)?,
            // A block is unknown if it was allocated before the recording began, or is smaller than the replayed sizes.
            Op::Free => {
                if let Some(block) = self.live.remove(&record.address) {
                    self.free(record, block);
                }
            }
            Op::ReallocFrom => {
                self.moving.insert(record.thread, (record.address, self.live.remove(&record.address)));
            }
            Op::ReallocTo => match (self.moving.remove(&record.thread), record.address) {
                (None, _) | (Some((_, None)), 0) => {}
                // The `realloc` failed in the recorded process, so the block stayed in place.
                (Some((before, Some(block))), 0) => _ = self.live.insert(before, block),
                (Some((_, None)), _) => self.place(Record { op: Op::Alloc, ..record }, None)?,
                (Some((_, block)), _) => self.place(record, block)?,
            },
        }
        Ok(())
    }

    /// Adds an allocation to the script, or a `realloc` if there is a `block`. If the request is below the replayed sizes, adds none, and
    /// frees `block` if there is one.
    fn place(&mut self, step: Record, block: Option<Record>) -> anyhow::Result<()> {
        let size_bytes = step.size_bytes;
        if size_bytes < self.min_bytes {
            block.into_iter().for_each(|block| self.free(step, block));
            return Ok(());
        }
        let align_bytes = block.map_or(step.align_bytes, |block| block.align_bytes);
        let possible = size_bytes > 0 && Layout::from_size_align(size_bytes as usize, align_bytes as usize).is_ok();
        ensure!(possible, "a request for {size_bytes} bytes aligned to {align_bytes} is invalid");
        let known = block.map(|block| block.address).or_else(|| self.free_numbers.pop());
        let number = known.unwrap_or(self.shape.blocks as u64);
        self.shape.blocks = self.shape.blocks.max(number as usize + 1);
        let live_bytes = self.live_bytes - block.map_or(0, |block| block.size_bytes) + size_bytes;
        let made = Record { address: number, align_bytes, ..step };
        self.write(made, live_bytes);
        if let Some(lost) = self.live.insert(step.address, made) {
            // The earlier block must have been freed before its address was handed out again, but that record was lost.
            self.free(step, lost);
        }
        Ok(())
    }

    fn free(&mut self, step: Record, block: Record) {
        self.free_numbers.push(block.address);
        let live_bytes = self.live_bytes - block.size_bytes;
        let Record { thread, proof, in_phase, .. } = step;
        self.write(Record { op: Op::Free, thread, proof, in_phase, ..block }, live_bytes);
    }

    /// Adds a record to the script. `live_bytes` is the number of live bytes after it.
    fn write(&mut self, record: Record, live_bytes: u64) {
        self.live_bytes = live_bytes;
        if live_bytes > self.shape.live_peak_bytes {
            self.shape.live_peak_bytes = live_bytes;
            self.shape.peak_at = self.records.len();
        }
        self.records.push(record);
    }

    /// Adds frees of all remaining live blocks after the last phase, and returns the script.
    fn finish(mut self) -> (Shape, Vec<Record>) {
        let mut left: Vec<_> = self.live.drain().map(|(_, block)| block).collect();
        left.extend(self.moving.drain().filter_map(|(_, (_, block))| block));
        // Sorted by thread, so that each thread frees all its blocks in succession.
        left.sort_unstable_by_key(|block| (block.thread, block.address));
        if let Some(&last) = self.records.last() {
            for block in left {
                self.free(Record { thread: block.thread, in_phase: false, ..last }, block);
            }
        }
        let threads = self.records.iter().map(|record| record.thread).max().unwrap_or(0).into();
        (Shape { records: self.records.len(), threads, ..self.shape }, self.records)
    }
}
