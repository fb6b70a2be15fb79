//! The driver: from a command line to an exit code.

use crate::cli::{self, Asked};
use crate::compare::{self, Job};
use crate::exec;
use crate::host;
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::measure::process::Failure;
use crate::plan::Plan;
use crate::profile;
use crate::report;
use crate::results::record::Run;
use crate::run::{self, print};
use crate::trace;
use crate::workloads::Prover;
use std::env;
use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

/// An arm failed, or the run could not be made.
const FAILED: u8 = 1;
/// The command line is invalid, or the baseline cannot be used.
const USAGE: u8 = 2;
/// Ended by Ctrl-C: 128 plus the number of SIGINT, as in shells.
const INTERRUPTED: u8 = 130;

/// The `main` of a driver for `provers`, which [`driver!`](crate::driver!) writes. The arms' binaries are in the
/// driver's folder, and call [`crate::child::main`] with the same provers. `package_folder` holds the baseline of
/// `check`.
///
/// Exit codes:
///
/// - 0: every arm proved in every round, except arms that are known to fail.
/// - 1: another arm failed, as its row says; nothing could be run or read; or a figure is worse than its baseline.
/// - 2: wrong usage, or an unusable baseline.
/// - 130: interrupted. The measured part is written.
pub fn main(provers: &'static [Prover], package_folder: &str) -> ExitCode {
    match cli::parse(provers, env::args_os()) {
        Ok(Asked::Text(text)) => said(Ok(text)),
        Ok(Asked::Trace(job)) => traced(trace::run(&job)),
        Ok(Asked::Report(job)) => {
            said(run::runs_folder(job.out.as_deref()).and_then(|folder| report::run(&job, &folder)))
        }
        Ok(Asked::Host(job)) => said(host::run(&job)),
        Ok(Asked::Profile(job)) => said(profile::run(&job)),
        Ok(Asked::Run(plan)) => ended(proved(&plan)),
        #[cfg(feature = "profile")]
        Ok(Asked::Exec(job)) if job.profile => {
            said(Interrupt::on_signals().and_then(|interrupt| exec::profile(&job, &interrupt)))
        }
        Ok(Asked::Exec(job)) => ended(executed(&job)),
        Ok(Asked::Compare(Job::Runs(runs))) => said(runs.text()),
        Ok(Asked::Compare(Job::Gate(job))) => match compare::Gate::open(&job, Path::new(package_folder)) {
            Ok(gate) => ended(held(gate, &job)),
            Err(unusable) => misused(&unusable),
        },
        Err(error) => misused(&error),
    }
}

/// Ends a command that only prints text, which it lacks if it was interrupted.
fn said(text: anyhow::Result<String>) -> ExitCode {
    match text {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error),
    }
}

/// Ends a command whose text may report failures.
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
    if matches!(error.downcast_ref(), Some(Failure::Interrupted)) {
        return INTERRUPTED.into();
    }
    eprintln!("prove-bench: {error:#}");
    FAILED.into()
}

fn proved(plan: &Plan) -> anyhow::Result<u8> {
    let interrupt = Interrupt::on_signals()?;
    let folder = binaries::folder(&plan.contestants, &interrupt)?;
    Ok(code_of(&run::run(plan, &folder, &interrupt)?))
}

fn executed(job: &exec::Job) -> anyhow::Result<u8> {
    Ok(code_of(&exec::run(job, &Interrupt::on_signals()?)?))
}

fn code_of(run: &Run) -> u8 {
    match (run.interrupted, run.any_failed()) {
        (true, _) => INTERRUPTED,
        (false, true) => FAILED,
        (false, false) => 0,
    }
}

fn held(gate: compare::Gate<'_>, job: &compare::Check) -> anyhow::Result<u8> {
    let interrupt = Interrupt::on_signals()?;
    let folder = binaries::folder(job.contestants(), &interrupt)?;
    let checked = gate.hold(&folder, &interrupt)?;
    print(&checked.text);
    Ok(match (checked.interrupted, checked.passed) {
        (true, _) => INTERRUPTED,
        (false, false) => FAILED,
        (false, true) => 0,
    })
}
