//! A run, decided: what was asked for on the command line, checked against what there is.

pub(crate) mod options;
pub(crate) mod values;

use crate::arms::{ARMS, Arm, BASELINE, SETS};
use crate::results::record::Sweep;
use crate::workloads::{Prover, WorkloadSpec};
use std::path::PathBuf;
use std::time::Duration;

/// What a run is asked for: by options, or by the gate.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// Names; none is all of the prover.
    pub(crate) workloads: Vec<String>,
    /// Each workload at each size.
    pub(crate) sizes: Vec<Size>,
    /// Each of those on each number of threads.
    pub(crate) thread_counts: Vec<usize>,
    /// Which of the two above is varied, if any.
    pub(crate) sweep: Option<Sweep>,
    /// Names of arms and of sets of them.
    pub(crate) allocators: Vec<String>,
    pub(crate) rounds: u32,
    pub(crate) processes: Option<u32>,
    pub(crate) alone: u32,
    pub(crate) precision: Option<f64>,
    pub(crate) max_time: Option<Duration>,
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    pub(crate) timeout: Option<Duration>,
    pub(crate) out: Option<PathBuf>,
    pub(crate) json: bool,
}

/// Time for each point when `--until-precise` comes without `--max-time`.
pub(crate) const PRECISE_TIME: Duration = Duration::from_secs(300);

impl Request {
    /// Of `prover`, checked against what there is.
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

/// Everything that a run depends on, beside the machine.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) prover: &'static Prover,
    pub(crate) points: Vec<Point>,
    /// What the points vary, if anything.
    pub(crate) sweep: Option<Sweep>,
    pub(crate) contestants: Vec<Contestant>,
    /// Warm rounds, over all processes of an arm.
    pub(crate) rounds: u32,
    /// Processes of an arm; `None` is as many as the workload is worth.
    pub(crate) processes: Option<u32>,
    /// Passes in which each arm makes its first proof alone.
    pub(crate) alone: u32,
    /// Rounds are added until every interval is at most this wide, in parts of the baseline's time.
    pub(crate) precision: Option<f64>,
    /// When to stop in any case.
    pub(crate) max_time: Option<Duration>,
    /// Of the prover's pool, unless the points vary it.
    pub(crate) threads: usize,
    /// Decides order, inputs and resampling.
    pub(crate) seed: u64,
    /// Longest wait for one answer; `None` derives it from the proofs seen.
    pub(crate) timeout: Option<Duration>,
    /// Where the run's folder is made; `None` is cargo's target directory.
    pub(crate) out: Option<PathBuf>,
    /// The result goes to stdout as JSON, in place of tables.
    pub(crate) json: bool,
}

impl Plan {
    /// Processes of an arm of `spec`, one after the other.
    pub(crate) fn processes(&self, spec: &WorkloadSpec) -> u32 {
        let fitting = (self.rounds / 3).clamp(FEWEST_PROCESSES, MOST_PROCESSES);
        let fitting = spec.max_processes.map_or(fitting, |most| most.min(fitting));
        self.processes.unwrap_or(fitting).min(self.rounds)
    }
}

/// Without `--processes`, a process makes three warm proofs: more processes are worth more than more rounds in each, but
/// an allocator that keeps memory may still ask for some in the first warm proof, and the median should be of those
/// after it. Four processes give a verdict, and beyond ten there is little to gain from another.
const FEWEST_PROCESSES: u32 = 4;
const MOST_PROCESSES: u32 = 10;

/// A size that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Size {
    /// The workload's own.
    #[default]
    Own,
    /// The workload's in the gate: small.
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

/// An arm that takes part. An allocator listed twice takes part twice, which shows what the method makes of no
/// difference at all (an A/A run).
#[derive(Clone, Debug)]
pub(crate) struct Contestant {
    pub(crate) label: String,
    pub(crate) arm: &'static Arm,
}

/// A command line that cannot be followed: one line that names what was given and what is valid.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum UsageError {
    #[error("unknown {kind} {given:?}: valid are {valid}")]
    Unknown { kind: &'static str, given: String, valid: String },
    #[error("{workload} takes --log-rows {min} to {max}, not {given}")]
    Size { workload: &'static str, given: u32, min: u32, max: u32 },
    #[error("{0}")]
    Other(String),
}

/// Finds each name among the known ones.
pub(crate) fn find_all<T>(
    kind: &'static str,
    given: &[String],
    known: &'static [T],
    name: impl Fn(&T) -> &'static str,
) -> Result<Vec<&'static T>, UsageError> {
    given.iter().map(|given| find(kind, given, known, &name)).collect()
}

/// Finds one name among the known ones.
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

/// The workloads of `prover` named in `names` (all, if none is), at this size.
pub(crate) fn workloads(
    prover: &'static Prover,
    names: &[String],
    size: Size,
) -> Result<Vec<SizedWorkload>, UsageError> {
    let specs = match names {
        [] => prover.workloads.iter().collect(),
        names => find_all("workload", names, prover.workloads, |spec| spec.name)?,
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

/// Every workload of `prover` named in `names` (all, if none is), each at every one of `sizes` with every one of `threads`.
/// The points of a workload come together.
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

/// The arms that `names` stand for, in that order. A set adds those that are not named otherwise; a name given twice is
/// two arms, numbered from the second on.
pub(crate) fn contestants(names: &[String]) -> Result<Vec<Contestant>, UsageError> {
    let mut arms: Vec<&'static Arm> = Vec::new();
    for given in names {
        match SETS.iter().find(|set| set.name == given) {
            Some(set) => {
                let is_new = |arm: &Arm| {
                    names.iter().map(String::as_str).chain(arms.iter().map(|arm| arm.name)).all(|name| name != arm.name)
                };
                let added: Vec<_> = ARMS.iter().filter(|arm| (set.contains)(arm) && is_new(arm)).collect();
                arms.extend(added);
            }
            None => arms.push(ARMS.iter().find(|arm| arm.name == given).ok_or_else(|| unknown_allocator(given))?),
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
    let valid: Vec<_> = SETS.iter().map(|set| set.name).chain(ARMS.iter().map(|arm| arm.name)).collect();
    UsageError::Unknown { kind: "allocator", given: given.into(), valid: valid.join(", ") }
}

/// Index of the arm that the others are compared with.
pub(crate) fn baseline(contestants: &[Contestant]) -> usize {
    contestants.iter().position(|contestant| contestant.arm.name == BASELINE).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// In an A/A run both rows need a name, or one overwrites the other.
    #[test]
    fn an_allocator_listed_twice_takes_part_twice_under_two_names() {
        let contestants = contestants(&names(&["jemalloc", "glibc", "glibc"])).unwrap();
        let labels: Vec<_> = contestants.iter().map(|contestant| contestant.label.as_str()).collect();
        assert_eq!(labels, ["jemalloc", "glibc", "glibc-2"]);
        assert_eq!(baseline(&contestants), 1);
    }

    /// A set must not make an A/A pair out of an arm that was also named, nor out of one that another set has too.
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

    #[test]
    fn without_glibc_the_first_arm_is_the_baseline() {
        assert_eq!(baseline(&contestants(&names(&["zk-alloc", "jemalloc"])).unwrap()), 0);
    }
}
