//! Measures a plan point by point, and shows and writes the results.
//!
//! - `mod`: a run and its folder
//! - `rounds`: rounds in random order, for proofs and for commands
//! - `lockstep`: the proofs of all arms in a round, alone, or at fixed times
//! - `process`: requests to one child and its answers, and the handling of Ctrl-C
//! - `binaries`: builds the arms' programs

use crate::plan::{Plan, Point};
use crate::report::{self, Style};
use crate::results::{Run, SampleLog, Timed, predictions};
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
pub(crate) use rounds::{ArmRunner, Output, Progress, Rounds, Schedule, Trial};

/// Runs a plan with the arms' binaries in `folder`, shows its tables and writes its files.
pub(crate) fn run(plan: &Plan, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Run> {
    let (run_folder, name) = new_folder(plan.measured.out.as_deref(), plan.prover.name)?;
    let of_an_arm = |point: &Point| lockstep::schedule(plan, point.workload.spec, None).trials();
    let proofs = plan.points.iter().map(of_an_arm).sum::<u64>() * plan.contestants.len() as u64;
    let samples = SampleLog::create(&run_folder, name.clone())?;
    let mut output = Output { progress: Progress::new(proofs, Timed::Proofs.noun()), samples };
    let mut run = Run {
        threads: plan.threads,
        concurrent: plan.concurrent,
        sweep: plan.sweep,
        ..Run::begin(name, plan.prover.name, plan.measured.seed, plan.rounds)
    };
    let most = plan.points.iter().map(|point| point.threads).max().unwrap_or(0);
    if most > run.machine.cores {
        output.progress.note(&format!("{most} threads on {} cores: times will scatter", run.machine.cores));
    }
    let end = plan.measured.max_time.map(|time| Instant::now() + time);
    for (index, &point) in plan.points.iter().enumerate() {
        if interrupt.is_raised() {
            break;
        }
        // The remaining points share the remaining time evenly.
        let left = (plan.points.len() - index) as u32;
        let deadline = end.map(|end| Instant::now() + end.saturating_duration_since(Instant::now()) / left);
        let result = lockstep::run(plan, folder, point, deadline, interrupt, &mut output)?;
        if !plan.measured.json {
            let section = report::section(&run, &result, Style::Terminal);
            output.progress.aside(|| print(&format!("{section}\n")));
        }
        run.workloads.push(result);
        run.interrupted = interrupt.is_raised();
        // Written after each workload, so that a run that is cut short retains the earlier ones.
        report::write(&run_folder, &run)?;
    }
    run.interrupted = interrupt.is_raised();
    run.predictions = plan.predict.map_or_else(Vec::new, |log_rows| predictions(&run.workloads, log_rows));
    report::write(&run_folder, &run)?;
    output.progress.finish();
    conclude(&run, &run_folder, plan.measured.json, &report::curves(&run, Style::Terminal))?;
    Ok(run)
}

/// Prints the final output of a run whose files are in `folder`: the result as JSON, or `text`.
pub(crate) fn conclude(run: &Run, folder: &Path, json: bool, text: &str) -> anyhow::Result<()> {
    let page = folder.join(report::REPORT);
    let written = format!("{}\nsamples.csv, result.json and table.md are beside it\n", page.display());
    if json {
        print(&report::json(run)?);
        eprint!("{written}");
    } else {
        print(&format!("{text}{written}"));
    }
    Ok(())
}

/// Creates the folder of a new run of this prover or command, and returns it with its name. The name has the start
/// time in UTC and the prover, and a number if two runs start in one second.
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

/// The folder of all runs: `out`, or a place in cargo's target directory.
pub(crate) fn runs_folder(out: Option<&Path>) -> anyhow::Result<PathBuf> {
    out.map_or_else(binaries::measured_folder, |out| Ok(out.to_owned()))
}

/// Writes `text` to stdout. Ignores errors: a reader that closed the pipe (`| head`) must not stop the measurement.
pub(crate) fn print(text: &str) {
    let _ = stdout().write_all(text.as_bytes());
    let _ = stdout().flush();
}
