//! An `exec` run from its job to its files: the arms of this machine, their measurement, and the advice.

use super::advice;
use super::cli::Job;
use super::libraries::{self, Entrant, OUR_FILE, OUR_PACKAGE};
use super::paste;
use super::reaped;
use super::session::Session;
use super::surroundings::Surroundings;
use super::target::Target;
use crate::machine::Machine;
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::report::{self, Style};
use crate::results::record::{self, Run, WorkloadResult};
use crate::results::samples::SampleLog;
use crate::results::timed::Timed;
use crate::together::Concurrent;
use anyhow::bail;
use std::path::PathBuf;
use std::{env, fs};

/// Runs the command under all arms, shows the table and the advice, and writes the run's files.
pub(crate) fn run(job: &Job, interrupt: &Interrupt) -> anyhow::Result<Run> {
    let target = Target::of(job.command.first().map_or("".as_ref(), |word| word.as_os_str()))?;
    if let Some(obstacle) = &target.obstacle {
        bail!("{obstacle}; so there is nothing to compare");
    }
    let mut surroundings = Surroundings::observe();
    surroundings.remarks.extend(target.remark.clone());
    let entrants = entrants(job, &surroundings.preloaded);
    reaped::adopt_orphans()?;
    let machine = Machine::observe();
    let name = target.name();
    let (folder, run_name) = crate::run::new_folder(job.out.as_deref(), &format!("exec-{name}"))?;
    let samples = SampleLog::create(&folder, run_name.clone())?;
    let mut session = Session::new(job, &name, &entrants, surroundings, samples, interrupt);
    if let Err(error) = session.rehearse() {
        // Nothing was measured, so the folder has no use. If it cannot be removed, it stays.
        let _ = fs::remove_dir_all(&folder);
        return Err(error);
    }
    let ended = session.rounds()?;
    let Session { progress, seats, baseline, remarks, .. } = session;
    let mut arms: Vec<_> = seats.into_iter().map(|seat| seat.result).collect();
    record::summarise(&mut arms, baseline, job.seed);
    let workload = WorkloadResult {
        workload: name.clone(),
        about: paste::command_line(&job.command),
        timed: if job.each.is_some() { Timed::Intervals } else { Timed::Runs },
        log_rows: 0,
        threads: 0,
        live_peak_bytes: None,
        baseline: arms[baseline].label.clone(),
        arms,
        ended,
    };
    let mut run = Run {
        schema: record::SCHEMA,
        run: run_name,
        prover: name,
        command_line: env::args().collect(),
        seed: job.seed,
        rounds: job.rounds,
        threads: 0,
        concurrent: Concurrent::default(),
        sweep: None,
        machine,
        workloads: Vec::new(),
        interrupted: interrupt.is_raised(),
        advice: None,
    };
    run.advice = Some(advice::of(&run, &workload, &entrants, &job.command, &remarks));
    run.workloads.push(workload);
    report::write(&folder, &run)?;
    progress.finish();
    let section = |workload| report::section(&run, workload, Style::Terminal);
    let table = run.workloads.iter().map(section).collect::<String>();
    crate::run::conclude(&run, &folder, job.json, &report::with_advice(&run, &table, Style::Terminal))?;
    Ok(run)
}

/// The arms. Each preloads its own library before the `preloaded` ones.
pub(super) fn entrants(job: &Job, preloaded: &str) -> Vec<Entrant> {
    let ours = || -> Result<PathBuf, String> {
        let built = binaries::library(OUR_PACKAGE, OUR_FILE);
        built.or_else(|error| {
            let installed = libraries::found(&[OUR_FILE]);
            installed.ok_or_else(|| format!("{error:#}, and --library PATH names one that lies elsewhere"))
        })
    };
    libraries::entrants(&job.allocators, &job.libraries, preloaded, ours)
}
