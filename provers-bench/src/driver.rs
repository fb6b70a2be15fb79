//! The driver: runs a command line and returns an exit code. For an invalid command line, it prints one line on stderr and returns 2.

use crate::arms::{ARMS, Arm, SETS};
use crate::compare::{self, CheckArgs, CompareArgs};
use crate::measure::{self, Failure, Interrupt, binaries, print, runs_folder};
use crate::plan::{self, RunArgs, UsageError, first_line};
use crate::profile::{self, ProfileArgs};
use crate::results::Run;
use crate::trace::{self, RecordArgs, ReplayArgs};
use crate::workloads::Prover;
use crate::{exec, host, report};
use clap::error::{ContextKind, ErrorKind};
use clap::{Args, Command, Subcommand};
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Exit code if an arm failed, if nothing could be run, or if a measurement is worse than its baseline.
const FAILED: u8 = 1;
/// Exit code for an invalid command line or an unusable baseline.
const USAGE: u8 = 2;
/// Exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells.
const INTERRUPTED: u8 = 130;

/// Defines the driver's whole binary, for these provers.
///
/// `provers` is the path of a `static` in the package's library. If it were a constant, the provers would be compiled again for every
/// binary. The driver's baseline, `baseline.toml`, is next to the package's `Cargo.toml`.
///
/// ```
/// # mod my_prover { pub static PROVERS: &[provers_bench::Prover] = &[]; }
/// provers_bench::driver!(my_prover::PROVERS);
/// ```
#[macro_export]
macro_rules! driver {
    ($provers:expr) => {
        fn main() -> ::std::process::ExitCode {
            $crate::driver::main($provers, ::core::env!("CARGO_MANIFEST_DIR"))
        }
    };
}

/// Runs the driver for `provers`. The `main` that [`driver!`](crate::driver!) generates calls this function. The arms'
/// binaries are in the driver's folder, and call [`crate::child::main`] with the same provers. `package_folder`
/// contains the baseline for `check`.
///
/// Exit codes:
///
/// - 0: every arm proved in every round, except arms that are known to fail.
/// - 1: another arm failed, and its row states why; nothing could be run or read; or a measurement is worse than its
///   baseline.
/// - 2: wrong usage, or an unusable baseline.
/// - 130: interrupted. The measurements so far are written.
pub fn main(provers: &'static [Prover], package_folder: &str) -> ExitCode {
    let code = run(provers, Path::new(package_folder), env::args_os()).unwrap_or_else(|error| {
        if matches!(error.downcast_ref(), Some(Failure::Interrupted)) {
            return INTERRUPTED;
        }
        eprintln!("prove-bench: {error:#}");
        if error.is::<UsageError>() { USAGE } else { FAILED }
    });
    code.into()
}

const AFTER_EXEC: &str = "Allocators are preloaded (LD_PRELOAD). Their libraries are those of the distribution, and cargo builds ours. The row \
                          of an allocator that is not installed names the package to install. The command's standard input is \
                          /dev/null.\n\n\
                          Exit code 0: every allocator that is installed ran the command to the end; 1: one failed (the table says why), or \
                          the command fails by itself; 2: wrong usage; 130: interrupted, and the measured part is written.";
const AFTER_REPLAY: &str = "Settings of allocators are taken from the environment, as in ZK_ALLOC_MIN_BYTES=256.\n\n\
                            Exit code 0: every allocator replayed every trace; 1: one failed that is not known to fail (the notes say why), \
                            or a trace can't be read; 2: wrong usage; 130: interrupted.";
const AFTER_CHECK: &str = "Exit code 0: every figure holds, or was blessed; 1: a figure is worse, or an arm failed; 2: wrong usage, or a \
                           baseline that cannot be used; 130: interrupted.";
const HOW_RUNS_ARE_NAMED: &str = "A RUN is a run's folder, its result.json, the name of a folder among the runs, or `latest`.\n\n\
                                  Exit code 0: done; 1: no such run, or it can't be read; 2: wrong usage.";

// The other tools. Their doc comments are the help texts.
#[derive(Debug, Subcommand)]
enum Tool {
    /// Regenerates a run's report.html and table.md from its result.json, or the tables of the documentation
    #[command(after_help = HOW_RUNS_ARE_NAMED)]
    Report(report::Job),
    /// Shows what changed between two runs, according to the 95% intervals
    #[command(after_help = HOW_RUNS_ARE_NAMED)]
    Compare(CompareArgs),
    /// Compares small workloads with a committed baseline
    #[command(after_help = AFTER_CHECK)]
    Check(CheckArgs),
    /// Runs any command under several allocators in lockstep: would another one help your binary?
    #[command(override_usage = "prove-bench exec [OPTIONS] -- COMMAND [ARGUMENTS]...", after_help = AFTER_EXEC)]
    Exec(exec::Job),
    /// Measures what memory costs on this machine, and prints suitable settings; takes less than 30 s
    #[command(after_help = "Exit code 0: measured; 1: memory could not be mapped; 2: wrong usage.")]
    Host(host::Job),
    /// Shows where a prover's memory goes, by stage and by call site, from two proofs, on one page
    #[command(after_help = "Exit code 0: both proofs were verified; 1: one failed; 2: wrong usage; 130: interrupted.")]
    Profile(ProfileArgs),
    /// Records the allocations of verified proofs, for replay
    Record(RecordArgs),
    /// Replays recorded allocations under real allocators, on real memory, and shows what is resident
    #[command(after_help = AFTER_REPLAY)]
    Replay(ReplayArgs),
}

/// Runs a command line, and returns the exit code.
fn run(provers: &'static [Prover], folder: &Path, arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<u8> {
    let ended = |(text, failed): (String, bool)| {
        print(&text);
        Ok(if failed { FAILED } else { 0 })
    };
    let printed = |text| ended((text, false));
    let matches = match command(provers).try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return printed(error.render().to_string());
        }
        Err(error) => return Err(one_line(provers, &error).into()),
    };
    let (name, options) = matches.subcommand().ok_or_else(|| no_prover(provers))?;
    if !Tool::has_subcommand(name) {
        let prover = plan::find("prover", name, provers, |prover| prover.name)?;
        let plan = plan::parsed::<RunArgs>(options)?.plan(prover)?;
        let interrupt = Interrupt::on_signals()?;
        let folder = binaries::folder(&plan.contestants, &interrupt)?;
        return Ok(code_of(&measure::run(&plan, &folder, &interrupt)?));
    }
    match plan::parsed(&matches)? {
        Tool::Report(job) => printed(report::run(&job, &runs_folder(job.out.as_deref())?)?),
        Tool::Compare(args) => printed(args.text()?),
        Tool::Check(args) => ended(compare::check(provers, &args, folder)?),
        #[cfg(feature = "profile")]
        Tool::Exec(job) if job.profile => printed(exec::profile(&job.checked()?, &Interrupt::on_signals()?)?),
        Tool::Exec(job) => Ok(code_of(&exec::run(&job.checked()?, &Interrupt::on_signals()?)?)),
        Tool::Host(job) => printed(host::run(&job)?),
        Tool::Profile(args) => printed(profile::run(provers, &args)?),
        Tool::Record(args) => printed(trace::record(provers, &args)?),
        Tool::Replay(args) => ended(trace::replay(&args)?),
    }
}

fn code_of(run: &Run) -> u8 {
    match (run.interrupted, run.any_failed()) {
        (true, _) => INTERRUPTED,
        (false, true) => FAILED,
        (false, false) => 0,
    }
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
             Exit code 0: every arm proved; 1: an arm failed that is not known to fail (the table says why); \
             2: wrong usage; 130: interrupted.",
            listed(workloads.collect()),
            listed(sets.collect())
        );
        RunArgs::augment_args(Command::new(prover.name)).about(prover.about).after_help(after)
    });
    Tool::augment_subcommands(Command::new("prove-bench").subcommands(subcommands))
        .about("Real proofs, verified, under several allocators in lockstep")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_value_name("PROVER")
        .subcommand_help_heading("Provers and tools")
        .disable_help_subcommand(true)
}

/// Returns the error for a command line that names neither a prover nor a tool.
fn no_prover(provers: &[Prover]) -> UsageError {
    let valid = provers.iter().map(|prover| prover.name).collect::<Vec<_>>().join(", ");
    UsageError(match provers {
        [] => "this driver has tools but no prover: cargo prove-bench PROVER builds a prover's driver".into(),
        _ => format!("no prover given: valid are {valid} (prove-bench PROVER --help says more)"),
    })
}

/// Turns clap's error into one line that names the valid values. Clap's own errors span several lines, and usually
/// don't name a prover's valid values.
fn one_line(provers: &'static [Prover], error: &clap::Error) -> UsageError {
    match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(given)) if !provers.is_empty() => {
            UsageError::unknown("prover", &given.to_string(), provers.iter().map(|prover| prover.name))
        }
        (ErrorKind::InvalidSubcommand, _) => no_prover(provers),
        (ErrorKind::MissingRequiredArgument, _) => {
            let missing = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
            UsageError(format!("required, and not given: {missing}"))
        }
        _ => UsageError(first_line(error).trim_start_matches("error: ").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arms::tuned;
    use crate::workloads::tests::PROVERS;

    fn mistake(line: &str) -> String {
        let arguments = line.split_whitespace().map(OsString::from);
        run(PROVERS, Path::new("/no-such-package"), arguments).expect_err(line).to_string()
    }

    /// The error for an invalid command line must be one line that names the mistake and the valid values.
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
            ("prove-bench plonky3 --sweep log-rows=15..12", "log-rows=15..12", "from 0 to 63"),
            ("prove-bench plonky3 --sweep threads=0,,2", "threads=0,,2", "from 1 to 1024"),
            ("prove-bench plonky3 --workloads keccak --sweep log-rows=12..23", "23", "10 to 22"),
            ("prove-bench plonky3 --sweep log-rows=11..12 --log-rows 10", "--sweep log-rows", "--log-rows"),
            ("prove-bench plonky3 --sweep threads=1,2 --threads 2", "--sweep threads", "--threads"),
            ("prove-bench plonky3 --predict 13", "--predict 13", "poseidon2 takes --log-rows 10 to 22"),
            ("prove-bench plonky3 --predict 13", "ask for 14 or more", "--workloads"),
            ("prove-bench plonky3 --predict 20 --smoke", "--predict", "--smoke"),
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

    /// `cargo prove-bench` rejects a mistyped option before it builds anything, so it has its own list of options, which must match the
    /// driver's.
    #[test]
    fn the_launcher_knows_the_options_and_the_allocators() {
        // This arm exists only with the feature `profile`.
        const OF_FEATURE: &str = " zk-alloc-profile";
        let driver = command(PROVERS);
        let line = |of: &Command| {
            let option = |option: &clap::Arg| {
                let equals = if option.get_action().takes_values() { "=" } else { "" };
                Some(format!(" {}{equals}", option.get_long()?))
            };
            let name = if Tool::has_subcommand(of.get_name()) { of.get_name() } else { "PROVER" };
            format!("{name}:{}\n", of.get_arguments().filter_map(option).collect::<String>())
        };
        let tools = driver.get_subcommands().skip(PROVERS.len() - 1).map(line).collect::<String>();
        // bb is a separate package. It has three options of its own, and forwards the options of `exec` that it does
        // not set itself.
        let is_passed = |option: &&str| !["library=", "each=", "verify=", "same-output=", "profile"].contains(option);
        let exec = tools.lines().find_map(|line| line.strip_prefix("exec:")).unwrap();
        let passed = exec.split_whitespace().filter(is_passed).map(|option| format!(" {option}")).collect::<String>();
        let tools = tools.replacen('\n', &format!("\nbb: log-rows= threads= smoke{passed}\n"), 1);
        let names = SETS.iter().map(|set| set.name).chain(tuned::SETS).chain(ARMS.iter().map(|arm| arm.name));
        let allocators: String = names.map(|name| format!(" {name}")).collect();
        let own = format!("{tools}allocators:{allocators}\n").replace(OF_FEATURE, "");
        assert_eq!(include_str!("../launch/src/options.txt").replace(OF_FEATURE, ""), own);
    }

    #[test]
    fn help_names_workloads_and_allocators() {
        let help = command(PROVERS).try_get_matches_from(["prove-bench", "plonky3", "--help"]).unwrap_err().to_string();
        for name in ["poseidon2", "keccak", "whir", "peers: ", "jemalloc", "--log-rows"] {
            assert!(help.contains(name), "{help}");
        }
    }
}
