//! The plan of a run: the requested options, checked against the prover's workloads and the known arms.

pub(crate) mod options;
pub(crate) mod values;

use crate::arms::{self, ARMS, Arm, BASELINE, SETS, tuned};
use crate::results::record::Sweep;
use crate::together::Concurrent;
use crate::workloads::{Prover, WorkloadSpec};
use clap::{ArgMatches, FromArgMatches};
use std::path::PathBuf;
use std::time::Duration;

/// A requested run, from options or from the gate.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// Names of workloads; an empty list means all workloads of the prover.
    pub(crate) workloads: Vec<String>,
    /// Each workload runs at each size.
    pub(crate) sizes: Vec<Size>,
    /// Each of these runs on each number of threads.
    pub(crate) thread_counts: Vec<usize>,
    /// Whether the run varies the sizes or the numbers of threads, if either.
    pub(crate) sweep: Option<Sweep>,
    /// Names of arms and of sets of arms.
    pub(crate) allocators: Vec<String>,
    pub(crate) rounds: u32,
    pub(crate) processes: Option<u32>,
    pub(crate) alone: u32,
    pub(crate) slots: Option<Slots>,
    pub(crate) concurrent: Concurrent,
    pub(crate) precision: Option<f64>,
    pub(crate) max_time: Option<Duration>,
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    pub(crate) timeout: Option<Duration>,
    pub(crate) out: Option<PathBuf>,
    pub(crate) json: bool,
}

/// Time limit for each point if `--until-precise` comes without `--max-time`.
pub(crate) const PRECISE_TIME: Duration = Duration::from_secs(300);

impl Request {
    /// The plan for `prover`. Fails if the request names something unknown.
    pub(crate) fn plan(self, prover: &'static Prover) -> Result<Plan, UsageError> {
        let points = points(prover, &self.workloads, &self.sizes, &self.thread_counts)?;
        let precise_time = self.precision.map(|_| PRECISE_TIME * points.len() as u32);
        Ok(Plan {
            prover,
            points,
            sweep: self.sweep,
            contestants: contestants(&self.allocators)?,
            rounds: self.rounds,
            processes: self.processes,
            alone: self.alone,
            slots: self.slots,
            concurrent: self.concurrent,
            precision: self.precision,
            max_time: self.max_time.or(precise_time),
            threads: self.threads,
            seed: self.seed,
            timeout: self.timeout,
            out: self.out,
            json: self.json,
        })
    }
}

/// Everything that a run depends on, except the machine.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) prover: &'static Prover,
    pub(crate) points: Vec<Point>,
    /// The quantity that varies from point to point, if any.
    pub(crate) sweep: Option<Sweep>,
    pub(crate) contestants: Vec<Contestant>,
    /// Warm rounds, over all processes of an arm.
    pub(crate) rounds: u32,
    /// Processes of an arm; `None` derives the number from the rounds and the workload.
    pub(crate) processes: Option<u32>,
    /// Passes in which each arm makes its first proof alone.
    pub(crate) alone: u32,
    /// Proofs at fixed times instead of rounds in lockstep.
    pub(crate) slots: Option<Slots>,
    /// The proofs that each request makes at once.
    pub(crate) concurrent: Concurrent,
    /// Rounds are added until every interval is at most this wide, as a share of the baseline's time.
    pub(crate) precision: Option<f64>,
    /// Time limit of the run; it wins over `precision`.
    pub(crate) max_time: Option<Duration>,
    /// Threads of the prover's pool, unless the points vary them.
    pub(crate) threads: usize,
    /// Seed of the order, inputs and resampling.
    pub(crate) seed: u64,
    /// Longest wait for one answer; `None` derives it from the proofs so far.
    pub(crate) timeout: Option<Duration>,
    /// Parent of the run's folder; `None` means cargo's target directory.
    pub(crate) out: Option<PathBuf>,
    /// Print the result to stdout as JSON instead of tables.
    pub(crate) json: bool,
}

impl Plan {
    /// The number of processes of an arm of `spec`. They run one after another.
    pub(crate) fn processes(&self, spec: &WorkloadSpec) -> u32 {
        let fitting = (self.rounds / 3).clamp(FEWEST_PROCESSES, MOST_PROCESSES);
        let fitting = spec.max_processes.map_or(fitting, |most| most.min(fitting));
        self.processes.unwrap_or(fitting).min(self.rounds)
    }
}

/// Without `--processes`, each process makes three warm proofs. More processes help more than more rounds in each. But
/// an allocator that retains memory may still grow in the first warm proof, and the median should come from later ones.
/// Four processes give a verdict; more than ten gain little.
const FEWEST_PROCESSES: u32 = 4;
const MOST_PROCESSES: u32 = 10;

/// Proofs at fixed times, in the turn of one arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    /// The time from one proof's start to the next one's.
    pub(crate) every: Duration,
    /// The proofs of a turn. The first is cold.
    pub(crate) proofs: u32,
}

impl Slots {
    /// The slots of a turn that takes `turn`. Fails if it holds fewer than two.
    pub(crate) fn new(every: Duration, turn: Duration) -> Result<Self, UsageError> {
        let proofs = turn.as_nanos().checked_div(every.as_nanos()).and_then(|proofs| u32::try_from(proofs).ok());
        match proofs {
            Some(proofs) if proofs >= 2 => Ok(Self { every, proofs }),
            _ => Err(UsageError::Other("--for is at least twice --every: the first proof of a turn is cold".into())),
        }
    }
}

/// A requested size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Size {
    /// The workload's default size.
    #[default]
    Own,
    /// The workload's smaller size for the gate.
    Checked,
    LogRows(u32),
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

/// An arm that takes part. An allocator listed twice takes part twice (an A/A run), which shows the noise of the
/// method.
#[derive(Clone, Debug)]
pub(crate) struct Contestant {
    pub(crate) label: String,
    pub(crate) arm: &'static Arm,
}

/// An invalid command line. The message is one line that names the given value and the valid ones.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum UsageError {
    #[error("unknown {kind} {given:?}: valid are {valid}")]
    Unknown { kind: &'static str, given: String, valid: String },
    #[error("{workload} takes --log-rows {min} to {max}, not {given}")]
    Size { workload: &'static str, given: u32, min: u32, max: u32 },
    #[error("{0}")]
    Other(String),
}

/// The options of a command, as clap matched them.
pub(crate) fn parsed<T: FromArgMatches>(matches: &ArgMatches) -> Result<T, UsageError> {
    let first_line = |error: clap::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    T::from_arg_matches(matches).map_err(|error| UsageError::Other(first_line(error)))
}

/// Looks one name up in `known`.
pub(crate) fn find<T>(
    kind: &'static str,
    given: &str,
    known: &'static [T],
    name: impl Fn(&T) -> &'static str,
) -> Result<&'static T, UsageError> {
    known.iter().find(|item| name(item) == given).ok_or_else(|| UsageError::Unknown {
        kind,
        given: given.into(),
        valid: known.iter().map(name).collect::<Vec<_>>().join(", "),
    })
}

/// The workloads of `prover` in `names` at this size; all workloads if `names` is empty.
pub(crate) fn workloads(
    prover: &'static Prover,
    names: &[String],
    size: Size,
) -> Result<Vec<SizedWorkload>, UsageError> {
    let specs: Vec<_> = match names {
        [] => prover.workloads.iter().collect(),
        names => {
            let found = names.iter().map(|name| find("workload", name, prover.workloads, |spec| spec.name));
            found.collect::<Result<_, _>>()?
        }
    };
    let sized = |spec: &'static WorkloadSpec| {
        let given = match size {
            Size::Own => spec.default_log_rows,
            Size::Checked => spec.check_log_rows,
            Size::LogRows(given) => given,
        };
        let (min, max) = (spec.min_log_rows, spec.max_log_rows);
        if (min..=max).contains(&given) {
            Ok(SizedWorkload { spec, log_rows: given })
        } else {
            Err(UsageError::Size { workload: spec.name, given, min, max })
        }
    };
    specs.into_iter().map(sized).collect()
}

/// Every workload of `prover` in `names` (all if `names` is empty), at each of `sizes`, with each of `threads`. The
/// points of a workload are adjacent.
pub(crate) fn points(
    prover: &'static Prover,
    names: &[String],
    sizes: &[Size],
    threads: &[usize],
) -> Result<Vec<Point>, UsageError> {
    let sized: Vec<_> = sizes.iter().map(|&size| workloads(prover, names, size)).collect::<Result<_, _>>()?;
    let count = sized.first().map_or(0, Vec::len);
    let of_workload = |index: usize| sized.iter().map(move |workloads| workloads[index]);
    let points = (0..count).flat_map(of_workload);
    Ok(points.flat_map(|workload| threads.iter().map(move |&threads| Point { workload, threads })).collect())
}

/// The arms that `names` stand for, in that order. A set adds only arms that `names` does not list separately. A name
/// given twice yields two arms; the second gets the suffix `-2`.
pub(crate) fn contestants(names: &[String]) -> Result<Vec<Contestant>, UsageError> {
    let mut arms: Vec<&'static Arm> = Vec::new();
    for given in names {
        if let Some(set) = tuned::set(given) {
            arms.extend(set);
            continue;
        }
        match SETS.iter().find(|set| set.name == given) {
            Some(set) => {
                let is_new = |arm: &Arm| {
                    names.iter().map(String::as_str).chain(arms.iter().map(|arm| arm.name)).all(|name| name != arm.name)
                };
                let added: Vec<_> = ARMS.iter().filter(|arm| (set.contains)(arm) && is_new(arm)).collect();
                arms.extend(added);
            }
            None => arms.push(arms::named(given).ok_or_else(|| unknown_allocator(given))?),
        }
    }
    let labelled = arms.iter().enumerate().map(|(index, arm)| {
        let earlier = arms[..index].iter().filter(|other| other.name == arm.name).count();
        let label = if earlier == 0 { arm.name.into() } else { format!("{}-{}", arm.name, earlier + 1) };
        Contestant { label, arm }
    });
    Ok(labelled.collect())
}

fn unknown_allocator(given: &str) -> UsageError {
    let of_constants = tuned::SETS.into_iter().chain(["zk-alloc:CONSTANT=VALUE"]);
    let valid: Vec<_> =
        SETS.iter().map(|set| set.name).chain(ARMS.iter().map(|arm| arm.name)).chain(of_constants).collect();
    UsageError::Unknown { kind: "allocator", given: given.into(), valid: valid.join(", ") }
}

/// Index of the baseline arm.
pub(crate) fn baseline(contestants: &[Contestant]) -> usize {
    contestants.iter().position(|contestant| contestant.arm.name == BASELINE).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// In an A/A run both rows need their own name, or one overwrites the other.
    #[test]
    fn an_allocator_listed_twice_takes_part_twice_under_two_names() {
        let contestants = contestants(&names(&["jemalloc", "glibc", "glibc"])).unwrap();
        let labels: Vec<_> = contestants.iter().map(|contestant| contestant.label.as_str()).collect();
        assert_eq!(labels, ["jemalloc", "glibc", "glibc-2"]);
        assert_eq!(baseline(&contestants), 1);
    }

    /// A set must not add an arm twice if the arm is also named, or belongs to another given set.
    #[test]
    fn sets_add_only_what_is_missing_and_names_repeat() {
        let labels = |given: &[&str]| {
            let contestants = contestants(&names(given)).unwrap();
            contestants.into_iter().map(|contestant| contestant.label).collect::<Vec<_>>()
        };
        assert_eq!(labels(&["quick"]), ["glibc", "jemalloc", "zk-alloc"]);
        assert_eq!(labels(&["quick", "glibc"]), ["jemalloc", "zk-alloc", "glibc"]);
        assert_eq!(labels(&["glibc", "glibc", "quick"]), ["glibc", "glibc-2", "jemalloc", "zk-alloc"]);
        assert_eq!(labels(&["quick", "all"]).len(), ARMS.len());
        let peers = labels(&["peers"]);
        for name in
            ["glibc-tuned", "jemalloc-tuned", "mimalloc-tuned", "snmalloc", "tcmalloc-tuned", "bump-reset", "zk-alloc"]
        {
            assert!(peers.iter().any(|peer| peer == name), "{name}");
        }
        assert!(!peers.iter().any(|peer| peer.starts_with("zk-alloc-")));
    }

    /// A turn of one proof would have no warm one, and no memory between proofs.
    #[test]
    fn a_turn_holds_two_slots_at_least() {
        let slots = |every, turn| Slots::new(Duration::from_secs(every), Duration::from_secs(turn));
        let (every, proofs) = (Duration::from_secs(4), 30);
        assert_eq!(slots(4, 120), Ok(Slots { every, proofs }));
        assert_eq!(slots(4, 123), Ok(Slots { every, proofs }));
        assert!(slots(4, 7).unwrap_err().to_string().contains("--for"));
        assert!(slots(0, 120).is_err());
    }

    #[test]
    fn without_glibc_the_first_arm_is_the_baseline() {
        assert_eq!(baseline(&contestants(&names(&["zk-alloc", "jemalloc"])).unwrap()), 0);
    }
}
