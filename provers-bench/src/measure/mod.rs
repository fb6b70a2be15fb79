//! Measures a plan point by point, and prints and writes the results.
//!
//! - this module: a run and its folder
//! - `rounds`: runs rounds of proofs or of a command, with the arms in random order
//! - `lockstep`: makes the arms' proofs: in lockstep, alone, or at fixed times
//! - `process`: exchanges messages with a child, and handles Ctrl-C
//! - `binaries`: builds the arms' programs

use crate::plan::{MeasuredArgs, Plan, Point};
use crate::report::{self, Style};
use crate::results::{Run, SampleLog, predictions};
use anyhow::Context;
use std::fs;
use std::io::{ErrorKind, Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(crate) mod binaries;
pub(crate) mod lockstep;
pub(crate) mod process;
pub(crate) mod rounds;

pub(crate) use process::{ChildProcess, Failure, Interrupt};
pub(crate) use rounds::{ArmRunner, Progress, Rounds, Schedule, Trial};

/// Runs a plan with the arms' binaries in `folder`, prints the tables and writes the files.
pub(crate) fn run(plan: &Plan, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Run> {
    let (args, measured) = (&plan.args, &plan.args.measured);
    let rounds = |point: &Point| lockstep::schedule(plan, point.workload.spec, None).trials() + u64::from(args.alone);
    let mut recording =
        Recording::begin(plan.prover.name, measured, args.rounds, plan.points.iter().map(rounds).sum())?;
    let run = &mut recording.run;
    (run.threads, run.concurrent, run.sweep) = (args.threads(), args.concurrent, plan.sweep);
    let most = plan.points.iter().map(|point| point.threads).max().unwrap_or(0);
    if most > run.machine.cores {
        let note = format!("{most} threads on {} cores: times will scatter", run.machine.cores);
        recording.progress.note(&note);
    }
    let end = measured.max_time.map(|time| Instant::now() + time);
    for (index, &point) in plan.points.iter().enumerate() {
        if interrupt.is_raised() {
            break;
        }
        // The remaining points share the remaining time evenly.
        let left = (plan.points.len() - index) as u32;
        let deadline = end.map(|end| Instant::now() + end.saturating_duration_since(Instant::now()) / left);
        let result = lockstep::run(plan, folder, point, deadline, interrupt, &mut recording)?;
        if !measured.json {
            let section = report::section(&recording.run, &result, Style::Terminal);
            recording.progress.aside(|| print(&format!("{section}\n")));
        }
        // Written after each workload, so a run that is cut short retains the earlier ones.
        recording.run.workloads.push(result);
        recording.write(interrupt)?;
    }
    let run = &mut recording.run;
    run.predictions = args.predict.map_or_else(Vec::new, |log_rows| predictions(&run.workloads, log_rows));
    let curves = report::curves(run, Style::Terminal);
    recording.end(interrupt, measured.json, &curves)
}

/// A run that is being recorded: its folder, its record, and its progress.
pub(crate) struct Recording {
    folder: PathBuf,
    pub(crate) run: Run,
    pub(crate) progress: Progress,
    pub(crate) samples: SampleLog,
}

impl Recording {
    /// Creates the folder and the record of a run of `prover`, which may be a command. `rounds` is the number of warm rounds per workload,
    /// and `all_rounds` the total number of rounds, for the progress display.
    pub(crate) fn begin(prover: &str, measured: &MeasuredArgs, rounds: u32, all_rounds: u64) -> anyhow::Result<Self> {
        let (folder, name) = new_folder(measured.out.as_deref(), prover)?;
        let samples = SampleLog::create(&folder, name.clone())?;
        let run = Run::begin(name, prover, measured.seed, rounds);
        Ok(Self { folder, run, progress: Progress::new(all_rounds), samples })
    }

    fn write(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.run.interrupted = interrupt.is_raised();
        report::write(&self.folder, &self.run)
    }

    /// Writes the files. Prints the result as JSON if `json` is set, and `text` otherwise.
    pub(crate) fn end(mut self, interrupt: &Interrupt, json: bool, text: &str) -> anyhow::Result<Run> {
        self.write(interrupt)?;
        self.progress.finish();
        let page = self.folder.join(report::REPORT);
        let written = format!("{}\nsamples.csv, result.json and table.md are beside it\n", page.display());
        if json {
            print(&report::json(&self.run)?);
            eprint!("{written}");
        } else {
            print(&format!("{text}{written}"));
        }
        Ok(self.run)
    }
}

/// Creates the folder of a new run of this prover or command, and returns its path and its name. The name consists of
/// the start time in UTC and the prover, and a number if two runs start in the same second.
pub(crate) fn new_folder(out: Option<&Path>, prover: &str) -> anyhow::Result<(PathBuf, String)> {
    let parent = runs_folder(out)?;
    let start = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%SZ").to_string();
    let context = || format!("cannot make a folder for the run in {}", parent.display());
    fs::create_dir_all(&parent).with_context(context)?;
    for number in 1_u32.. {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let name = format!("{start}-{prover}{suffix}");
        match fs::create_dir(parent.join(&name)) {
            Ok(()) => return Ok((parent.join(&name), name)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(context),
        }
    }
    unreachable!("the numbers do not run out");
}

/// Returns the folder in which runs create their folders: `out`, or a folder in cargo's target directory.
pub(crate) fn runs_folder(out: Option<&Path>) -> anyhow::Result<PathBuf> {
    out.map_or_else(binaries::measured_folder, |out| Ok(out.to_owned()))
}

/// Writes `text` to stdout. Ignores errors: a reader that closed the pipe (`| head`) must not stop the measurement.
pub(crate) fn print(text: &str) {
    let _ = stdout().write_all(text.as_bytes());
    let _ = stdout().flush();
}
