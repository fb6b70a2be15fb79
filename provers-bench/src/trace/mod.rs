//! Recorded allocations. `record` writes the allocations of a prover to a trace. `replay` replays a trace under real
//! allocators on real memory. docs/experiments/placement.md has figures.
//!
//! - `mod`: the arguments of both commands, and `record`
//! - `replay`: has each arm's binary replay a trace, and prints the figures
//! - `script`: a trace prepared for the replay
//!
//! The recording and the replaying process are in [`child`](crate::child), the file format of records in
//! `protocol::records`.

mod replay;
mod script;

use crate::arms::Arm;
use crate::child::recorder::{MIN_BYTES, PATH, TITLE};
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::measure::process;
use crate::plan::values::bytes;
use crate::plan::{self, Contestant, Size, SizedWorkload, UsageError};
use crate::protocol::records;
use crate::workloads::Prover;
use anyhow::Context;
use clap::{ArgMatches, Args, Command};
use replay::ReplayArgs;
use std::fs;
use std::path::{Path, PathBuf};

/// The recorder. It is not an arm of the bench, because its times mean nothing.
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

/// The task of one of the commands.
#[derive(Debug)]
pub(crate) enum Job {
    Record(&'static Prover, Vec<SizedWorkload>, RecordArgs),
    Replay(Vec<Contestant>, ReplayArgs),
}

/// Both commands.
pub(crate) fn commands() -> [Command; 2] {
    [
        RecordArgs::augment_args(Command::new("record"))
            .about("Records the allocations of verified proofs, for replay"),
        ReplayArgs::augment_args(Command::new("replay"))
            .about("Replays recorded allocations under real allocators, on real memory: what is resident")
            .after_help(
                "Settings of allocators are taken from the environment, as in ZK_ALLOC_MIN_BYTES=256.\n\n\
                 Exit code 0: every allocator replayed every trace; 1: one failed that is not known to, the notes say why, \
                 or a trace can't be read; 2: wrong usage; 130: interrupted.",
            ),
    ]
}

/// The job from the arguments `matches` of the command `name`; `None` if the command is none of these.
pub(crate) fn job(provers: &'static [Prover], name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    match name {
        "record" => Some(plan::parsed(matches).and_then(|args: RecordArgs| {
            let prover = plan::find("prover", &args.prover, provers, |prover| prover.name)?;
            let size = args.log_rows.map_or(Size::Own, Size::LogRows);
            let workloads = plan::workloads(prover, &args.workloads, size)?;
            Ok(Job::Record(prover, workloads, args))
        })),
        "replay" => Some(plan::parsed(matches).and_then(|args: ReplayArgs| {
            let contestants = plan::contestants(&args.allocators)?;
            Ok(Job::Replay(contestants, args))
        })),
        _ => None,
    }
}

/// Runs a command. Returns the text for stdout, and whether a part of the command failed.
pub(crate) fn run(job: &Job) -> anyhow::Result<(String, bool)> {
    match job {
        Job::Record(prover, workloads, args) => Ok((record(prover, workloads, args)?, false)),
        Job::Replay(contestants, args) => replay::replay(contestants, args),
    }
}

/// Records every workload. Returns the paths of the traces, as lines. An interrupted recording leaves the traces before
/// it.
fn record(prover: &Prover, workloads: &[SizedWorkload], args: &RecordArgs) -> anyhow::Result<String> {
    let interrupt = Interrupt::on_signals()?;
    let recorder = Contestant { label: RECORDER.name.into(), arm: &RECORDER };
    let folder = binaries::folder(&[recorder], &interrupt)?;
    let out = args.out.clone().unwrap_or_else(|| binaries::measured_folder(&folder).join("traces"));
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    // The child may use another working directory, so the path must be absolute.
    let out = out.canonicalize().with_context(|| format!("cannot find {}", out.display()))?;
    let mut paths = String::new();
    for workload in workloads {
        let path = out.join(format!("{}-{}-{}.trace", prover.name, workload.spec.name, workload.log_rows));
        record_one(prover, workload, args, &folder.join(RECORDER.binary), &path, &interrupt)?;
        paths += &format!("{}\n", path.display());
    }
    Ok(paths)
}

fn record_one(
    prover: &Prover,
    workload: &SizedWorkload,
    args: &RecordArgs,
    binary: &Path,
    path: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let sized = format!("{} 2^{}", workload.spec.name, workload.log_rows);
    let threads = args.threads.map(|threads| threads.to_string());
    let (prover, proofs, counted) = (prover.name, args.proofs, threads.as_deref().unwrap_or("one a core"));
    let title = format!("{prover} {sized}, {proofs} proofs, threads: {counted}");
    eprintln!("{title}");
    let mut environment = vec![
        (PATH.to_owned(), path.display().to_string()),
        (TITLE.to_owned(), title),
        (MIN_BYTES.to_owned(), args.min_bytes.to_string()),
    ];
    environment.extend(threads.map(|threads| ("RAYON_NUM_THREADS".to_owned(), threads)));
    process::prove(binary, &environment, (RECORDER.name, prover, *workload), proofs, interrupt)
        .with_context(|| format!("{sized} was not recorded"))?;
    let trace = records::read(path)?;
    eprintln!("{} records, {} lost: {}", trace.records.len(), trace.header.lost, path.display());
    Ok(())
}
