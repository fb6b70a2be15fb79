//! Defines `result.json`, the record of a run: its proofs, and the summaries computed from them. Tables and reports are generated from this
//! record.

use crate::machine::Machine;
use crate::protocol::Identity;
use crate::results::predict::Prediction;
use crate::results::stats::{Ratio, Verdict, whole_median};
use crate::sample::Sample;
use crate::workloads::Concurrent;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::env;

/// Version of the file format. It increases whenever older `result.json` files would otherwise be misread.
pub(crate) const SCHEMA: u32 = 2;

/// Environment variable for programs that run `exec` on behalf of a user. It contains the command line that the user typed, one word per
/// line, and reports show it instead of the bench's own.
const STARTED_AS: &str = "PROVE_BENCH_STARTED_AS";

/// Name of the gauge with the peak of live bytes, which only some allocators report.
pub(super) const PEAK_LIVE_BYTES: &str = "peak_live_bytes";

/// A whole run.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Run {
    pub(crate) schema: u32,
    /// Name of the run's folder.
    pub(crate) run: String,
    /// The prover, or the command.
    pub(crate) prover: String,
    pub(crate) command_line: Vec<String>,
    pub(crate) seed: u64,
    /// Number of requested warm rounds.
    pub(crate) rounds: u32,
    /// Number of threads in the prover's pool. A sweep over threads overrides it in each workload's result.
    pub(crate) threads: usize,
    /// How many proofs each process makes concurrently. A sample covers all of them together.
    #[serde(default)]
    pub(crate) concurrent: Concurrent,
    /// The quantity that the run varies, if any. `workloads` then has an entry for each value.
    pub(crate) sweep: Option<Sweep>,
    /// The predictions for a larger size, if requested: an entry for each workload and arm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) predictions: Vec<Prediction>,
    pub(crate) machine: Machine,
    pub(crate) workloads: Vec<WorkloadResult>,
    /// Whether the user stopped the run, so rounds are missing.
    pub(crate) interrupted: bool,
    /// The advice of a run of a command; `None` for a prover.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<Advice>,
}

/// The conclusions from a run of a command, and the lines for a shell and a Dockerfile that select the recommended allocator.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Advice {
    /// Sentences on how much a better allocator could gain at most.
    pub(crate) ceiling: Vec<String>,
    /// Sentences on the recommended allocator and its cost.
    pub(crate) verdict: Vec<String>,
    /// The shell command line that uses the recommended allocator; `None` if the verdict is to change nothing.
    pub(crate) environment: Option<String>,
    /// Dockerfile lines that install the recommended allocator.
    pub(crate) dockerfile: Vec<String>,
}

/// The quantity that a sweep varies from point to point.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sweep {
    LogRows,
    Threads,
}

/// The results of all arms for one workload at one size, with one number of threads.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct WorkloadResult {
    pub(crate) workload: String,
    pub(crate) about: String,
    /// What each sample measures.
    #[serde(default)]
    pub(crate) timed: Timed,
    /// Binary logarithm of the rows; 0 for a command, which has no rows.
    pub(crate) log_rows: u32,
    /// Number of threads; 0 for a command, which chooses its own.
    pub(crate) threads: usize,
    /// Peak live bytes, as counted by the arena; `None` if no arm reports them.
    pub(crate) live_peak_bytes: Option<u64>,
    /// Label of the baseline arm.
    pub(crate) baseline: String,
    pub(crate) arms: Vec<ArmResult>,
    /// Why the rounds ended.
    #[serde(default)]
    pub(crate) ended: Ended,
}

/// Why the rounds of a workload ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ended {
    /// All requested rounds are done.
    #[default]
    AllRounds,
    /// Every interval is as narrow as requested.
    Precise,
    /// The time limit was reached.
    OutOfTime,
    /// All arms failed or were left out.
    NoArms,
    /// The user stopped the run.
    Interrupted,
}

/// The results of one arm for one workload.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct ArmResult {
    /// The arm's name in this run. An arm that is listed again gets a suffix.
    pub(crate) label: String,
    /// The arm's name on the command line.
    pub(crate) arm: String,
    pub(crate) outcome: Outcome,
    /// Why the arm is known to fail; its failure does not fail the run. `None` for other arms.
    pub(crate) known_to_fail: Option<String>,
    /// The process's description of itself; `None` if it failed before sending one.
    pub(crate) identity: Option<Identity>,
    /// Summary of the samples; `None` for an arm that failed or was left out.
    pub(crate) summary: Option<Summary>,
    pub(crate) samples: Vec<Proof>,
    /// The proofs that the arm made alone on the machine (`--alone`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) alone: Vec<AloneProof>,
    /// Resident memory of the arm's first process, sampled by the driver during its cold proof and its first warm proof, or during its
    /// first turn.
    pub(crate) rss_over_time: Vec<RssPoint>,
    /// Last lines of the process's stderr after a clean exit. After a failure, the reason quotes them instead.
    pub(crate) stderr: Vec<String>,
}

/// One sample of a process's resident memory.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct RssPoint {
    pub(crate) round: u32,
    /// Milliseconds since the proof was requested.
    pub(crate) at_ms: u32,
    pub(crate) rss_bytes: u64,
}

impl RssPoint {
    /// Converts pairs of milliseconds and bytes into points of this round.
    pub(crate) fn of(round: u32, seen: impl Iterator<Item = (u32, u64)>) -> impl Iterator<Item = Self> {
        seen.map(move |(at_ms, rss_bytes)| Self { round, at_ms, rss_bytes })
    }
}

/// How an arm ended.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The arm did not fail: every proof or run that it made was accepted.
    #[default]
    Finished,
    /// The arm failed in this round, for this reason.
    Failed { round: u32, reason: String },
    /// The arm was never started, for example because there was too little memory, or its library is not installed.
    LeftOut { reason: String },
    /// The user stopped the run.
    Interrupted,
}

impl Run {
    /// Creates the record of a run that begins now, with this machine and the command line of this process.
    pub(crate) fn begin(run: String, prover: &str, seed: u64, rounds: u32) -> Self {
        Self {
            schema: SCHEMA,
            run,
            prover: prover.into(),
            command_line: env::var(STARTED_AS)
                .map_or_else(|_| env::args().collect(), |words| words.lines().map(str::to_owned).collect()),
            seed,
            rounds,
            machine: Machine::observe(),
            ..Self::default()
        }
    }

    /// Returns whether a command was measured instead of a prover.
    pub(crate) fn is_of_command(&self) -> bool {
        self.workloads.iter().any(|workload| workload.timed.is_of_command())
    }

    /// Returns whether any arm failed that is not known to fail.
    pub(crate) fn any_failed(&self) -> bool {
        let mut arms = self.workloads.iter().flat_map(|workload| &workload.arms);
        arms.any(|arm| matches!(arm.outcome, Outcome::Failed { .. }) && arm.known_to_fail.is_none())
    }
}

impl WorkloadResult {
    /// Returns the result of these arms, summarised against the arm at `baseline`.
    pub(crate) fn of(mut arms: Vec<ArmResult>, baseline: usize, seed: u64) -> Self {
        summarise(&mut arms, baseline, seed);
        let (live_peak_bytes, baseline) = (live_peak_bytes(&arms), arms[baseline].label.clone());
        Self { live_peak_bytes, baseline, arms, ..Self::default() }
    }
}

impl ArmResult {
    /// Creates the result of an arm, before its first proof.
    pub(crate) fn new(label: &str, arm: &str) -> Self {
        Self { label: label.into(), arm: arm.into(), ..Self::default() }
    }
}

/// Summarises every arm that did not fail, against the arm at `baseline`.
fn summarise(arms: &mut [ArmResult], baseline: usize, seed: u64) {
    let reference = arms.get(baseline).filter(|arm| trusted(arm)).map(|arm| arm.samples.clone());
    for (index, arm) in arms.iter_mut().enumerate().filter(|(_, arm)| trusted(arm)) {
        let reference = reference.as_deref().filter(|_| index != baseline);
        arm.summary = Some(Summary::of(&arm.samples, reference, seed));
    }
}

/// Returns the highest peak of live bytes that any process of `arms` reported; `None` if none did.
pub(crate) fn live_peak_bytes(arms: &[ArmResult]) -> Option<u64> {
    let samples = arms.iter().filter(|arm| trusted(arm)).flat_map(|arm| &arm.samples);
    samples.filter_map(|proof| proof.sample.gauges.get(PEAK_LIVE_BYTES)).max().copied()
}

/// Returns the width of the widest interval, as a share of the baseline's time: infinity while any interval is missing, and 0 if there is
/// nothing to compare.
pub(crate) fn widest_interval(arms: &[ArmResult], baseline: usize, seed: u64) -> f64 {
    let reference = &arms[baseline];
    let others =
        arms.iter().enumerate().filter(|(index, arm)| *index != baseline && trusted(arm) && trusted(reference));
    let widths = others.map(|(_, arm)| {
        let ratios = warm_wall_ratios(&arm.samples, &reference.samples);
        let believed = Ratio::of_processes(&ratios, seed).and_then(|ratio| ratio.believed());
        believed.map_or(f64::INFINITY, |interval| interval.high - interval.low)
    });
    widths.fold(0.0, f64::max)
}

fn trusted(arm: &ArmResult) -> bool {
    matches!(arm.outcome, Outcome::Finished | Outcome::Interrupted)
}

/// What is timed in each sample.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Timed {
    /// Proofs in the harness's own processes: one cold proof, then warm ones.
    #[default]
    Proofs,
    /// Whole runs of a command, which are not divided into cold and warm.
    Runs,
    /// Intervals between lines of a command's output: in each run, one cold interval, then warm ones.
    Intervals,
    /// Proofs at fixed times, with idle time in between.
    Slots,
}

impl Timed {
    /// Returns the noun for one sample.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Proofs | Self::Slots => "proof",
            Self::Runs => "run",
            Self::Intervals => "interval",
        }
    }

    /// Returns the noun with its article, for phrases such as "page faults a proof".
    pub(crate) fn each(self) -> String {
        format!("{} {}", if self == Self::Intervals { "an" } else { "a" }, self.noun())
    }

    /// Returns whether the samples come from a command and not from a prover.
    pub(crate) fn is_of_command(self) -> bool {
        matches!(self, Self::Runs | Self::Intervals)
    }

    /// Returns whether the process continues after a sample, so that its memory at rest can be measured.
    pub(crate) fn rests(self) -> bool {
        self != Self::Runs
    }
}

/// A sample and its position in the run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Proof {
    /// Number of the arm's process that made the proof, from 0. All arms start their next process between the same two rounds.
    pub(crate) process: u32,
    /// Number of the round; 0 is the cold proof of a fresh process. Warm rounds are numbered from 1 across all processes.
    pub(crate) round: u32,
    /// Position of the arm in this round, from 0.
    pub(crate) order: u32,
    /// Resident memory integrated over the time of the proof, or over its whole slot with `--every`, in byte-seconds; `None` if it was not
    /// sampled.
    pub(crate) byte_seconds: Option<u64>,
    #[serde(flatten)]
    pub(crate) sample: Sample,
}

/// A proof made with `--alone`: the first proof of a process that has the machine to itself, after a pause.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct AloneProof {
    /// Number of the pass, from 0. Every arm proves once in a pass.
    pub(crate) pass: u32,
    /// Position of the arm in its pass, from 0.
    pub(crate) order: u32,
    /// Resident memory after one idle second.
    pub(crate) rss_after_1_s_bytes: Option<u64>,
    /// Resident memory after ten idle seconds.
    pub(crate) rss_after_10_s_bytes: Option<u64>,
    #[serde(flatten)]
    pub(crate) sample: Sample,
}

impl Proof {
    /// Returns whether this is the first proof of its process.
    pub(crate) fn is_cold(&self) -> bool {
        self.round == 0
    }

    pub(crate) fn is_warm(&self) -> bool {
        !self.is_cold()
    }
}

/// The summary of one arm. Cold and warm proofs are never mixed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Median wall-clock time of the processes' first proofs.
    pub(crate) cold_wall_ns: Option<u64>,
    /// Wall-clock time of the processes' first proofs, as a ratio to the baseline's.
    pub(crate) cold_ratio: Option<Ratio>,
    /// CPU time of the processes' first proofs, as a ratio to the baseline's.
    pub(crate) cold_cpu_ratio: Option<Ratio>,
    /// Median CPU time of the processes' first proofs, user and kernel.
    pub(crate) cold_cpu_ns: Option<u64>,
    /// Median number of minor faults in the processes' first proofs.
    pub(crate) cold_minflt: Option<u64>,
    /// Median wall-clock time of the warm proofs.
    pub(crate) warm_wall_ns: Option<u64>,
    /// Median CPU time of the warm proofs, user and kernel.
    pub(crate) warm_cpu_ns: Option<u64>,
    /// Median kernel time of the warm proofs.
    pub(crate) warm_sys_ns: Option<u64>,
    /// Median number of minor faults in the warm proofs.
    pub(crate) warm_minflt: Option<u64>,
    /// Median number of the allocator's system calls in a warm proof; `None` for an allocator that does not count them.
    pub(crate) warm_system_calls: Option<u64>,
    /// Highest resident memory over all proofs.
    pub(crate) peak_rss_bytes: Option<u64>,
    /// `peak_rss_bytes` divided by the baseline's.
    pub(crate) peak_rss_ratio: Option<f64>,
    /// Median over the warm proofs of resident memory integrated over time, in byte-seconds. This is how much of the host's memory a proof
    /// occupies, and for how long.
    pub(crate) warm_byte_seconds: Option<u64>,
    /// Resident memory after the last proof was dropped.
    pub(crate) resting_rss_bytes: Option<u64>,
    /// Wall-clock time of the warm proofs, as a ratio to the baseline's; `None` for the baseline itself, and if the baseline failed.
    pub(crate) wall_ratio: Option<Ratio>,
    /// CPU time of the warm proofs, as a ratio to the baseline's.
    pub(crate) cpu_ratio: Option<Ratio>,
    /// The verdict that follows from `wall_ratio`.
    pub(crate) verdict: Option<Verdict>,
}

impl Summary {
    /// Summarises `samples` against the baseline's samples, `reference`. For the baseline itself, `reference` is
    /// `None`.
    pub(crate) fn of(samples: &[Proof], reference: Option<&[Proof]>, seed: u64) -> Self {
        let median_of = |proofs: fn(&Proof) -> bool, figure: fn(&Proof) -> Option<u64>| {
            whole_median(samples.iter().filter(|proof| proofs(proof)).filter_map(figure))
        };
        let ratio_of = |proofs: fn(&Proof) -> bool, figure: fn(&Sample) -> u64| {
            Ratio::of_processes(&ratios(samples, reference?, proofs, figure), seed)
        };
        let wall_ratio = ratio_of(Proof::is_warm, |sample| sample.wall_ns);
        let peak_rss_bytes = peak_rss_bytes(samples);
        Self {
            cold_wall_ns: median_of(Proof::is_cold, |proof| Some(proof.sample.wall_ns)),
            cold_ratio: ratio_of(Proof::is_cold, |sample| sample.wall_ns),
            cold_cpu_ratio: ratio_of(Proof::is_cold, Sample::cpu_ns),
            cold_cpu_ns: median_of(Proof::is_cold, |proof| Some(proof.sample.cpu_ns())),
            cold_minflt: median_of(Proof::is_cold, |proof| Some(proof.sample.minflt)),
            warm_wall_ns: median_of(Proof::is_warm, |proof| Some(proof.sample.wall_ns)),
            warm_cpu_ns: median_of(Proof::is_warm, |proof| Some(proof.sample.cpu_ns())),
            warm_sys_ns: median_of(Proof::is_warm, |proof| Some(proof.sample.sys_ns)),
            warm_minflt: median_of(Proof::is_warm, |proof| Some(proof.sample.minflt)),
            warm_system_calls: median_of(Proof::is_warm, |proof| proof.sample.counters.get(SYSTEM_CALLS).copied()),
            peak_rss_ratio: peak_rss_bytes
                .zip(reference.and_then(self::peak_rss_bytes))
                .filter(|(_, reference)| *reference > 0)
                .map(|(bytes, reference)| bytes as f64 / reference as f64),
            peak_rss_bytes,
            warm_byte_seconds: median_of(Proof::is_warm, |proof| proof.byte_seconds),
            resting_rss_bytes: samples.last().map(|proof| proof.sample.rss_bytes).filter(|bytes| *bytes > 0),
            wall_ratio,
            cpu_ratio: ratio_of(Proof::is_warm, Sample::cpu_ns),
            verdict: wall_ratio.map(|ratio| ratio.verdict()),
        }
    }
}

/// Name of the counter of an allocator's own system calls, which only some allocators report.
const SYSTEM_CALLS: &str = "system_calls";
fn peak_rss_bytes(samples: &[Proof]) -> Option<u64> {
    // A peak of 0 means that a command exited before its memory was first sampled.
    samples.iter().map(|proof| proof.sample.peak_rss_bytes).max().filter(|bytes| *bytes > 0)
}

/// Returns the ratios of two arms' warm wall-clock times: one list per process, with one ratio per warm round in which both arms proved.
pub(crate) fn warm_wall_ratios(samples: &[Proof], reference: &[Proof]) -> Vec<Vec<f64>> {
    ratios(samples, reference, Proof::is_warm, |sample| sample.wall_ns)
}

/// Returns the ratios of a measurement under two arms: one list per process, with one ratio per round in which both arms proved.
pub(crate) fn ratios(
    samples: &[Proof],
    reference: &[Proof],
    proofs: fn(&Proof) -> bool,
    figure: fn(&Sample) -> u64,
) -> Vec<Vec<f64>> {
    let mut processes: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for proof in samples.iter().filter(|proof| proofs(proof)) {
        let place = (proof.process, proof.round);
        let Some(other) = reference.iter().find(|other| (other.process, other.round) == place) else { continue };
        let divisor = figure(&other.sample) as f64;
        if divisor > 0.0 {
            processes.entry(proof.process).or_default().push(figure(&proof.sample) as f64 / divisor);
        }
    }
    processes.into_values().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::tests::saved;
    use crate::results::format;
    use crate::sample::{Counters, tests::sample};
    use std::collections::BTreeSet;

    /// Returns an arm whose proof in round `i` took `wall_ns[i]`, all in one process.
    pub(crate) fn arm(label: &str, outcome: Outcome, wall_ns: &[u64]) -> ArmResult {
        let proof = |(round, &ns)| {
            let sample = sample(ns, Counters::new());
            Proof { process: 0, round, order: 0, byte_seconds: None, sample }
        };
        let samples = (0..).zip(wall_ns).map(proof).collect();
        ArmResult { outcome, samples, ..ArmResult::new(label, label) }
    }

    /// Reports show the stored summaries, so recomputing them from the samples must give the same values: for proofs in lockstep, for
    /// proofs at fixed times, and for runs of a command.
    #[test]
    fn the_figures_of_saved_runs_follow_from_their_samples() {
        let mut verdicts = BTreeSet::new();
        for name in ["hosts-madvise", "hosts-madvise-slots", "scaling-8-16", "bb-17"] {
            let run = saved(name);
            for workload in run.workloads {
                let baseline = workload.arms.iter().position(|arm| arm.label == workload.baseline).unwrap();
                let without = workload.arms.iter().map(|arm| ArmResult { summary: None, ..arm.clone() });
                let again = WorkloadResult::of(without.collect(), baseline, run.seed);
                assert_eq!(again.live_peak_bytes, workload.live_peak_bytes, "{name}");
                for (again, stored) in again.arms.iter().zip(&workload.arms) {
                    assert_eq!(again.summary, stored.summary, "{name}: {}", stored.label);
                    verdicts.insert(stored.summary.as_ref().unwrap().verdict.map(format::verdict));
                }
            }
        }
        let all = ["faster", "no difference shown", "slower", "too few rounds"].map(Some);
        assert!(verdicts.into_iter().eq([None].into_iter().chain(all)));
    }
}
