//! The output of a run. Tables and files are made from the recorded run, so they can be regenerated from `result.json`.
//!
//! - `runs`: finds and reads a run
//! - `splice`: tables of the documentation
//! - `html`: report.html; `profile`: the pages of profiles
//! - `charts`: the charts of a run; `chart`: draws each
//! - `text`: tables and notes, in Markdown and on the terminal
//! - `facts`: machine, build and command

mod chart;
mod charts;
pub(crate) mod facts;
mod html;
mod profile;
mod runs;
mod splice;
mod text;

#[cfg(feature = "profile")]
pub(crate) use profile::{FaultsPage, faults_page};
pub(crate) use profile::{ProfilePage, profile_page, profile_picture};
pub(crate) use text::{Style, curves, drawn, inert, section, with_advice};

use crate::plan::{self, UsageError};
use crate::results::record::Run;
use anyhow::{Context, bail};
use clap::{ArgMatches, Args, Command};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// File name of a run's HTML report.
pub(crate) const REPORT: &str = "report.html";
/// File name of a run's tables in Markdown.
const TABLE: &str = "table.md";

pub(crate) const HOW_RUNS_ARE_NAMED: &str = "A RUN is a run's folder, its result.json, the name of a folder among the runs, or `latest`.\n\n\
                                  Exit code 0: done; 1: no such run, or not one that can be read; 2: wrong usage.";

/// Options of `report`.
#[derive(Args, Debug)]
pub(crate) struct Job {
    /// Run to report on
    #[arg(value_name = "RUN", required_unless_present = "splice")]
    run: Option<String>,
    /// Save RUN as docs/data/runs/NAME.json and fill the tables of the documentation; without RUN and NAME, refill all
    /// tables from the saved runs
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    splice: Option<String>,
    /// Write nothing; fail if a table of the documentation differs from its run
    #[arg(long, requires = "splice")]
    check: bool,
    /// Repository with the documentation to fill
    #[arg(long, value_name = "DIR", default_value = ".")]
    docs: PathBuf,
    /// Folder of the runs, the same as --out of the runs themselves [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// The command `report`.
pub(crate) fn command() -> Command {
    Job::augment_args(Command::new("report"))
        .about(
            "Writes a run's report.html and table.md again, from its result.json; or the tables of the documentation",
        )
        .after_help(HOW_RUNS_ARE_NAMED)
}

/// The job from the arguments `matches` of the command `name`; `None` if that is another command.
pub(crate) fn job(name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    let checked = |job: Job| match (&job.run, job.splice.as_deref()) {
        (Some(_), Some("")) => Err(UsageError::Other("--splice with a RUN takes the NAME it is kept under".into())),
        (None, Some(name)) if !name.is_empty() => {
            Err(UsageError::Other(format!("--splice {name}: which RUN? report RUN --splice {name}")))
        }
        _ => Ok(job),
    };
    (name == "report").then(|| plan::parsed(matches).and_then(checked))
}

/// Creates the folder of a new run under `parent`. Its name is the start in UTC and the prover, with a number if two
/// runs start in one second.
pub(crate) fn create_folder(parent: &Path, prover: &str) -> anyhow::Result<PathBuf> {
    let start = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%SZ").to_string();
    let context = || format!("cannot make a folder for the run in {}", parent.display());
    fs::create_dir_all(parent).with_context(context)?;
    for number in 1_u32.. {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let folder = parent.join(format!("{start}-{prover}{suffix}"));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(context),
        }
    }
    unreachable!("the numbers do not run out");
}

/// Writes `result.json` and the reports made from it into `folder`.
pub(crate) fn write(folder: &Path, run: &Run) -> anyhow::Result<()> {
    write_file(folder, "result.json", &json(run)?)?;
    write_reports(folder, run)
}

/// The text of `result.json`.
pub(crate) fn json(run: &Run) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(run).context("cannot express the result as JSON")? + "\n")
}

/// The run called `name`, which may lie in `runs_folder`.
pub(crate) fn read(name: &str, runs_folder: &Path) -> anyhow::Result<Run> {
    runs::read(&runs::find(name, runs_folder)?)
}

/// Runs `job` on the runs in `runs_folder` and returns the text for stdout.
pub(crate) fn run(job: &Job, runs_folder: &Path) -> anyhow::Result<String> {
    match (&job.run, &job.splice) {
        (Some(run), None) => {
            let folder = runs::find(run, runs_folder)?;
            write_reports(&folder, &runs::read(&folder)?)?;
            Ok(format!("{}\n{}\n", folder.join(REPORT).display(), folder.join(TABLE).display()))
        }
        (run, name) => {
            if let (Some(run), Some(name)) = (run, name) {
                splice::save(&job.docs, name, read(run, runs_folder)?)?;
            }
            spliced(splice::differing(&job.docs)?, job.check)
        }
    }
}

/// Writes the pages that differ from their runs. For a check, fails with their names instead.
fn spliced(differing: Vec<splice::Page>, check: bool) -> anyhow::Result<String> {
    let names: Vec<_> = differing.iter().map(|page| page.path.display().to_string()).collect();
    if check && !differing.is_empty() {
        bail!("{} differ from the runs that they name: `prove-bench report --splice` fills them", names.join(", "));
    }
    for page in differing {
        fs::write(&page.path, page.text).with_context(|| format!("cannot write {}", page.path.display()))?;
    }
    Ok(names.into_iter().map(|name| name + "\n").collect())
}

fn write_reports(folder: &Path, run: &Run) -> anyhow::Result<()> {
    write_file(folder, TABLE, &format!("{}\n{}\n", text::markdown(run), text::LEGEND))?;
    write_file(folder, REPORT, &html::page(run))
}

fn write_file(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::record::{self, Timed, tests::arm};
    use crate::results::record::{ArmResult, Ended, Outcome, SCHEMA, WorkloadResult};
    use crate::together::Concurrent;

    /// One cold proof and eight warm rounds, all of 100 ms.
    pub(crate) const EVEN: [u64; 9] = [100_000_000; 9];

    /// A workload of finished arms with these times; the first is the baseline.
    pub(crate) fn workload(times: &[(&str, &[u64])]) -> WorkloadResult {
        workload_of(times.iter().map(|(label, wall_ns)| arm(label, Outcome::Finished, wall_ns)).collect())
    }

    /// A workload of these arms; the first is the baseline.
    pub(crate) fn workload_of(mut arms: Vec<ArmResult>) -> WorkloadResult {
        record::summarise(&mut arms, 0, 1);
        WorkloadResult {
            workload: "poseidon2".into(),
            about: "hashes".into(),
            timed: Timed::Proofs,
            log_rows: 15,
            threads: 2,
            live_peak_bytes: None,
            baseline: arms[0].label.clone(),
            arms,
            ended: Ended::AllRounds,
        }
    }

    /// A run of these workloads, on this machine.
    pub(crate) fn run(workloads: Vec<WorkloadResult>) -> Run {
        Run {
            schema: SCHEMA,
            run: "2026-01-02T03-04-05Z-plonky3".into(),
            prover: "plonky3".into(),
            command_line: vec!["prove-bench".into(), "plonky3".into()],
            seed: 1,
            rounds: 8,
            threads: 2,
            concurrent: Concurrent::default(),
            sweep: None,
            machine: Machine::observe(),
            workloads,
            interrupted: false,
            advice: None,
        }
    }
}
