//! The driver: from a command line to tables, files and an exit code.

use crate::check;
use crate::cli::{self, Asked};
use crate::machine::Machine;
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::measure::lockstep::Lockstep;
use crate::measure::progress::Progress;
use crate::measure::schedule::Schedule;
use crate::plan::{Contestant, Plan, Point};
use crate::report::{self, Style};
use crate::results::record::{self, Run};
use crate::results::samples::SampleLog;
use crate::trace;
use crate::workloads::Prover;
use anyhow::Context;
use std::env;
use std::fmt::Display;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Some arm failed, or the run could not be made.
const FAILED: u8 = 1;
/// The command line cannot be followed.
const USAGE: u8 = 2;
/// Ended by Ctrl-C: 128 and the number of SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;

/// The `main` of a driver for `provers`, which [`driver!`](crate::driver!) writes. Its arms' binaries lie beside it, and
/// call [`crate::child::main`] with the same provers. In `package_folder` lies the baseline of `check`.
///
/// Exit code 0: every arm proved in every round, but for those that are known to fail. 1: another arm failed, as its row
/// says, or nothing could be run or read; a figure is worse than its baseline. 2: wrong usage, an unusable baseline.
/// 130: interrupted; what was measured is written.
pub fn main(provers: &'static [Prover], package_folder: &str) -> ExitCode {
    match cli::parse(provers, env::args_os()) {
        Ok(Asked::Text(text)) => said(Ok(text)),
        Ok(Asked::Trace(job)) => traced(trace::run(&job)),
        Ok(Asked::Report(job)) => said(runs_folder(job.out()).and_then(|folder| report::run(&job, &folder))),
        Ok(Asked::Run(plan)) => ended(run(&plan)),
        Ok(Asked::Check(job)) => match check::Gate::open(&job, Path::new(package_folder)) {
            Ok(gate) => ended(hold(gate, &job)),
            Err(unusable) => misused(&unusable),
        },
        Err(error) => misused(&error),
    }
}

/// Ends a command whose whole work is a text.
fn said(text: anyhow::Result<String>) -> ExitCode {
    match text {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(error) if error.is::<trace::Interrupted>() => INTERRUPTED.into(),
        Err(error) => failed(&error),
    }
}

/// Ends a command whose text may tell of failures.
fn traced(told: anyhow::Result<(String, bool)>) -> ExitCode {
    match told {
        Ok((text, true)) => {
            print(&text);
            FAILED.into()
        }
        told => said(told.map(|(text, _)| text)),
    }
}

fn ended(code: anyhow::Result<u8>) -> ExitCode {
    code.map_or_else(|error| failed(&error), ExitCode::from)
}

fn misused(error: &dyn Display) -> ExitCode {
    eprintln!("prove-bench: {error}");
    USAGE.into()
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("prove-bench: {error:#}");
    FAILED.into()
}

fn run(plan: &Plan) -> anyhow::Result<u8> {
    let interrupt = Interrupt::on_signals()?;
    let Some(folder) = arms(&plan.contestants, &interrupt)? else { return Ok(INTERRUPTED) };
    let run = measure(plan, &folder, &interrupt)?;
    Ok(match (run.interrupted, run.any_failed()) {
        (true, _) => INTERRUPTED,
        (false, true) => FAILED,
        (false, false) => 0,
    })
}

fn hold(gate: check::Gate<'_>, job: &check::Job) -> anyhow::Result<u8> {
    let interrupt = Interrupt::on_signals()?;
    let Some(folder) = arms(job.contestants(), &interrupt)? else { return Ok(INTERRUPTED) };
    let outcome = gate.hold(|plan| measure(plan, &folder, &interrupt))?;
    print(&outcome.text);
    Ok(match (outcome.interrupted, outcome.passed) {
        (true, _) => INTERRUPTED,
        (false, false) => FAILED,
        (false, true) => 0,
    })
}

/// The folder of the arms' binaries; `None` if the user stopped their build.
fn arms(contestants: &[Contestant], interrupt: &Interrupt) -> anyhow::Result<Option<PathBuf>> {
    match binaries::folder(contestants) {
        // Ctrl-C ends cargo as well.
        Err(_) if interrupt.is_raised() => Ok(None),
        folder => folder.map(Some),
    }
}

/// Runs a plan with the arms in `folder`, shows its tables and writes its files.
fn measure(plan: &Plan, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Run> {
    let machine = Machine::observe();
    let run_folder = report::create_folder(&runs_folder(plan.out.as_deref())?, plan.prover.name)?;
    let name = run_folder.file_name().context("the run's folder has no name")?.to_string_lossy().into_owned();
    let of_an_arm = |point: &Point| Schedule::new(plan, point.workload.spec, None).proofs();
    let proofs = plan.points.iter().map(of_an_arm).sum::<u64>() * plan.contestants.len() as u64;
    let mut lockstep = Lockstep {
        plan,
        folder: folder.to_owned(),
        interrupt: interrupt.clone(),
        progress: Progress::new(proofs),
        samples: SampleLog::create(&run_folder, name.clone())?,
    };
    warn_of_oversubscription(plan, &machine, &lockstep.progress);
    let mut run = Run {
        schema: record::SCHEMA,
        run: name,
        prover: plan.prover.name.into(),
        command_line: env::args().collect(),
        seed: plan.seed,
        rounds: plan.rounds,
        threads: plan.threads,
        sweep: plan.sweep,
        machine,
        workloads: Vec::new(),
        interrupted: false,
    };
    let end = plan.max_time.map(|time| Instant::now() + time);
    for (index, &point) in plan.points.iter().enumerate() {
        if interrupt.is_raised() {
            break;
        }
        // What one point leaves of its share, the others have.
        let deadline = end.map(|end| Instant::now() + share(end, plan.points.len() - index));
        let result = lockstep.run(point, deadline)?;
        if !plan.json {
            let section = report::section(&run, &result, Style::Terminal);
            lockstep.progress.aside(|| print(&format!("{section}\n")));
        }
        run.workloads.push(result);
        run.interrupted = interrupt.is_raised();
        // After each workload, so that a run cut short keeps those before.
        report::write(&run_folder, &run)?;
    }
    run.interrupted = interrupt.is_raised();
    report::write(&run_folder, &run)?;
    lockstep.progress.finish();
    let page = run_folder.join(report::REPORT);
    let written = format!("{}\nsamples.csv, result.json and table.md are beside it\n", page.display());
    if plan.json {
        print(&report::json(&run)?);
        eprint!("{written}");
    } else {
        print(&(report::curves(&run, Style::Terminal) + &written));
    }
    Ok(run)
}

/// Where the runs' folders lie: `out`, or a place in cargo's target directory.
fn runs_folder(out: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(out) = out {
        return Ok(out.to_owned());
    }
    let driver = env::current_exe().context("cannot tell where prove-bench lies")?;
    let target = driver.parent().and_then(binaries::target_folder);
    Ok(target.unwrap_or(Path::new("target")).join("prove-bench"))
}

/// Of the time to `end`, what one of `points` may take.
fn share(end: Instant, points: usize) -> Duration {
    end.saturating_duration_since(Instant::now()) / u32::try_from(points).unwrap_or(u32::MAX)
}

fn warn_of_oversubscription(plan: &Plan, machine: &Machine, progress: &Progress) {
    let most = plan.points.iter().map(|point| point.threads).max().unwrap_or(0);
    if most > machine.cores {
        progress.note(&format!("{most} threads on {} cores: times will scatter", machine.cores));
    }
}

/// A reader that went away (`| head`) is no reason to stop measuring.
fn print(text: &str) {
    let _ = stdout().write_all(text.as_bytes());
    let _ = stdout().flush();
}
