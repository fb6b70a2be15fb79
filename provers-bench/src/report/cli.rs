//! Arguments of the commands `report` and `compare`.

use crate::plan::UsageError;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::{Path, PathBuf};

const HOW_RUNS_ARE_NAMED: &str = "A RUN is a run's folder, its result.json, the name of a folder among the runs, or `latest`.\n\n\
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

/// Options of `compare`.
#[derive(Args, Debug)]
struct CompareArgs {
    /// Earlier run
    #[arg(value_name = "RUN_A")]
    before: String,
    /// Later run
    #[arg(value_name = "RUN_B")]
    after: String,
    #[command(flatten)]
    place: Place,
}

/// The folder of the runs.
#[derive(Args, Debug)]
struct Place {
    /// Folder of the runs, the same as --out of the runs themselves [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The task of one of the commands.
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
    Compare {
        before: String,
        after: String,
        out: Option<PathBuf>,
    },
}

impl Job {
    /// The folder of the runs, if it is not the default.
    pub(crate) fn out(&self) -> Option<&Path> {
        let (Self::Report { out, .. } | Self::Splice { out, .. } | Self::Compare { out, .. }) = self;
        out.as_deref()
    }
}

/// Both commands.
pub(crate) fn commands() -> [Command; 2] {
    [
        ReportArgs::augment_args(Command::new("report")).about(
            "Writes a run's report.html and table.md again, from its result.json; or the tables of the documentation",
        ),
        CompareArgs::augment_args(Command::new("compare"))
            .about("Says what changed from one run to another, as far as their intervals show it"),
    ]
    .map(|command| command.after_help(HOW_RUNS_ARE_NAMED))
}

/// The job from the arguments `matches` of the command `name`; `None` if the command is neither of these.
pub(crate) fn job(name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    let job = match name {
        "report" => match ReportArgs::from_arg_matches(matches) {
            Ok(args) => return Some(args.job()),
            Err(error) => Err(error),
        },
        "compare" => CompareArgs::from_arg_matches(matches).map(|args| {
            let CompareArgs { before, after, place } = args;
            Job::Compare { before, after, out: place.out }
        }),
        _ => return None,
    };
    let first_line = |error: clap::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    Some(job.map_err(|error| UsageError::Other(first_line(error))))
}
