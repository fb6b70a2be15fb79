//! The commands `report` and `compare`, as clap sees them.

use crate::plan::UsageError;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::{Path, PathBuf};

const HOW_RUNS_ARE_NAMED: &str = "A RUN is a run's folder, its result.json, the name of a folder among the runs, or `latest`.\n\n\
                                  Exit code 0: done; 1: no such run, or not one that can be read; 2: wrong usage.";

/// Options of `report`.
#[derive(Args, Debug)]
struct ReportArgs {
    /// The run
    #[arg(value_name = "RUN", required_unless_present = "splice")]
    run: Option<String>,
    /// Keeps RUN under docs/data/runs as NAME, and fills the tables of the documentation that name it; without RUN and NAME,
    /// fills all tables again from the runs that are kept
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    splice: Option<String>,
    /// Writes nothing, and fails if a table of the documentation differs from its run
    #[arg(long, requires = "splice")]
    check: bool,
    /// The repository whose documentation is filled
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
    /// The run that came before
    #[arg(value_name = "RUN_A")]
    before: String,
    /// The run that came after
    #[arg(value_name = "RUN_B")]
    after: String,
    #[command(flatten)]
    place: Place,
}

/// Where runs lie.
#[derive(Args, Debug)]
struct Place {
    /// Folder of the runs, as given to the runs themselves [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What one of the commands is to do.
#[derive(Debug)]
pub(crate) enum Job {
    Report {
        run: String,
        out: Option<PathBuf>,
    },
    /// Fill the tables of the documentation, after a run was kept under a name.
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
    /// Where runs lie, if not at the default place.
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

/// The job that `matches` of the command `name` asks for; `None` if it is not one of ours.
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
