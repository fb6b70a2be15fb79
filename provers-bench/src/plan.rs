//! The plan of a run: its options, checked against the prover's workloads and the known arms. Also parses option values.

use crate::arms::{self, ARMS, Arm, DEFAULT_SET, SETS, tuned};
use crate::machine::host::cores;
use crate::results::{MEASURED_SIZES, MIN_PROCESSES_FOR_VERDICT, MIN_ROUNDS_FOR_VERDICT, Sweep};
use crate::workloads::{Concurrent, Prover, WorkloadSpec};
use clap::builder::ArgPredicate;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Time limit for each point if `--until-precise` comes without `--max-time`.
pub(crate) const PRECISE_TIME: Duration = Duration::from_secs(300);

/// Everything that a run depends on, except the machine.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) prover: &'static Prover,
    pub(crate) points: Vec<Point>,
    /// The quantity that varies from point to point, if any.
    pub(crate) sweep: Option<Sweep>,
    pub(crate) contestants: Vec<Contestant>,
    /// The schedule of `--every`; `None` for rounds in lockstep.
    pub(crate) slots: Option<Slots>,
    /// The options. `--smoke`, `--every` and `--until-precise` have already set the numbers of rounds and processes and the time limit that
    /// follow from them.
    pub(crate) args: RunArgs,
}

impl Plan {
    /// Returns the number of processes of an arm for the workload `spec`. They run one after another.
    pub(crate) fn processes(&self, spec: &WorkloadSpec) -> u32 {
        let rounds = self.args.rounds;
        let fitting = (rounds / 3).clamp(MIN_PROCESSES, MAX_PROCESSES);
        let fitting = spec.max_processes.map_or(fitting, |most| most.min(fitting));
        self.args.processes.unwrap_or(fitting).min(rounds)
    }
}

/// Bounds on the default number of processes, which is otherwise one per three warm rounds. More processes narrow the intervals more than
/// more rounds per process do. But memory that an allocator retains may still grow during the first warm proof, so a process needs later
/// proofs as well. A verdict needs four processes; more than ten gain little.
const MIN_PROCESSES: u32 = 4;
const MAX_PROCESSES: u32 = 10;

/// The schedule of `--every`: one arm at a time has the machine to itself and proves at fixed times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    /// The time from the start of one proof to the start of the next.
    pub(crate) every: Duration,
    /// Number of proofs in a turn. The first is cold.
    pub(crate) proofs: u32,
}

/// A requested size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Size {
    /// The workload's default size.
    Own,
    /// The workload's smaller size for `check` and `--smoke`.
    Checked,
    LogRows(u32),
    /// `Below(predicted, doublings)`: a size to measure for a prediction at `predicted`, this many doublings below the largest measured
    /// size.
    Below(u32, u32),
}

/// A workload at a size, with a number of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) workload: SizedWorkload,
    pub(crate) threads: usize,
}

/// A workload at a size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizedWorkload {
    pub(crate) spec: &'static WorkloadSpec,
    pub(crate) log_rows: u32,
}

/// An arm of a run. An allocator that is listed twice takes part twice; the difference between its two rows is noise (an A/A run).
#[derive(Clone, Debug)]
pub(crate) struct Contestant {
    pub(crate) label: String,
    pub(crate) arm: &'static Arm,
}

/// An invalid command line. The message is one line that names the given value and the valid ones.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

impl UsageError {
    /// Returns the error for a name that is not in `valid`.
    pub(crate) fn unknown<'a>(kind: &str, given: &str, valid: impl Iterator<Item = &'a str>) -> Self {
        Self(format!("unknown {kind} {given:?}: valid are {}", valid.collect::<Vec<_>>().join(", ")))
    }
}

/// Parses the options of a command from clap's matches.
pub(crate) fn parsed<T: FromArgMatches>(matches: &ArgMatches) -> Result<T, UsageError> {
    T::from_arg_matches(matches).map_err(|error| UsageError(first_line(&error)))
}

pub(crate) fn first_line(error: &clap::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Parses `line` as the plan of a run of `prover`. The first word is ignored, and the others are options.
pub(crate) fn of_line(prover: &'static Prover, line: &str) -> Result<Plan, UsageError> {
    let command = RunArgs::augment_args(Command::new("run"));
    let matches = command.try_get_matches_from(line.split_whitespace());
    parsed::<RunArgs>(&matches.map_err(|error| UsageError(first_line(&error)))?)?.plan(prover)
}

/// Returns the item of `known` whose name is `given`.
pub(crate) fn find<T>(
    kind: &str,
    given: &str,
    known: &'static [T],
    name: impl Fn(&T) -> &'static str,
) -> Result<&'static T, UsageError> {
    let found = known.iter().find(|item| name(item) == given);
    found.ok_or_else(|| UsageError::unknown(kind, given, known.iter().map(name)))
}

/// Returns the workloads of `prover` that `names` lists, or all of them if `names` is empty, each at `size`.
pub(crate) fn sized(prover: &'static Prover, names: &[String], size: Size) -> Result<Vec<SizedWorkload>, UsageError> {
    let specs: Vec<_> = match names {
        [] => prover.workloads.iter().collect(),
        names => {
            let found = names.iter().map(|name| find("workload", name, prover.workloads, |spec| spec.name));
            found.collect::<Result<_, _>>()?
        }
    };
    let at_size = |spec: &'static WorkloadSpec| {
        let given = match size {
            Size::Own => spec.default_log_rows,
            Size::Checked => spec.check_log_rows,
            Size::LogRows(given) => given,
            Size::Below(predicted, doublings) => measured_for(spec, predicted)? - doublings,
        };
        let (min, max) = (spec.min_log_rows, spec.max_log_rows);
        if (min..=max).contains(&given) {
            Ok(SizedWorkload { spec, log_rows: given })
        } else {
            Err(UsageError(format!("{} takes --log-rows {min} to {max}, not {given}", spec.name)))
        }
    };
    specs.into_iter().map(at_size).collect()
}

/// Returns the largest size to measure for a prediction at the size `predicted`: the default size, but less than `predicted`, and large
/// enough that the smaller measured sizes are valid too.
fn measured_for(spec: &WorkloadSpec, predicted: u32) -> Result<u32, UsageError> {
    let (name, min, max) = (spec.name, spec.min_log_rows, spec.max_log_rows);
    let least = min + MEASURED_SIZES - 1;
    if max < least || predicted <= least {
        return Err(UsageError(format!(
            "{name} takes --log-rows {min} to {max}, and --predict {predicted} measures {MEASURED_SIZES} of these sizes, all below {predicted}: \
             ask for {} or more, or name other workloads with --workloads",
            least + 1
        )));
    }
    Ok(spec.default_log_rows.max(least).min(predicted - 1))
}

/// Returns the arms that `names` select, in the same order. A set adds only arms that `names` does not list by name. A name given twice
/// yields two arms; the second gets the suffix `-2`.
pub(crate) fn contestants(names: &[String]) -> Result<Vec<Contestant>, UsageError> {
    let mut arms: Vec<&'static Arm> = Vec::new();
    for given in names {
        if let Some(set) = SETS.iter().find(|set| set.name == given) {
            let is_new = |arm: &Arm| {
                names.iter().map(String::as_str).chain(arms.iter().map(|arm| arm.name)).all(|name| name != arm.name)
            };
            let added: Vec<_> = ARMS.iter().filter(|arm| (set.contains)(arm) && is_new(arm)).collect();
            arms.extend(added);
        } else if let Some(set) = tuned::set(given) {
            arms.extend(set);
        } else {
            arms.push(arms::named(given).ok_or_else(|| {
                let of_constants = tuned::SETS.into_iter().chain(["zk-alloc:CONSTANT=VALUE"]);
                let valid = SETS.iter().map(|set| set.name).chain(ARMS.iter().map(|arm| arm.name)).chain(of_constants);
                UsageError::unknown("allocator", given, valid)
            })?);
        }
    }
    let labels = labels(arms.iter().map(|arm| arm.name));
    Ok(labels.into_iter().zip(arms).map(|(label, arm)| Contestant { label, arm }).collect())
}

/// Returns a label for each of these names. The second use of a name gets the suffix `-2`.
pub(crate) fn labels<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut uses = BTreeMap::new();
    let label = |name: &'a str| {
        let uses = uses.entry(name).or_insert(0);
        *uses += 1;
        if *uses == 1 { name.to_owned() } else { format!("{name}-{uses}") }
    };
    names.map(label).collect()
}

/// Options of every prover's command.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Rows of the trace as a power of two, 2^N, for every workload [default: the workload's own]
    #[arg(long, value_name = "N", value_parser = whole(LOG_ROWS))]
    log_rows: Option<u32>,
    /// Quick run of about a minute: small sizes, 6 warm rounds in 4 processes
    #[arg(long, conflicts_with_all = ["log_rows", "sweep", "predict", "rounds", "processes"])]
    smoke: bool,
    /// Warm rounds over all processes of an arm; a verdict needs 6, and --predict makes 4 by default
    #[arg(long, value_name = "N", default_value = "15", value_parser = whole::<u32>(1..=10_000),
        default_value_if("predict", ArgPredicate::IsPresent, "4"))]
    pub(crate) rounds: u32,
    /// Processes of each arm, which share the rounds; each starts with a cold proof, and a verdict needs 4 [default:
    /// one per 3 rounds, 4 to 10, fewer if set-up is expensive]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=10_000))]
    processes: Option<u32>,
    /// Run every workload at each of these values: log-rows=12..17 (both ends included), or a list as in threads=1,2,4
    #[arg(long, value_name = "WHAT=VALUES", value_parser = sweep)]
    sweep: Option<SweepOver>,
    /// Run every workload at four small sizes, and predict memory, time and container size for 2^N rows
    #[arg(long, value_name = "N", value_parser = whole(LOG_ROWS), conflicts_with_all = ["log_rows", "sweep", "every"])]
    pub(crate) predict: Option<u32>,
    /// Comma-separated allocators, or sets of allocators; ratios are to glibc, or to the first one if glibc is not
    /// listed
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = DEFAULT_SET)]
    allocators: Vec<String>,
    /// After the rounds, make this many passes with each arm alone on the machine: one proof in a fresh process after
    /// 12 idle seconds, then its resident memory after 1 s and 10 s
    #[arg(long, value_name = "PASSES", default_value = "0", value_parser = whole::<u32>(0..=1000))]
    pub(crate) alone: u32,
    /// Prove at fixed times instead of in lockstep: each arm takes its turn alone on the machine, makes one proof every
    /// TIME, and idles in between
    #[arg(long, value_name = "TIME", value_parser = time,
        conflicts_with_all = ["smoke", "sweep", "rounds", "alone", "until_precise"])]
    every: Option<Duration>,
    /// How long each turn of --every takes
    #[arg(long = "for", value_name = "TIME", value_parser = time, requires = "every", default_value = "2m")]
    turn: Duration,
    #[command(flatten)]
    pub(crate) concurrent: Concurrent,
    /// Threads of the prover's pool [default: one per core]
    #[arg(long, value_name = "N", value_parser = whole(THREADS))]
    threads: Option<u32>,
    /// Comma-separated workloads to run [default: all of the prover]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Longest wait for one proof and its verification [default: 120 s, more for large sizes and slow proofs]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) measured: MeasuredArgs,
}

/// Options of every command that measures in rounds.
#[derive(Args, Clone, Debug)]
pub(crate) struct MeasuredArgs {
    /// Add rounds until every interval is at most this wide, in percent of the baseline's time
    #[arg(long, value_name = "P%", value_parser = percentage)]
    pub(crate) until_precise: Option<f64>,
    /// Start no round after this time, in seconds, or in minutes with m; workloads and the points of a sweep share it
    /// [default: none, or 5m for each point with --until-precise]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) max_time: Option<Duration>,
    /// Seed of the order, inputs and resampling; recorded with the result [default: random]
    // A 32-bit seed is exact in every JSON reader.
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
    /// Returns the number of threads in the prover's pool, unless a sweep varies it.
    pub(crate) fn threads(&self) -> usize {
        self.threads.map_or_else(cores, |threads| threads as usize)
    }

    /// Returns the plan for `prover` with these options. Fails if the options contradict each other, or contain an unknown name or a size
    /// that a workload does not accept.
    pub(crate) fn plan(mut self, prover: &'static Prover) -> Result<Plan, UsageError> {
        let other = |text: &str| Err(UsageError(text.into()));
        if self.every.is_none() && self.processes.is_some_and(|processes| processes > self.rounds) {
            return other("--processes must be at most --rounds: each process needs a warm round");
        }
        let swept = |of| self.sweep.as_ref().filter(|(what, _)| *what == of).map(|(_, values)| values.iter().copied());
        let (over_sizes, over_threads) = (swept(Sweep::LogRows), swept(Sweep::Threads));
        if over_sizes.is_some() && self.log_rows.is_some() {
            return other("--sweep log-rows and --log-rows exclude each other");
        }
        if over_threads.is_some() && self.threads.is_some() {
            return other("--sweep threads and --threads exclude each other");
        }
        let sizes: Vec<_> = match (over_sizes, self.predict) {
            (Some(sizes), _) => sizes.map(Size::LogRows).collect(),
            (None, Some(predicted)) => (0..MEASURED_SIZES).rev().map(|below| Size::Below(predicted, below)).collect(),
            (None, None) if self.smoke => vec![Size::Checked],
            (None, None) => vec![self.log_rows.map_or(Size::Own, Size::LogRows)],
        };
        let thread_counts =
            over_threads.map_or(vec![self.threads()], |counts| counts.map(|count| count as usize).collect());
        let slots = self.every.map(|every| {
            let proofs = (self.turn.as_secs() / every.as_secs()) as u32;
            Slots { every, proofs }
        });
        // Every workload at each size, with each number of threads. The points of a workload are adjacent.
        let sized = sizes.into_iter().map(|size| sized(prover, &self.workloads, size));
        let sized: Vec<_> = sized.collect::<Result<_, _>>()?;
        let of_workload = |index: usize| sized.iter().map(move |workloads| workloads[index]);
        let workloads = (0..sized.first().map_or(0, Vec::len)).flat_map(of_workload);
        let with_threads = |workload| thread_counts.iter().map(move |&threads| Point { workload, threads });
        let points: Vec<_> = workloads.flat_map(with_threads).collect();
        if self.smoke {
            (self.rounds, self.processes) = SMOKE;
        }
        if let Some(Slots { proofs, .. }) = slots {
            if proofs < 2 {
                return other("--for must be at least twice --every: a turn's first proof is cold");
            }
            let turns = *self.processes.get_or_insert(1);
            self.rounds = turns * (proofs - 1);
        }
        let MeasuredArgs { max_time, until_precise, .. } = &mut self.measured;
        *max_time = max_time.or(until_precise.map(|_| PRECISE_TIME * points.len() as u32));
        let sweep = self.sweep.as_ref().map(|(what, _)| *what).or(self.predict.map(|_| Sweep::LogRows));
        Ok(Plan { prover, points, sweep, contestants: contestants(&self.allocators)?, slots, args: self })
    }
}

/// Numbers of rounds and processes of `--smoke`: the fewest that give a verdict.
const SMOKE: (u32, Option<u32>) = (MIN_ROUNDS_FOR_VERDICT as u32, Some(MIN_PROCESSES_FOR_VERDICT as u32));

/// The quantity that `--sweep` varies, and its values.
type SweepOver = (Sweep, Vec<u32>);

/// Sizes and numbers of threads that the command line accepts. A workload may accept a smaller range of sizes.
const LOG_ROWS: RangeInclusive<u32> = 0..=63;
const THREADS: RangeInclusive<u32> = 1..=1024;

/// Parses `log-rows=12..17`, `log-rows=12,14,16` or `threads=1,2,4,8`. A range includes both ends, whether written with
/// `..` or `..=`.
fn sweep(given: &str) -> Result<SweepOver, String> {
    let (sweep, values, range) = match given.split_once('=') {
        Some(("log-rows", values)) => (Sweep::LogRows, values, LOG_ROWS),
        Some(("threads", values)) => (Sweep::Threads, values, THREADS),
        _ => return Err("valid are log-rows=FROM..TO and threads=FROM..TO, or a list as in threads=1,2,4".into()),
    };
    let parsed: Option<Vec<_>> = values.split(',').map(|part| span(part, &range)).collect();
    let Some(spans) = parsed else {
        let (low, high) = (range.start(), range.end());
        return Err(format!("valid are numbers from {low} to {high} as in 1,2,4, or a range as in 12..17"));
    };
    let mut seen = BTreeSet::new();
    Ok((sweep, spans.into_iter().flatten().filter(|value| seen.insert(*value)).collect()))
}

/// Parses a number, or a range that is not empty.
fn span(given: &str, valid: &RangeInclusive<u32>) -> Option<RangeInclusive<u32>> {
    let number = |text: &str| text.parse().ok().filter(|number| valid.contains(number));
    let span = match given.split_once("..") {
        Some((low, high)) => number(low)?..=number(high.strip_prefix('=').unwrap_or(high))?,
        None => number(given)?..=number(given)?,
    };
    (!span.is_empty()).then_some(span)
}

/// Parses a whole number in `range`. The error states the range.
pub(crate) fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |given| {
        let number = given.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("valid are whole numbers from {} to {}", range.start(), range.end()))
    }
}

/// Parses `2%` or `2` as 0.02.
pub(crate) fn percentage(given: &str) -> Result<f64, String> {
    let number = given.strip_suffix('%').unwrap_or(given).parse().ok();
    let number = number.filter(|percent| (0.1..=100.0).contains(percent));
    number.map(|percent: f64| percent / 100.0).ok_or_else(|| "valid are percentages from 0.1% to 100%".into())
}

/// Parses `512`, `64k`, `2m` or `1g`: the suffixes are powers of 1024.
pub(crate) fn bytes(given: &str) -> Result<u64, String> {
    let lower = given.to_ascii_lowercase();
    let with_suffix = |(suffix, shift): (char, u32)| Some((lower.strip_suffix(suffix)?, shift));
    let (digits, shift) = [('k', 10), ('m', 20), ('g', 30)].into_iter().find_map(with_suffix).unwrap_or((&*lower, 0));
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    // Zero is not a valid size for a slab, zone or threshold. Sizes above 2^60 could overflow when they are added.
    let number = number.filter(|number| (1..=1 << 60).contains(number));
    number.ok_or_else(|| "valid are sizes like 512, 64k, 2m and 1g".into())
}

/// Parses `90`, `90s` or `5m`.
pub(crate) fn time(given: &str) -> Result<Duration, String> {
    let (digits, seconds_each) = match given.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (given.strip_suffix('s').unwrap_or(given), 1),
    };
    let seconds = digits.parse::<u32>().ok().map(|number| u64::from(number) * seconds_each);
    let seconds = seconds.filter(|seconds| (1..=1_000_000).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "valid are times like 90 (seconds) and 5m (minutes)".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::tests::PROVERS;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// A set must not add an arm that is also listed by name, or that an earlier set has added. In an A/A run the two rows need different
    /// names; otherwise one would overwrite the other.
    #[test]
    fn sets_add_each_arm_once_and_repeated_names_get_a_suffix() {
        let labels = |given: &[&str]| {
            let contestants = contestants(&names(given)).unwrap();
            contestants.into_iter().map(|contestant| contestant.label).collect::<Vec<_>>()
        };
        assert_eq!(labels(&["jemalloc", "glibc", "glibc"]), ["jemalloc", "glibc", "glibc-2"]);
        assert_eq!(labels(&["quick"]), ["glibc", "jemalloc", "zk-alloc"]);
        assert_eq!(labels(&["quick", "glibc"]), ["jemalloc", "zk-alloc", "glibc"]);
        assert_eq!(labels(&["glibc", "glibc", "quick"]), ["glibc", "glibc-2", "jemalloc", "zk-alloc"]);
        assert_eq!(labels(&["quick", "all"]).len(), ARMS.len());
        assert_eq!(
            labels(&["peers"]).join(" "),
            "glibc glibc-tuned glibc-hugetlb jemalloc jemalloc-tuned jemalloc-plonky3 jemalloc-triton jemalloc-openvm jemalloc-hpa \
             jemalloc-decay-0 mimalloc mimalloc-tuned snmalloc tcmalloc tcmalloc-tuned bump-reset zk-alloc"
        );
    }

    fn plan_of(line: &str) -> Plan {
        of_line(&PROVERS[0], line).expect(line)
    }

    /// The README promises a table with verdicts after about a minute of `--smoke`.
    #[test]
    fn the_commands_of_the_readme_run_every_workload_under_every_default_arm() {
        for (line, sizes, rounds, processes) in
            [("plonky3", [15, 14, 21], 15, 5), ("plonky3 --smoke --threads 1", [13, 12, 20], 6, 4)]
        {
            let plan = plan_of(line);
            let found: Vec<_> = plan.points.iter().map(|Point { workload: w, .. }| (w.spec.name, w.log_rows)).collect();
            assert_eq!(found, [("poseidon2", sizes[0]), ("keccak", sizes[1]), ("whir", sizes[2])]);
            assert_eq!((plan.args.rounds, plan.processes(plan.points[0].workload.spec)), (rounds, processes));
            assert_eq!(plan.contestants.len(), 3);
            assert!(plan.args.threads() >= 1 && plan.args.measured.max_time.is_none());
        }
    }

    /// A workload whose set-up takes minutes must be set up less often than one whose set-up takes milliseconds.
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

    /// A predicted size may be far above the default size, or equal to it, and is never measured itself.
    #[test]
    fn sweeps_and_predictions_have_every_workload_at_every_point() {
        for (options, points) in [
            ("keccak --sweep threads=1,4,1", "keccak 14 1, keccak 14 4"),
            (
                "keccak --threads 2 --sweep log-rows=12,14..=15,12..13",
                "keccak 12 2, keccak 14 2, keccak 15 2, keccak 13 2",
            ),
            ("keccak,whir --threads 2 --sweep log-rows=20..21", "keccak 20 2, keccak 21 2, whir 20 2, whir 21 2"),
            ("keccak --threads 2 --predict 24", "keccak 11 2, keccak 12 2, keccak 13 2, keccak 14 2"),
            ("whir --threads 2 --predict 21", "whir 17 2, whir 18 2, whir 19 2, whir 20 2"),
        ] {
            let plan = plan_of(&format!("plonky3 --workloads {options}"));
            let name = |p: &Point| format!("{} {} {}", p.workload.spec.name, p.workload.log_rows, p.threads);
            assert_eq!(plan.points.iter().map(name).collect::<Vec<_>>().join(", "), points, "{options}");
            assert_eq!(plan.args.rounds, if plan.args.predict.is_some() { 4 } else { 15 }, "{options}");
        }
        let small = PROVERS[0].workloads[0].sizes(15, 22);
        assert_eq!(measured_for(&small, 20), Ok(18), "the default size is the smallest");
    }

    #[test]
    fn percentages_and_times_are_parsed_with_their_units() {
        assert_eq!((percentage("2%"), percentage("2.5")), (Ok(0.02), Ok(0.025)));
        let times = [90, 90, 300].map(|seconds| Ok(Duration::from_secs(seconds)));
        assert_eq!(["90", "90s", "5m"].map(time), times);
        assert!(["0", "-2%", "two", "200%", "NaN"].map(percentage).iter().all(Result::is_err));
        assert!(["0", "m", "1h", "-3", "99999999999999999999m"].map(time).iter().all(Result::is_err));
    }
}
