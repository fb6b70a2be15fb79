//! The command line. Every mistake gets one line on stderr and exit code 2.

use crate::arms::{ARMS, Arm, SETS};
use crate::compare;
use crate::exec;
use crate::host;
use crate::plan::options::RunArgs;
use crate::plan::{self, Plan, UsageError};
use crate::profile;
use crate::report;
use crate::trace;
use crate::workloads::Prover;
use clap::error::{ContextKind, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::ffi::OsString;

/// The request of a command line.
#[derive(Debug)]
pub(crate) enum Asked {
    Run(Plan),
    /// Record or replay allocations.
    Trace(trace::Job),
    /// Report on earlier runs.
    Report(report::Job),
    /// Compare figures with stored ones.
    Compare(compare::Job),
    /// Run a command under preloaded libraries.
    Exec(exec::Job),
    /// Measure what memory costs on this machine.
    Host(host::Job),
    /// Show where the memory of a proof goes.
    Profile(profile::Job),
    /// Help or version text to print.
    Text(String),
}

/// Parses a command line, including the program's name.
pub(crate) fn parse(
    provers: &'static [Prover],
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Asked, UsageError> {
    match command(provers).try_get_matches_from(arguments) {
        Ok(matches) => {
            let (name, matches) = matches.subcommand().ok_or_else(|| no_prover(provers))?;
            let tool = None
                .or_else(|| Some(trace::job(provers, name, matches)?.map(Asked::Trace)))
                .or_else(|| Some(report::job(name, matches)?.map(Asked::Report)))
                .or_else(|| Some(compare::job(provers, name, matches)?.map(Asked::Compare)))
                .or_else(|| Some(exec::job(name, matches)?.map(Asked::Exec)))
                .or_else(|| Some(host::job(name, matches)?.map(Asked::Host)))
                .or_else(|| Some(profile::job(provers, name, matches)?.map(Asked::Profile)));
            tool.unwrap_or_else(|| run(provers, name, matches).map(Asked::Run))
        }
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Asked::Text(error.render().to_string())),
            _ => Err(one_line(provers, &error)),
        },
    }
}

fn run(provers: &'static [Prover], name: &str, matches: &ArgMatches) -> Result<Plan, UsageError> {
    let arguments = RunArgs::from_arg_matches(matches).map_err(|error| one_line(provers, &error))?;
    arguments.request()?.plan(plan::find("prover", name, provers, |prover| prover.name)?)
}

fn command(provers: &'static [Prover]) -> Command {
    let subcommands = provers.iter().map(|prover| {
        let listed = |names: Vec<String>| names.join("\n  ");
        let workloads = prover.workloads.iter().map(|spec| {
            let (min, max) = (spec.min_log_rows, spec.max_log_rows);
            format!("{}: {}; --log-rows {min} to {max}, by default {}", spec.name, spec.about, spec.default_log_rows)
        });
        let arms = |contains: fn(&Arm) -> bool| {
            let names = ARMS.iter().filter(|arm| contains(arm)).map(|arm| arm.name);
            names.collect::<Vec<_>>().join(", ")
        };
        let sets = SETS.iter().map(|set| format!("{}: {}", set.name, arms(set.contains)));
        let after = format!(
            "Workloads:\n  {}\nSets of allocators:\n  {}\n\n\
             Exit code 0: every arm proved; 1: an arm failed that is not known to, the table says why; 2: wrong usage; \
             130: interrupted.",
            listed(workloads.collect()),
            listed(sets.collect())
        );
        RunArgs::augment_args(Command::new(prover.name)).about(prover.about).after_help(after)
    });
    Command::new("prove-bench")
        .about("Real proofs, verified, under several allocators in lockstep")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_value_name("PROVER")
        .subcommand_help_heading("Provers, and tools beside the bench")
        .disable_help_subcommand(true)
        .subcommands(subcommands)
        .subcommand(report::command())
        .subcommands(compare::commands())
        .subcommand(exec::command())
        .subcommand(host::command())
        .subcommand(profile::command())
        .subcommands(trace::commands())
}

/// The error for a driver that has tools and no prover, if the command line names no tool.
fn only_tools() -> UsageError {
    UsageError::Other("this driver has tools and no prover: cargo prove-bench PROVER builds that of a prover".into())
}

fn no_prover(provers: &[Prover]) -> UsageError {
    if provers.is_empty() {
        return only_tools();
    }
    let valid = provers.iter().map(|prover| prover.name).collect::<Vec<_>>().join(", ");
    UsageError::Other(format!("no prover given: valid are {valid} (prove-bench PROVER --help says more)"))
}

/// Clap's errors span several lines and mostly don't name the valid values of a prover.
fn one_line(provers: &'static [Prover], error: &clap::Error) -> UsageError {
    match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, _) if provers.is_empty() => only_tools(),
        (ErrorKind::InvalidSubcommand, Some(given)) => {
            let unknown = plan::find("prover", &given.to_string(), provers, |prover| prover.name);
            unknown.err().unwrap_or_else(|| no_prover(provers))
        }
        (ErrorKind::MissingRequiredArgument, _) => {
            let missing = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
            UsageError::Other(format!("required, and not given: {missing}"))
        }
        (ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => no_prover(provers),
        _ => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            UsageError::Other(first.trim_start_matches("error: ").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::tests::PROVERS;

    fn asked(line: &str) -> Result<Asked, UsageError> {
        parse(PROVERS, line.split_whitespace().map(OsString::from))
    }

    fn mistake(line: &str) -> String {
        asked(line).expect_err(line).to_string()
    }

    /// A newcomer's mistake must get one line that names the mistake and the valid values.
    #[test]
    fn mistakes_get_one_line_that_names_the_valid_values() {
        for (line, given, valid) in [
            ("prove-bench plonky9", "plonky9", "plonky3"),
            ("prove-bench", "no prover", "plonky3"),
            ("prove-bench plonky3 --allocators glibc,hoard", "hoard", "quick, peers, all, glibc, "),
            ("prove-bench plonky3 --workloads sha", "sha", "poseidon2, keccak, whir"),
            ("prove-bench plonky3 --log-rows 40", "40", "10 to 22"),
            ("prove-bench plonky3 --log-rows many", "many", "0 to 63"),
            ("prove-bench plonky3 --threads 0", "'0'", "1 to 1024"),
            ("prove-bench plonky3 --rounds 0", "'0'", "1 to 10000"),
            ("prove-bench plonky3 --sweep rows=1..2", "rows=1..2", "threads=FROM..TO"),
            ("prove-bench plonky3 --workloads keccak --sweep log-rows=12..23", "23", "10 to 22"),
            ("prove-bench plonky3 --sweep log-rows=11..12 --log-rows 10", "--sweep log-rows", "--log-rows"),
            ("prove-bench plonky3 --sweep threads=1,2 --threads 2", "--sweep threads", "--threads"),
            ("prove-bench plonky3 --rounds 4 --processes 5", "--processes", "at most --rounds"),
            ("prove-bench plonky3 --until-precise no", "'no'", "0.1% to 100%"),
            ("prove-bench plonky3 --max-time soon", "'soon'", "5m"),
            ("prove-bench plonky3 --round 3", "--round", "--round"),
            ("prove-bench exec --allocators hoard -- true", "hoard", "jemalloc-tuned"),
            ("prove-bench exec --library a/b=/proc/self/exe -- true", "a/b", "NAME=PATH"),
            ("prove-bench record plonky9", "plonky9", "plonky3"),
            ("prove-bench record plonky3 --workloads sha", "sha", "poseidon2"),
            ("prove-bench replay a.trace --allocators glibc,hoard", "hoard", "jemalloc"),
            ("prove-bench replay a.trace --rounds 0", "0", "1..=1000"),
            ("prove-bench profile plonky9", "plonky9", "plonky3"),
            ("prove-bench profile plonky3 --mean 33m", "33m", "from 1 to"),
        ] {
            let message = mistake(line);
            assert!(message.contains(given) && message.contains(valid), "{line}: {message}");
            assert_eq!(message.lines().count(), 1, "{line}: {message}");
        }
    }

    #[test]
    fn help_names_workloads_and_allocators() {
        let Ok(Asked::Text(help)) = asked("prove-bench plonky3 --help") else { panic!("no help") };
        for name in ["poseidon2", "keccak", "whir", "peers: ", "jemalloc", "--log-rows"] {
            assert!(help.contains(name), "{help}");
        }
    }
}
