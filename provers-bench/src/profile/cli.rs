//! The command `profile`: its options, and the job that they describe.

use crate::plan::values::{bytes, whole};
use crate::plan::{self, Size, SizedWorkload, UsageError};
use crate::workloads::Prover;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;

const NAME: &str = "profile";

/// Options of `profile`.
#[derive(Args, Debug)]
struct ProfileArgs {
    /// Prover to profile
    #[arg(value_name = "PROVER")]
    prover: String,
    /// Workload to profile [default: the prover's first]
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// Rows of the trace as a power of two, 2^N [default: the workload's own]
    #[arg(long, value_name = "N")]
    log_rows: Option<u32>,
    /// Threads of the prover's pool [default: one per core]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=1024))]
    threads: Option<u64>,
    /// Mean distance of samples in bytes, at most 32m; the suffixes k and m are powers of 1024. Requests of 1 MiB and more are always
    /// sampled
    #[arg(long, value_name = "BYTES", default_value = "64k", value_parser = mean_bytes)]
    mean: u64,
    /// Folder for the profile's own folder [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Folder of an earlier profile: shows where the peak moved
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
}

/// A requested profile.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) prover: &'static Prover,
    pub(super) workload: SizedWorkload,
    pub(super) threads: Option<u64>,
    /// The mean distance of samples.
    pub(super) mean_bytes: u64,
    /// The folder of the profiles.
    pub(super) out: Option<PathBuf>,
    /// The folder of an earlier profile.
    pub(super) against: Option<PathBuf>,
}

pub(crate) fn command() -> Command {
    ProfileArgs::augment_args(Command::new(NAME))
        .about("Where a prover's memory goes, by stage and by call site: two proofs, and one page")
        .after_help("Exit code 0: both proofs were verified; 1: one failed; 2: wrong usage; 130: interrupted.")
}

pub(crate) fn job(provers: &'static [Prover], name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    let other = |error: clap::Error| UsageError::Other(error.to_string().lines().next().unwrap_or_default().to_owned());
    (name == NAME).then(|| ProfileArgs::from_arg_matches(matches).map_err(other).and_then(|args| wanted(provers, args)))
}

fn mean_bytes(given: &str) -> Result<u64, String> {
    let valid = bytes(given).ok().filter(|bytes| (1..=32 << 20).contains(bytes));
    valid.ok_or_else(|| "valid are sizes like 512, 64k and 2m, from 1 to 32m".into())
}

fn wanted(provers: &'static [Prover], args: ProfileArgs) -> Result<Job, UsageError> {
    let prover = plan::find("prover", &args.prover, provers, |prover| prover.name)?;
    let first = prover.workloads.first().map(|spec| spec.name.to_owned());
    let name = args.workload.or(first).unwrap_or_default();
    let workloads = plan::workloads(prover, &[name], args.log_rows.map_or(Size::Own, Size::LogRows))?;
    if !cfg!(feature = "profile") {
        let text =
            "this bench was built without its feature profile: `cargo prove-bench profile PROVER` builds it with it";
        return Err(UsageError::Other(text.into()));
    }
    let ProfileArgs { threads, mean, out, against, .. } = args;
    Ok(Job { prover, workload: workloads[0], threads, mean_bytes: mean, out, against })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::tests::PROVERS;

    fn asked(line: &str) -> Result<Job, String> {
        let matches = command().try_get_matches_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        job(PROVERS, NAME, &matches).unwrap().map_err(|error| error.to_string())
    }

    #[test]
    fn mistakes_name_what_is_valid() {
        for (line, valid) in [
            ("profile plonky9", "plonky3"),
            ("profile plonky3 --workload sha", "poseidon2"),
            ("profile plonky3 --mean 0", "from 1 to"),
            ("profile plonky3 --mean 33m", "from 1 to"),
            ("profile", "PROVER"),
        ] {
            let message = asked(line).expect_err(line);
            assert!(message.contains(valid), "{line}: {message}");
        }
    }

    #[test]
    fn a_bench_without_the_feature_says_what_builds_it() {
        match asked("profile plonky3") {
            Ok(job) => assert_eq!(job.mean_bytes, 64 << 10),
            Err(message) => assert!(message.contains("cargo prove-bench profile"), "{message}"),
        }
    }
}
