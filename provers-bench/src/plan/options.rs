//! Command-line options of a run, and the request made from them.

use crate::arms::DEFAULT_SET;
use crate::machine::cores;
use crate::plan::values::{self, LOG_ROWS, SweepOver, THREADS, whole};
use crate::plan::{Request, Size, Slots, UsageError};
use crate::results::record::Sweep;
use crate::results::stats::{MIN_PROCESSES_FOR_VERDICT, MIN_ROUNDS_FOR_VERDICT};
use crate::together::Concurrent;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Options that every prover takes.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Rows of the trace as a power of two, 2^N, for every workload [default: the workload's own]
    #[arg(long, value_name = "N", value_parser = whole(LOG_ROWS))]
    log_rows: Option<u32>,
    /// Quick run of about a minute: small sizes, 6 warm rounds in 4 processes
    #[arg(long, conflicts_with_all = ["log_rows", "sweep", "rounds", "processes"])]
    smoke: bool,
    /// Warm rounds over all processes of an arm; a verdict needs 6
    #[arg(long, value_name = "N", default_value = "15", value_parser = whole::<u32>(1..=10_000))]
    rounds: u32,
    /// Processes of each arm, which share the rounds; each starts with a cold proof, and a verdict needs 4 [default:
    /// one per 3 rounds, 4 to 10, fewer if set-up is expensive]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=10_000))]
    processes: Option<u32>,
    /// Run every workload at each of these values: log-rows=12..17 (both ends included), or a list as in threads=1,2,4
    #[arg(long, value_name = "WHAT=VALUES", value_parser = values::sweep)]
    sweep: Option<SweepOver>,
    /// Comma-separated allocators, or sets of allocators; ratios are to glibc, or to the first one if glibc is not
    /// listed
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = DEFAULT_SET)]
    allocators: Vec<String>,
    /// After the rounds, make this many passes with each arm alone on the machine: one proof in a fresh process after
    /// 12 idle seconds, then its resident memory after 1 s and 10 s
    #[arg(long, value_name = "PASSES", default_value = "0", value_parser = whole::<u32>(0..=1000))]
    alone: u32,
    /// Prove at fixed times instead of in lockstep: each arm takes its turn alone on the machine, makes one proof every
    /// TIME, and idles in between
    #[arg(long, value_name = "TIME", value_parser = values::time,
        conflicts_with_all = ["smoke", "sweep", "rounds", "alone", "until_precise"])]
    every: Option<Duration>,
    /// How long each turn of --every takes
    #[arg(long = "for", value_name = "TIME", value_parser = values::time, requires = "every", default_value = "2m")]
    turn: Duration,
    /// Make this many proofs at once in each process; times, faults and memory are those of all of them
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u32>(1..=64))]
    concurrent: u32,
    /// Give each proof of --concurrent a pool of its own, of --threads threads, instead of one that all share
    #[arg(long)]
    pool_each: bool,
    /// Threads of the prover's pool [default: one per core]
    #[arg(long, value_name = "N", value_parser = whole(THREADS))]
    threads: Option<u32>,
    /// Comma-separated workloads to run [default: all of the prover]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Longest wait for one proof and its verification [default: 120 s, more for large sizes and slow proofs]
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds(86_400))]
    timeout: Option<Duration>,
    #[command(flatten)]
    measured: MeasuredArgs,
}

/// Options of every measurement in rounds.
#[derive(Args, Clone, Debug)]
pub(crate) struct MeasuredArgs {
    /// Add rounds until every interval is at most this wide, in percent of the baseline's time
    #[arg(long, value_name = "P%", value_parser = values::percentage)]
    pub(crate) until_precise: Option<f64>,
    /// Start no round after this time, in seconds, or in minutes with m; workloads and the points of a sweep share it
    /// [default: none, or 5m for each point with --until-precise]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) max_time: Option<Duration>,
    /// Seed of the order, inputs and resampling; recorded with the result [default: random]
    // A 32-bit seed stays exact in every JSON reader.
    #[arg(long, value_name = "N", default_value_t = rand::random::<u32>().into(), hide_default_value = true,
        value_parser = whole::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,
    /// Create the run's folder in DIR [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print the whole result as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunArgs {
    /// The request that these options make.
    pub(crate) fn request(self) -> Result<Request, UsageError> {
        let other = |text: &str| Err(UsageError::Other(text.into()));
        if self.every.is_none() && self.processes.is_some_and(|processes| processes > self.rounds) {
            return other("--processes is at most --rounds: a process without a warm round would be none");
        }
        let threads = self.threads.map_or_else(cores, |threads| threads as usize);
        let (sizes, thread_counts) = match (&self.sweep, self.log_rows, self.threads) {
            (Some(SweepOver { sweep: Sweep::LogRows, .. }), Some(_), _) => {
                return other("--sweep log-rows and --log-rows exclude each other");
            }
            (Some(SweepOver { sweep: Sweep::Threads, .. }), _, Some(_)) => {
                return other("--sweep threads and --threads exclude each other");
            }
            (Some(SweepOver { sweep: Sweep::LogRows, values }), ..) => {
                (values.iter().copied().map(Size::LogRows).collect(), vec![threads])
            }
            (Some(SweepOver { sweep: Sweep::Threads, values }), size, _) => {
                (vec![own_or(size)], values.iter().map(|&threads| threads as usize).collect())
            }
            (None, ..) if self.smoke => (vec![Size::Checked], vec![threads]),
            (None, size, _) => (vec![own_or(size)], vec![threads]),
        };
        let slots = match self.every {
            Some(every) => Some(Slots::new(every, self.turn)?),
            None => None,
        };
        let (rounds, processes) = match slots {
            _ if self.smoke => SMOKE,
            Some(slots) => {
                let turns = self.processes.unwrap_or(1);
                (turns * (slots.proofs - 1), Some(turns))
            }
            None => (self.rounds, self.processes),
        };
        Ok(Request {
            workloads: self.workloads,
            sizes,
            thread_counts,
            sweep: self.sweep.map(|over| over.sweep),
            allocators: self.allocators,
            rounds,
            processes,
            alone: self.alone,
            slots,
            concurrent: Concurrent { proofs: self.concurrent, pool_each: self.pool_each },
            precision: self.measured.until_precise,
            max_time: self.measured.max_time,
            threads,
            seed: self.measured.seed,
            timeout: self.timeout,
            out: self.measured.out,
            json: self.measured.json,
        })
    }
}

/// Rounds and processes of `--smoke`: the fewest that give a verdict.
const SMOKE: (u32, Option<u32>) = (MIN_ROUNDS_FOR_VERDICT as u32, Some(MIN_PROCESSES_FOR_VERDICT as u32));

fn own_or(log_rows: Option<u32>) -> Size {
    log_rows.map_or(Size::Own, Size::LogRows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, Point};
    use crate::workloads::{WorkloadSpec, tests::PROVERS};
    use clap::{Command, FromArgMatches};

    fn plan_of(line: &str) -> Plan {
        let command = RunArgs::augment_args(Command::new("plonky3"));
        let matches = command.get_matches_from(line.split_whitespace());
        RunArgs::from_arg_matches(&matches).unwrap().request().unwrap().plan(&PROVERS[0]).expect(line)
    }

    #[test]
    fn the_command_of_the_readme_runs_every_workload_under_every_default_arm() {
        let plan = plan_of("plonky3");
        let sizes: Vec<_> = plan.points.iter().map(|Point { workload: w, .. }| (w.spec.name, w.log_rows)).collect();
        assert_eq!(sizes, [("poseidon2", 15), ("keccak", 14), ("whir", 21)]);
        assert_eq!(plan.contestants.len(), 3);
        assert!(plan.threads >= 1 && plan.max_time.is_none());
        assert_eq!((plan.rounds, plan.processes(plan.points[0].workload.spec)), (15, 5));
    }

    /// The README promises a table with verdicts within a minute.
    #[test]
    fn a_first_look_is_small_and_has_verdicts() {
        let plan = plan_of("plonky3 --smoke --threads 1");
        let sizes: Vec<_> = plan.points.iter().map(|Point { workload: w, .. }| (w.spec.name, w.log_rows)).collect();
        assert_eq!(sizes, [("poseidon2", 13), ("keccak", 12), ("whir", 20)]);
        assert_eq!((plan.rounds, plan.processes(plan.points[0].workload.spec), plan.contestants.len()), (6, 4, 3));
    }

    /// A set-up that takes minutes must run less often than one that takes milliseconds.
    #[test]
    fn a_workload_with_an_expensive_set_up_has_fewer_processes() {
        let plan = plan_of("plonky3 --rounds 40");
        let spec = |most: Option<u32>| {
            let spec: WorkloadSpec = *plan.points[0].workload.spec;
            most.map_or(spec, |most| spec.processes_at_most(most))
        };
        assert_eq!([None, Some(4)].map(|most| plan.processes(&spec(most))), [10, 4]);
        assert_eq!(plan_of("plonky3 --rounds 40 --processes 20").processes(&spec(Some(4))), 20);
        assert_eq!(plan_of("plonky3 --rounds 2").processes(&spec(None)), 2);
    }

    #[test]
    fn a_sweep_has_every_workload_at_every_point() {
        let points = |line| {
            let plan = plan_of(line);
            let points = plan.points.iter();
            points.map(|p| (p.workload.spec.name, p.workload.log_rows, p.threads)).collect::<Vec<_>>()
        };
        let sizes = points("plonky3 --threads 2 --sweep log-rows=10..11");
        let names = ["poseidon2", "keccak", "whir"];
        assert_eq!(sizes, names.map(|name| [(name, 10, 2), (name, 11, 2)]).concat());
        let threads = points("plonky3 --workloads keccak --sweep threads=1,4");
        assert_eq!(threads, [("keccak", 14, 1), ("keccak", 14, 4)]);
    }
}
