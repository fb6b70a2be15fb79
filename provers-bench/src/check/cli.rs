//! The command `check`: its options, and the job that they describe.

use super::baseline::Baseline;
use super::figures::{HELD, REFERENCE};
use crate::plan::values::percentage;
use crate::plan::{Contestant, Plan, Request, Size, UsageError};
use crate::results::stats::MIN_ROUNDS_FOR_VERDICT;
use crate::workloads::{Prover, WorkloadSpec};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;

/// Fixed, because the figures depend on the number of threads.
const THREADS: usize = 2;
/// Fixed, so that every check has the same inputs and orders.
const SEED: u64 = 1;

const EXIT_CODES: &str = "Exit code 0: every figure holds, or was blessed; 1: a figure is worse, or an arm failed; \
                          2: wrong usage, or a baseline that cannot be used; 130: interrupted.";

/// Options of `check`.
#[derive(Args, Debug)]
struct CheckArgs {
    /// File with the baseline figures [default: baseline.toml next to the package's Cargo.toml]
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Make the figures of this run the new baseline; requires --reason
    #[arg(long)]
    bless: bool,
    /// Why the figures may change; recorded in the baseline's history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Comma-separated workloads to check, each as NAME or PROVER/NAME [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Warm rounds; a verdict on time needs 6
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Allowed increase of the warm-time ratio over the baseline, on top of the noise of both runs [default: 5%, or 15%
    /// if the baseline was recorded on another machine or with another build profile]
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    tolerance: Option<f64>,
    /// Create the runs' folders in DIR [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The job of a check.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) items: Vec<Item>,
    pub(super) baseline: Option<PathBuf>,
    /// The reason, if the figures of this run become the baseline.
    pub(super) bless: Option<String>,
    /// The tolerance of warm time; if it is `None`, the baseline's origin decides.
    pub(super) tolerance: Option<f64>,
    /// The user named the workloads to check.
    pub(super) restricted: bool,
}

/// One workload to check.
#[derive(Debug)]
pub(super) struct Item {
    /// `prover/workload`.
    pub(super) key: String,
    pub(super) log_rows: u32,
    pub(super) plan: Plan,
}

impl Job {
    /// The arms. They are the same for every workload.
    pub(crate) fn contestants(&self) -> &[Contestant] {
        self.items.first().map_or(&[], |item| &item.plan.contestants)
    }

    /// Checks that `baseline` has figures of these workloads at these sizes. Without `--workloads` it must have no
    /// others.
    pub(super) fn held_by(&self, baseline: &Baseline) -> Result<(), String> {
        let known = |key: &String| self.restricted || self.items.iter().any(|item| &item.key == key);
        if let Some(unknown) = baseline.workloads.keys().find(|key| !known(key)) {
            let keys: Vec<_> = self.items.iter().map(|item| item.key.as_str()).collect();
            return Err(format!(
                "has figures of {unknown}, which is no workload of this build (those are {}): restrict the check with \
                 --workloads, or bless anew",
                keys.join(", ")
            ));
        }
        self.items.iter().try_for_each(|Item { key, log_rows, .. }| match baseline.workloads.get(key) {
            None => Err(format!("has no figures of {key}: bless them (--bless --reason \"...\" --workloads {key})")),
            Some(entry) if (entry.log_rows, entry.threads) != (*log_rows, THREADS) => Err(format!(
                "has figures of {key} at 2^{} rows on {} threads, and it is checked at 2^{log_rows} on {THREADS}: bless \
                 it again",
                entry.log_rows, entry.threads
            )),
            Some(_) => Ok(()),
        })
    }
}

/// The clap command.
pub(crate) fn command() -> Command {
    CheckArgs::augment_args(Command::new("check"))
        .about("Holds small workloads to the figures of a committed baseline")
        .after_help(EXIT_CODES)
}

/// The job that `matches` of the command `name` describe; `None` if that is another command.
pub(crate) fn job(provers: &'static [Prover], name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    let other = |error: clap::Error| UsageError::Other(error.to_string());
    (name == "check").then(|| CheckArgs::from_arg_matches(matches).map_err(other).and_then(|args| of(provers, args)))
}

fn of(provers: &'static [Prover], args: CheckArgs) -> Result<Job, UsageError> {
    let CheckArgs { baseline, bless, reason, workloads, rounds, tolerance, out } = args;
    let reason = reason.map(|reason| reason.trim().to_owned());
    let bless = match (bless, reason) {
        (false, None) => None,
        (true, Some(reason)) if !reason.is_empty() => Some(reason),
        (true, _) => return Err(UsageError::Other("--bless takes --reason \"why the figures may change\"".into())),
        (false, Some(_)) => return Err(UsageError::Other("--reason is kept with --bless, which is not given".into())),
    };
    if bless.is_some() && (rounds as usize) < MIN_ROUNDS_FOR_VERDICT {
        let message = format!("--bless takes {MIN_ROUNDS_FOR_VERDICT} rounds or more, not {rounds}");
        return Err(UsageError::Other(message));
    }
    let all: Vec<_> =
        provers.iter().flat_map(|prover| prover.workloads.iter().map(move |spec| (prover, spec))).collect();
    if all.is_empty() {
        return Err(UsageError::Other("there is nothing to check: this build has no prover".into()));
    }
    let chosen = match &workloads[..] {
        [] => all,
        names => named(names, &all)?,
    };
    let item = |(prover, spec): Known| {
        let log_rows = spec.check_log_rows;
        let request = Request {
            workloads: vec![spec.name.into()],
            sizes: vec![Size::LogRows(log_rows)],
            rounds,
            allocators: [REFERENCE, HELD].map(str::to_owned).into(),
            threads: THREADS,
            thread_counts: vec![THREADS],
            seed: SEED,
            out: out.clone(),
            ..Request::default()
        };
        Ok(Item { key: key(prover, spec), log_rows, plan: request.plan(prover)? })
    };
    let items = chosen.into_iter().map(item).collect::<Result<_, _>>()?;
    Ok(Job { items, baseline, bless, tolerance, restricted: !workloads.is_empty() })
}

type Known = (&'static Prover, &'static WorkloadSpec);

fn key(prover: &Prover, spec: &WorkloadSpec) -> String {
    format!("{}/{}", prover.name, spec.name)
}

fn named(names: &[String], all: &[Known]) -> Result<Vec<Known>, UsageError> {
    let find = |given: &String| {
        let is = |(prover, spec): &&Known| key(prover, spec) == *given || spec.name == given;
        all.iter().find(is).copied().ok_or_else(|| UsageError::Unknown {
            kind: "workload",
            given: given.clone(),
            valid: all.iter().map(|(prover, spec)| key(prover, spec)).collect::<Vec<_>>().join(", "),
        })
    };
    names.iter().map(find).collect()
}
