//! Arguments of the commands `record`, `simulate` and `replay`.

use super::policy::{BlockPolicy, Classes, PER_DOUBLING, Policy, Sizes};
use super::replay::Replay;
use super::session::Recording;
use crate::arms::DEFAULT_SET;
use crate::plan::values::bytes;
use crate::plan::{self, Size, UsageError};
use crate::workloads::Prover;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;

/// Options of `record`.
#[derive(Args, Debug)]
struct RecordArgs {
    /// Prover to record
    #[arg(value_name = "PROVER")]
    prover: String,
    /// Rows of the trace as a power of two, 2^N, for every workload [default: the workload's own]
    #[arg(long, value_name = "N")]
    log_rows: Option<u32>,
    /// Comma-separated workloads to record [default: all of the prover]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Proofs to record, including the cold one
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    proofs: u32,
    /// Threads of the prover's pool [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
    /// Smallest request to record, in bytes; the suffixes k, m and g are powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "1k", value_parser = bytes)]
    min_bytes: u64,
    /// Folder for the traces [default: prove-bench/traces in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Options of `simulate`.
#[derive(Args, Debug)]
struct SimulateArgs {
    /// Traces written by `record`
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Comma-separated policies to replay them through [default: all, or only `custom` if other options define it]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    policy: Vec<String>,
    /// Size classes per doubling; this option and those below derive a policy `custom` from zk-alloc's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    per_doubling: Option<u64>,
    /// Comma-separated slab sizes; each class uses the smallest one that holds eight of its blocks
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = bytes)]
    slab_bytes: Option<Vec<u64>>,
    /// Disable thread caches
    #[arg(long)]
    no_caches: bool,
    /// Comma-separated zone borders: the smallest request of each zone of page runs except the first
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = bytes)]
    borders: Option<Vec<u64>>,
    /// Smallest request that the arena serves; smaller ones go to the backing allocator
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    min_bytes: Option<u64>,
    /// Place a run that would need fresh memory at the far end of the next zone, if there is room
    #[arg(long)]
    spill: bool,
}

/// Options of `replay`.
#[derive(Args, Debug)]
struct ReplayArgs {
    /// Traces written by `record`
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Comma-separated allocators to replay them under, or sets of allocators
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = DEFAULT_SET)]
    allocators: Vec<String>,
    /// Leave out blocks while they are smaller than this [default: replay every recorded block]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    min_bytes: Option<u64>,
    /// Replays under each allocator, each in its own process; figures are medians
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Show zk-alloc's own report for the end of each phase
    #[arg(long)]
    verbose: bool,
}

/// The task of one of the commands.
#[derive(Debug)]
pub(crate) enum Job {
    Record(Recording),
    Simulate { traces: Vec<PathBuf>, policies: Vec<Policy> },
    Replay(Replay),
}

/// All three commands.
pub(crate) fn commands() -> [Command; 3] {
    let names: Vec<_> = Policy::all().into_iter().map(|policy| policy.name).collect();
    [
        RecordArgs::augment_args(Command::new("record"))
            .about("Records the allocations of verified proofs, for simulate and replay"),
        SimulateArgs::augment_args(Command::new("simulate"))
            .about("Replays recorded allocations through placement policies: what would be resident")
            .after_help(format!("Policies:\n  {}", names.join("\n  "))),
        ReplayArgs::augment_args(Command::new("replay"))
            .about("Replays recorded allocations under real allocators, on real memory: what is resident")
            .after_help(
                "Settings of allocators are taken from the environment, as in ZK_ALLOC_MIN_BYTES=256.\n\n\
                 Exit code 0: every allocator replayed every trace; 1: one failed that is not known to, the notes say why, \
                 or a trace can't be read; 2: wrong usage; 130: interrupted.",
            ),
    ]
}

/// The job from the arguments `matches` of the command `name`; `None` if the command is none of these.
pub(crate) fn job(provers: &'static [Prover], name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    let other = |error: clap::Error| UsageError::Other(error.to_string().lines().next().unwrap_or_default().to_owned());
    match name {
        "record" => {
            Some(RecordArgs::from_arg_matches(matches).map_err(other).and_then(|args| recording(provers, args)))
        }
        "simulate" => Some(SimulateArgs::from_arg_matches(matches).map_err(other).and_then(simulation)),
        "replay" => Some(ReplayArgs::from_arg_matches(matches).map_err(other).and_then(replaying)),
        _ => None,
    }
}

fn replaying(args: ReplayArgs) -> Result<Job, UsageError> {
    let contestants = plan::contestants(&args.allocators)?;
    let ReplayArgs { traces, min_bytes, rounds, verbose, .. } = args;
    Ok(Job::Replay(Replay { traces, contestants, min_bytes, rounds, verbose }))
}

fn recording(provers: &'static [Prover], args: RecordArgs) -> Result<Job, UsageError> {
    let prover = plan::find("prover", &args.prover, provers, |prover| prover.name)?;
    let workloads = plan::workloads(prover, &args.workloads, args.log_rows.map_or(Size::Own, Size::LogRows))?;
    let RecordArgs { proofs, threads, min_bytes, out, .. } = args;
    Ok(Job::Record(Recording { prover, workloads, proofs, threads, min_bytes, out }))
}

fn simulation(args: SimulateArgs) -> Result<Job, UsageError> {
    let ours = Policy::ours();
    let sizes = match (args.per_doubling, args.slab_bytes) {
        (None, None) => Sizes::Ours,
        (per_doubling, slabs) => {
            Sizes::MadeUp { per_doubling: per_doubling.unwrap_or(PER_DOUBLING), slabs: slabs.unwrap_or_default() }
        }
    };
    if let Sizes::MadeUp { slabs, .. } = &sizes {
        held_to_slabs(slabs)?;
    }
    let custom = Policy {
        name: "custom".into(),
        min_bytes: args.min_bytes.unwrap_or(ours.min_bytes),
        blocks: BlockPolicy::Classes(Classes { sizes, caches: !args.no_caches }),
        borders: args.borders.unwrap_or(ours.borders.clone()),
        spill_min_bytes: args.spill.then_some(0),
        ..ours.clone()
    };
    let is_custom = Policy { name: ours.name.clone(), ..custom.clone() } != ours;
    if !custom.borders.is_sorted_by(|low, high| low < high) {
        return Err(UsageError::Other(format!("--borders ascend, unlike {:?}", custom.borders)));
    }
    let mut policies = match (&args.policy[..], is_custom) {
        ([], true) => Vec::new(),
        ([], false) => Policy::all(),
        (names, _) => names.iter().map(|name| named(name)).collect::<Result<_, _>>()?,
    };
    policies.extend(is_custom.then_some(custom));
    Ok(Job::Simulate { traces: args.traces, policies })
}

/// Slabs consist of whole pages and are aligned to their size. The largest slab must hold any medium size.
fn held_to_slabs(slabs: &[u64]) -> Result<(), UsageError> {
    let fits = |slab: &u64| slab.is_power_of_two() && (16 << 10..=1 << 30).contains(slab);
    let holds_all = slabs.last().is_none_or(|last| *last >= 64 << 10);
    if slabs.iter().all(fits) && slabs.is_sorted_by(|low, high| low < high) && holds_all {
        return Ok(());
    }
    Err(UsageError::Other(format!(
        "--slab-bytes are ascending powers of two from 16k to 1g, the last from 64k, not {slabs:?}"
    )))
}

fn named(name: &str) -> Result<Policy, UsageError> {
    let all = Policy::all();
    let valid = all.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = all.into_iter().find(|policy| policy.name == name);
    found.ok_or(UsageError::Unknown { kind: "policy", given: name.into(), valid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::tests::PROVERS;

    fn asked(line: &str) -> Result<Job, String> {
        let matches = Command::new("prove-bench")
            .subcommands(commands())
            .try_get_matches_from(line.split_whitespace())
            .map_err(|error| error.to_string())?;
        let (name, matches) = matches.subcommand().unwrap();
        job(PROVERS, name, matches).unwrap().map_err(|error| error.to_string())
    }

    #[test]
    fn options_of_a_simulation_make_one_custom_policy() {
        let Ok(Job::Simulate { policies, .. }) = asked("b simulate a.trace --slab-bytes 64k,1m --borders 1m,32m")
        else {
            panic!()
        };
        assert_eq!(policies.len(), 1);
        let sizes = Sizes::MadeUp { per_doubling: 8, slabs: vec![64 << 10, 1 << 20] };
        assert_eq!(policies[0].blocks, BlockPolicy::Classes(Classes { sizes, caches: true }));
        assert_eq!(policies[0].borders, [1 << 20, 32 << 20]);
        let Ok(Job::Simulate { policies, .. }) = asked("b simulate a.trace") else { panic!() };
        assert_eq!(policies, Policy::all());
    }

    #[test]
    fn mistakes_name_what_is_valid() {
        for (line, valid) in [
            ("b simulate a.trace --policy worst-fit", "one-zone"),
            ("b simulate a.trace --slab-bytes 100k", "powers of two"),
            ("b simulate a.trace --slab-bytes 16k", "the last from 64k"),
            ("b simulate a.trace --borders 2m,1m", "ascend"),
            ("b simulate a.trace --borders 2x", "sizes like"),
            ("b simulate a.trace --min-bytes 0", "sizes like"),
            ("b replay a.trace --allocators glibc,hoard", "jemalloc"),
            ("b replay a.trace --rounds 0", "1..=1000"),
            ("b replay", "TRACE"),
            ("b record plonky9", "plonky3"),
            ("b record plonky3 --workloads sha", "poseidon2"),
        ] {
            let message = asked(line).expect_err(line);
            assert!(message.contains(valid), "{line}: {message}");
        }
    }
}
