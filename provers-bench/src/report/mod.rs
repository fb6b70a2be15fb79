//! Generates the output of a run. Tables and files are generated from the recorded run, so `result.json` is enough to regenerate them.
//!
//! - `splice`: the tables of the documentation
//! - `html`: report.html; `profile`: the pages of profiles
//! - `chart`: the charts of a run
//! - `text`: tables, notes and facts, in Markdown and on the terminal

use crate::plan::UsageError;
use crate::results::{Run, SCHEMA};
use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

mod chart;
mod html;
mod profile;
mod splice;
mod text;

#[cfg(feature = "profile")]
pub(crate) use profile::{FunctionRow, FunctionTable, faults_page};
pub(crate) use profile::{profile_page, profile_picture, profile_text};
pub(crate) use text::{Style, command, commit, curves, differences, drawn, inert, known, section, with_advice, words};

/// File name of a run's HTML report.
pub(crate) const REPORT: &str = "report.html";
/// File name of a run's tables in Markdown.
const TABLE: &str = "table.md";

/// Options of `report`.
#[derive(Args, Debug)]
pub(crate) struct Job {
    /// Run to report on
    #[arg(value_name = "RUN", required_unless_present = "splice")]
    run: Option<String>,
    /// Save RUN as docs/data/runs/NAME.json and fill the tables of the documentation in the current directory; without RUN and NAME, refill all
    /// tables from the saved runs
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    splice: Option<String>,
    /// Write nothing; fail if a table of the documentation differs from its run
    #[arg(long, requires = "splice")]
    check: bool,
    /// Folder of the runs, as passed to them with --out [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Writes `result.json` and the reports generated from it into `folder`.
pub(crate) fn write(folder: &Path, run: &Run) -> anyhow::Result<()> {
    write_file(folder, RESULT, &json(run)?)?;
    write_reports(folder, run)
}

/// Returns the text of `result.json`.
pub(crate) fn json(run: &Run) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(run).context("cannot express the result as JSON")? + "\n")
}

/// Reads the run that [`find`] finds for `name`.
pub(crate) fn read(name: &str, runs_folder: &Path) -> anyhow::Result<Run> {
    read_file(&find(name, runs_folder)?.join(RESULT))
}

/// Runs the command `report` and returns the text for stdout.
pub(crate) fn run(job: &Job, runs_folder: &Path) -> anyhow::Result<String> {
    let misused = |text: String| Err(UsageError(text).into());
    match (&job.run, &job.splice) {
        (Some(_), Some(name)) if name.is_empty() => {
            misused("--splice with a RUN needs the NAME to save it under".into())
        }
        (None, Some(name)) if !name.is_empty() => {
            misused(format!("--splice {name} needs a RUN: report RUN --splice {name}"))
        }
        (Some(run), None) => {
            let folder = find(run, runs_folder)?;
            write_reports(&folder, &read_file(&folder.join(RESULT))?)?;
            Ok(format!("{}\n{}\n", folder.join(REPORT).display(), folder.join(TABLE).display()))
        }
        (run, name) => {
            if let (Some(run), Some(name)) = (run, name) {
                splice::save(Path::new("."), name, read(run, runs_folder)?)?;
            }
            let differing = splice::differing(Path::new("."))?;
            let names: Vec<_> = differing.iter().map(|(path, _)| path.display().to_string()).collect();
            if job.check && !names.is_empty() {
                let names = names.join(", ");
                bail!("{names} differ from the runs that they name: `prove-bench report --splice` fills them");
            }
            for (path, text) in differing {
                fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            }
            Ok(names.into_iter().map(|name| name + "\n").collect())
        }
    }
}

fn write_reports(folder: &Path, run: &Run) -> anyhow::Result<()> {
    write_file(folder, TABLE, &format!("{}\n{}\n", text::markdown(run), text::LEGEND))?;
    write_file(folder, REPORT, &html::page(run))
}

fn write_file(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

const RESULT: &str = "result.json";

/// Returns the folder of the run `name`. `name` may be a folder with a run, its `result.json`, the name of a folder in
/// `runs_folder`, or `latest` for the newest run in `runs_folder`.
pub(super) fn find(name: &str, runs_folder: &Path) -> anyhow::Result<PathBuf> {
    let given = Path::new(name);
    let given = if given.ends_with(RESULT) { given.parent().unwrap_or(given) } else { given };
    let holds_a_run = |folder: &PathBuf| folder.join(RESULT).is_file();
    if let Some(folder) = [given.to_owned(), runs_folder.join(given)].into_iter().find(holds_a_run) {
        return Ok(folder);
    }
    if name == "latest" {
        // Names of runs start with the time of the run, so the newest name sorts last.
        let folders = fs::read_dir(runs_folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let newest = folders.filter(holds_a_run).max();
        return newest.with_context(|| format!("no run in {} yet", runs_folder.display()));
    }
    bail!("no run {name:?}: neither a folder with a {RESULT}, nor the name of one in {}", runs_folder.display())
}

/// Reads a run's `result.json`.
pub(super) fn read_file(path: &Path) -> anyhow::Result<Run> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let not_a_run = || format!("{} is not a run's result", path.display());
    let run: Value = serde_json::from_str(&text).with_context(not_a_run)?;
    // A file with another schema might parse and be misread.
    let schema = run["schema"].as_u64().with_context(not_a_run)?;
    if schema != u64::from(SCHEMA) {
        bail!(
            "{} has schema {schema}, this prove-bench reads schema {SCHEMA}: use the prove-bench that made it, or run it again",
            path.display()
        );
    }
    serde_json::from_value(run).with_context(not_a_run)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::results::{ArmResult, WorkloadResult};

    /// Returns a workload with these arms, of which the first is the baseline.
    pub(crate) fn workload_of(arms: Vec<ArmResult>) -> WorkloadResult {
        let (workload, about) = ("poseidon2".into(), "hashes".into());
        WorkloadResult { workload, about, log_rows: 15, threads: 2, ..WorkloadResult::of(arms, 0, 1) }
    }

    /// Reads one of the saved runs from which the documentation is generated.
    pub(crate) fn saved(name: &str) -> Run {
        let path = format!("{}/../docs/data/runs/{name}.json", env!("CARGO_MANIFEST_DIR"));
        read_file(Path::new(&path)).unwrap()
    }
}
