//! Arguments of the command `report`.

use crate::plan::UsageError;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::{Path, PathBuf};

pub(crate) const HOW_RUNS_ARE_NAMED: &str = "A RUN is a run's folder, its result.json, the name of a folder among the runs, or `latest`.\n\n\
                                  Exit code 0: done; 1: no such run, or not one that can be read; 2: wrong usage.";

/// Options of `report`.
#[derive(Args, Debug)]
struct ReportArgs {
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
    #[command(flatten)]
    place: Place,
}

impl ReportArgs {
    fn job(self) -> Result<Job, UsageError> {
        let Self { run, splice, check, docs, place: Place { out } } = self;
        match (run, splice) {
            (Some(run), None) => Ok(Job::Report { run, out }),
            (None, Some(name)) if name.is_empty() => Ok(Job::Splice { run: None, docs, check, out }),
            (Some(run), Some(name)) if !name.is_empty() => Ok(Job::Splice { run: Some((run, name)), docs, check, out }),
            (Some(_), Some(_)) => Err(UsageError::Other("--splice with a RUN takes the NAME it is kept under".into())),
            (None, Some(name)) => {
                Err(UsageError::Other(format!("--splice {name}: which RUN? report RUN --splice {name}")))
            }
            (None, None) => Err(UsageError::Other("required, and not given: RUN".into())),
        }
    }
}

/// The folder of the runs.
#[derive(Args, Debug)]
struct Place {
    /// Folder of the runs, the same as --out of the runs themselves [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The task of the command.
#[derive(Debug)]
pub(crate) enum Job {
    Report {
        run: String,
        out: Option<PathBuf>,
    },
    /// Fill the tables of the documentation, after saving a run under a name if one is given.
    Splice {
        run: Option<(String, String)>,
        docs: PathBuf,
        check: bool,
        out: Option<PathBuf>,
    },
}

impl Job {
    /// The folder of the runs, if it is not the default.
    pub(crate) fn out(&self) -> Option<&Path> {
        let (Self::Report { out, .. } | Self::Splice { out, .. }) = self;
        out.as_deref()
    }
}

/// The command `report`.
pub(crate) fn command() -> Command {
    ReportArgs::augment_args(Command::new("report"))
        .about(
            "Writes a run's report.html and table.md again, from its result.json; or the tables of the documentation",
        )
        .after_help(HOW_RUNS_ARE_NAMED)
}

/// The job from the arguments `matches` of the command `name`; `None` if that is another command.
pub(crate) fn job(name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    let other = |error: clap::Error| UsageError::Other(error.to_string());
    (name == "report").then(|| ReportArgs::from_arg_matches(matches).map_err(other).and_then(ReportArgs::job))
}
