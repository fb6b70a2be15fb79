//! The command `exec` and its options.

use super::libraries::{self, Named};
use crate::plan::options::MeasuredArgs;
use crate::plan::values::{seconds, whole};
use crate::plan::{self, PRECISE_TIME, UsageError};
use clap::{ArgMatches, Args, Command};
use regex::bytes::Regex;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const NAME: &str = "exec";

const AFTER: &str = "Allocators are preloaded (LD_PRELOAD) from the libraries that the distribution has, and ours is built with cargo; \
                     one that is not installed is a row that says which package brings it. The command reads nothing from standard input \
                     (/dev/null).\n\n\
                     Exit code 0: every allocator that is installed ran the command to the end; 1: one failed, the table says why, or \
                     the command fails by itself; 2: wrong usage; 130: interrupted, what was measured is written.";

/// Options of `exec`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Job {
    /// Runs of the command under each allocator, each in a new process; a verdict needs 6
    #[arg(long, value_name = "N", default_value = "10", value_parser = whole::<u32>(1..=10_000))]
    pub(super) rounds: u32,
    /// Comma-separated allocators: glibc, jemalloc, mimalloc and tcmalloc, each also with the suffix -tuned, and
    /// zk-alloc; ratios are to glibc, or to the first one if glibc is not listed
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "all")]
    pub(super) allocators: Vec<String>,
    /// Path of libzk_alloc.so, or NAME=PATH for another allocator's library; a new NAME adds an allocator
    #[arg(long, value_name = "[NAME=]PATH", value_parser = libraries::named)]
    pub(super) library: Vec<Named>,
    /// Time the intervals between output lines that match, instead of whole runs; the first interval of each run is
    /// cold
    #[arg(long, value_name = "REGEX", value_parser = regex)]
    pub(super) each: Option<Regex>,
    /// Command line for sh that must succeed after every run
    #[arg(long, value_name = "COMMAND LINE")]
    pub(super) verify: Option<String>,
    /// File that every run must write with the same content as the first run; - means standard output
    #[arg(long, value_name = "FILE")]
    pub(super) same_output: Option<PathBuf>,
    /// Longest time for one run [default: 20 times the slowest so far, at least 120 s]
    #[arg(long, value_name = "SECONDS", value_parser = seconds(604_800))]
    pub(super) timeout: Option<Duration>,
    /// Show which functions take the page faults, and which hold the memory under zk-alloc: two runs, and one page
    #[arg(long, conflicts_with_all = [
        "each", "verify", "same_output", "rounds", "allocators", "until_precise", "max_time", "seed", "json",
    ])]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(super) measured: MeasuredArgs,
    /// The command and its arguments, after --
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) command: Vec<OsString>,
}

/// Parses a regular expression. The error is the last line of the crate's message, which has the reason.
fn regex(given: &str) -> Result<Regex, String> {
    Regex::new(given).map_err(|error| {
        let text = error.to_string();
        text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}

/// The clap command.
pub(crate) fn command() -> Command {
    Job::augment_args(Command::new(NAME))
        .about("Runs any command under several allocators in lockstep: would another one help your binary?")
        .override_usage("prove-bench exec [OPTIONS] -- COMMAND [ARGUMENTS]...")
        .after_help(AFTER)
}

/// The job that `matches` of the command `name` describe; `None` if that is another command.
pub(crate) fn job(name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    (name == NAME).then(|| {
        let job: Job = plan::parsed(matches)?;
        if job.profile && !cfg!(feature = "profile") {
            let text = "this bench was built without its feature profile: `cargo prove-bench exec --profile -- COMMAND` builds it with it";
            return Err(UsageError::Other(text.into()));
        }
        let mut measured = job.measured;
        measured.max_time = measured.max_time.or(measured.until_precise.map(|_| PRECISE_TIME));
        Ok(Job { allocators: libraries::names(&job.allocators, &job.library)?, measured, ..job })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Job, String> {
        let matches = command().try_get_matches_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        job(NAME, &matches).unwrap().map_err(|error| error.to_string())
    }

    /// The measured command's own options must reach it, with `--` before it and without.
    #[test]
    fn what_stands_behind_the_command_is_the_commands() {
        for line in ["exec --rounds 3 -- sort -n --json file", "exec --rounds 3 sort -n --json file"] {
            let job = asked(line).unwrap();
            assert_eq!(job.command, ["sort", "-n", "--json", "file"]);
            assert_eq!((job.rounds, job.measured.json), (3, false));
        }
        assert!(asked("exec --rounds 3").unwrap_err().contains("COMMAND"));
    }
}
