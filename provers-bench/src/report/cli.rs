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
    #[arg(value_name = "RUN")]
    run: String,
    #[command(flatten)]
    place: Place,
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
    Report { run: String, out: Option<PathBuf> },
    Compare { before: String, after: String, out: Option<PathBuf> },
}

impl Job {
    /// Where runs lie, if not at the default place.
    pub(crate) fn out(&self) -> Option<&Path> {
        let (Self::Report { out, .. } | Self::Compare { out, .. }) = self;
        out.as_deref()
    }
}

/// Both commands.
pub(crate) fn commands() -> [Command; 2] {
    [
        ReportArgs::augment_args(Command::new("report"))
            .about("Writes a run's report.html and table.md again, from its result.json"),
        CompareArgs::augment_args(Command::new("compare"))
            .about("Says what changed from one run to another, as far as their intervals show it"),
    ]
    .map(|command| command.after_help(HOW_RUNS_ARE_NAMED))
}

/// The job that `matches` of the command `name` asks for; `None` if it is not one of ours.
pub(crate) fn job(name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    let job = match name {
        "report" => {
            ReportArgs::from_arg_matches(matches).map(|args| Job::Report { run: args.run, out: args.place.out })
        }
        "compare" => CompareArgs::from_arg_matches(matches).map(|args| {
            let CompareArgs { before, after, place } = args;
            Job::Compare { before, after, out: place.out }
        }),
        _ => return None,
    };
    let first_line = |error: clap::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    Some(job.map_err(|error| UsageError::Other(first_line(error))))
}
