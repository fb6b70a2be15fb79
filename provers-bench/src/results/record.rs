//! What a run leaves behind: `result.json`, from which tables and reports are made.

use crate::machine::Machine;
use crate::protocol::Identity;
use crate::results::summary::Summary;
use crate::sample::Sample;
use serde::{Deserialize, Serialize};

/// Changes whenever a reader of an older `result.json` would misread it.
pub(crate) const SCHEMA: u32 = 2;

/// A whole run.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Run {
    pub(crate) schema: u32,
    /// Name of the run's folder.
    pub(crate) run: String,
    pub(crate) prover: String,
    pub(crate) command_line: Vec<String>,
    pub(crate) seed: u64,
    /// Warm rounds asked for.
    pub(crate) rounds: u32,
    /// Of the prover's pool, where a workload does not say otherwise.
    pub(crate) threads: usize,
    /// What the run varies: its workloads are then points of a curve.
    pub(crate) sweep: Option<Sweep>,
    pub(crate) machine: Machine,
    pub(crate) workloads: Vec<WorkloadResult>,
    /// The user stopped the run: rounds are missing.
    pub(crate) interrupted: bool,
}

/// What a sweep varies from point to point.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sweep {
    LogRows,
    Threads,
}

/// All arms of one workload at one size, with one number of threads.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct WorkloadResult {
    pub(crate) workload: String,
    pub(crate) about: String,
    pub(crate) log_rows: u32,
    pub(crate) threads: usize,
    /// The most bytes of the arena in use at once, as our arm counted; `None` where it took no part.
    pub(crate) live_peak_bytes: Option<u64>,
    /// Label of the arm that ratios are taken to.
    pub(crate) baseline: String,
    pub(crate) arms: Vec<ArmResult>,
    /// Why there were no more rounds.
    #[serde(default)]
    pub(crate) ended: Ended,
}

/// What ended the rounds of a workload.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ended {
    /// All that were asked for were made.
    #[default]
    AllRounds,
    /// Every interval is as narrow as was asked for.
    Precise,
    /// The time that was given is over.
    OutOfTime,
    /// No arm was left.
    NoArms,
    /// The user stopped the run.
    Interrupted,
}

/// One arm of one workload.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ArmResult {
    /// Its name in this run.
    pub(crate) label: String,
    /// The arm's name in the harness.
    pub(crate) arm: String,
    pub(crate) outcome: Outcome,
    /// Why it may fail without failing the run.
    #[serde(default)]
    pub(crate) known_to_fail: Option<String>,
    /// What the arm's process said of itself; `None` if it never got so far.
    pub(crate) identity: Option<Identity>,
    /// Figures over the samples; `None` for an arm that failed, whose samples prove nothing.
    pub(crate) summary: Option<Summary>,
    pub(crate) samples: Vec<Proof>,
    /// Resident memory of the first process, sampled by the driver while it made its cold and its first warm proof.
    pub(crate) rss_over_time: Vec<RssPoint>,
    /// Last lines of the process's stderr, if it ended well; a failure's reason quotes them.
    pub(crate) stderr: Vec<String>,
}

/// A sample and its place in the run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Proof {
    /// The arm's process that made it, from 0: arms are started again between rounds, all at once.
    pub(crate) process: u32,
    /// 0 is the cold proof of a fresh process; warm rounds are counted over all processes, from 1.
    pub(crate) round: u32,
    /// Place of the arm in this round, from 0.
    pub(crate) order: u32,
    #[serde(flatten)]
    pub(crate) sample: Sample,
}

impl Proof {
    /// The first of its process.
    pub(crate) fn is_cold(&self) -> bool {
        self.round == 0
    }

    pub(crate) fn is_warm(&self) -> bool {
        !self.is_cold()
    }
}

/// One look at a process's resident memory.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct RssPoint {
    pub(crate) round: u32,
    /// Since this proof was asked for.
    pub(crate) at_ms: u32,
    pub(crate) rss_bytes: u64,
}

/// How an arm ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// Proved in every round, and every proof was accepted.
    Finished,
    /// Stopped counting in this round, for this reason.
    Failed { round: u32, reason: String },
    /// Never started, because the memory would not have sufficed.
    LeftOut { reason: String },
    /// The user stopped the run.
    Interrupted,
}

impl Run {
    /// Some arm of some workload failed that is not known to.
    pub(crate) fn any_failed(&self) -> bool {
        let mut arms = self.workloads.iter().flat_map(|workload| &workload.arms);
        arms.any(|arm| matches!(arm.outcome, Outcome::Failed { .. }) && arm.known_to_fail.is_none())
    }
}
