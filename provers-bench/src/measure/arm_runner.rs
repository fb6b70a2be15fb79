//! One arm of one point: its processes, one after another, and the results of their proofs.

use crate::machine::{build_info, memory};
use crate::measure::interrupt::Interrupt;
use crate::measure::process::{ChildProcess, Failure};
use crate::measure::rss_watch::{RssWatch, byte_seconds, highest};
use crate::plan::{Contestant, Plan, Point};
use crate::protocol::{Identity, Request};
use crate::results::record::{AloneProof, ArmResult, Outcome, Proof, RssPoint};
use crate::sample::Sample;
use std::path::Path;
use std::time::Duration;

/// Points in the curve of a turn.
const CURVE_POINTS: usize = 600;

/// An arm, with its child while one runs.
pub(crate) struct ArmRunner<'a> {
    pub(crate) contestant: &'a Contestant,
    pub(crate) result: ArmResult,
    /// Proofs planned in total, including those already in its samples.
    pub(crate) expected: u64,
    child: Option<ChildProcess>,
    /// Proofs made by the current child.
    made: u32,
}

/// A proof to make: its place in the run, and its input.
#[derive(Clone, Copy)]
pub(crate) struct Trial {
    /// Number of the arm's process, from 0, as in the samples.
    pub(crate) process: u32,
    pub(crate) round: u32,
    pub(crate) order: u32,
    pub(crate) input: u64,
}

impl Trial {
    /// The report plots memory over time for two proofs of the first process: the cold one and the first warm one.
    fn is_kept_over_time(&self) -> bool {
        self.process == 0 && self.round <= 1
    }
}

impl<'a> ArmRunner<'a> {
    pub(crate) fn new(contestant: &'a Contestant, expected: u64) -> Self {
        let mut result = result_of(&contestant.label, contestant.arm.name);
        result.known_to_fail = contestant.arm.known_to_fail.map(str::to_owned);
        Self { contestant, result, expected, child: None, made: 0 }
    }

    /// Whether the arm still takes part. Its next process may still have to be started.
    pub(crate) fn takes_part(&self) -> bool {
        self.result.outcome == Outcome::Finished
    }

    /// Starts the arm's next child and sets the workload up in it.
    pub(crate) fn start(
        &mut self,
        folder: &Path,
        plan: &Plan,
        point: Point,
        stack_bytes: u16,
        interrupt: &Interrupt,
        limit: Duration,
    ) -> Result<(), Failure> {
        let Contestant { label, arm } = self.contestant;
        let binary = folder.join(arm.binary);
        let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let mut environment = owned(arm.environment);
        environment.push(("RAYON_NUM_THREADS".to_owned(), point.threads.to_string()));
        let mut child = ChildProcess::start(&binary, &environment, interrupt)?;
        let request = Request::Setup {
            arm: label.clone(),
            prover: plan.prover.name.into(),
            workload: point.workload.spec.name.into(),
            log_rows: point.workload.log_rows,
            concurrent: plan.concurrent,
            requires: owned(arm.confirms),
            stack_bytes,
        };
        let identity = child.set_up(&request, limit)?;
        let checked = check_build(&identity, &binary);
        self.result.identity = Some(identity);
        checked?;
        (self.child, self.made) = (Some(child), 0);
        Ok(())
    }

    /// Proves once. A finished proof is added to the samples even if it makes the arm fail.
    pub(crate) fn prove(&mut self, trial: Trial, limit: Duration) -> Result<(), Outcome> {
        let Some(child) = &mut self.child else { return Ok(()) };
        let Trial { round, input, .. } = trial;
        let watch = RssWatch::start(child.id());
        let answer = child.prove(round, input, limit);
        let seen = watch.stop();
        if trial.is_kept_over_time() {
            let points = seen.iter().map(|&(at_ms, rss_bytes)| RssPoint { round, at_ms, rss_bytes });
            self.result.rss_over_time.extend(points);
        }
        self.take_in(trial, answer, |sample| byte_seconds(&seen, Duration::from_nanos(sample.wall_ns)))
    }

    /// Proves once at its fixed time. The memory of the turn is added by [`turn_ended`](Self::turn_ended).
    pub(crate) fn prove_on_time(&mut self, trial: Trial, limit: Duration) -> Result<(), Outcome> {
        let Some(child) = &mut self.child else { return Ok(()) };
        let answer = child.prove(trial.round, trial.input, limit);
        self.take_in(trial, answer, |_| None)
    }

    /// The process of the current child; `None` without one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(ChildProcess::id)
    }

    /// Adds the resident memory of a turn to its samples, the last `starts.len()`: each has that of its slot, from its
    /// start to the next one's. `end` is that of the last slot.
    pub(crate) fn turn_ended(&mut self, seen: &[(u32, u64)], starts: &[Duration], end: Duration, is_first: bool) {
        let until = |at: Duration| byte_seconds(seen, at).unwrap_or(0);
        let first = self.result.samples.len().saturating_sub(starts.len());
        let ends = starts.iter().skip(1).copied().chain([end]);
        for ((proof, &start), end) in self.result.samples[first..].iter_mut().zip(starts).zip(ends) {
            proof.byte_seconds = (!seen.is_empty()).then(|| until(end).saturating_sub(until(start)));
        }
        if is_first {
            let points = highest(seen, CURVE_POINTS);
            self.result.rss_over_time.extend(points.map(|(at_ms, rss_bytes)| RssPoint { round: 0, at_ms, rss_bytes }));
        }
    }

    /// Takes in a proof. It is added to the samples even if it makes the arm fail.
    fn take_in(
        &mut self,
        trial: Trial,
        answer: Result<(Sample, Option<String>), Failure>,
        byte_seconds: impl FnOnce(&Sample) -> Option<u64>,
    ) -> Result<(), Outcome> {
        let Trial { process, round, order, .. } = trial;
        let (sample, refusal) = answer.map_err(|failure| outcome_of(&failure, trial))?;
        self.made += 1;
        let reason = self.objection(&sample, refusal);
        let byte_seconds = byte_seconds(&sample);
        self.result.samples.push(Proof { process, round, order, byte_seconds, sample });
        reason.map_or(Ok(()), |reason| Err(Outcome::Failed { round, reason }))
    }

    /// Makes one proof in a process that was [started](Self::start) for it, reads its resident memory after 1 and 10
    /// idle seconds, and ends the process.
    pub(crate) fn prove_alone(&mut self, trial: Trial, limit: Duration, interrupt: &Interrupt) -> Result<(), Outcome> {
        let Some(child) = &mut self.child else { return Ok(()) };
        let (pid, answer) = (child.id(), child.prove(trial.round, trial.input, limit));
        let (sample, refusal) = answer.map_err(|failure| outcome_of(&failure, trial))?;
        self.made += 1;
        if let Some(reason) = self.objection(&sample, refusal) {
            return Err(Outcome::Failed { round: trial.round, reason });
        }
        interrupt.sleep(Duration::from_secs(1));
        let rss_after_1_s_bytes = memory::rss_bytes_of(pid);
        interrupt.sleep(Duration::from_secs(9));
        let rss_after_10_s_bytes = memory::rss_bytes_of(pid);
        if !interrupt.is_raised() {
            let (pass, order) = (trial.process, trial.order);
            self.result.alone.push(AloneProof { pass, order, rss_after_1_s_bytes, rss_after_10_s_bytes, sample });
        }
        self.end_child(trial)
    }

    /// Why a proof does not count; `None` if it counts.
    fn objection(&self, sample: &Sample, refusal: Option<String>) -> Option<String> {
        match refusal {
            Some(refusal) => Some(format!("proof {} does not verify: {refusal}", self.made)),
            None if !sample.verified => Some(format!("proof {} was not verified", self.made)),
            None => self.contestant.arm.holds.iter().find_map(|condition| condition.broken_by(sample)),
        }
    }

    /// Drops out with `outcome`; the child is killed.
    pub(crate) fn leave(&mut self, outcome: Outcome) {
        self.child = None;
        self.result.outcome = outcome;
    }

    /// Kills the child; the arm still takes part.
    pub(crate) fn drop_child(&mut self) {
        self.child = None;
    }

    /// Lets the child exit by itself. A failing exit fails the arm.
    pub(crate) fn end_child(&mut self, last: Trial) -> Result<(), Outcome> {
        let Some(child) = self.child.take() else { return Ok(()) };
        self.result.stderr = child.finish().map_err(|failure| outcome_of(&failure, last))?;
        Ok(())
    }
}

/// The result of an arm before its first proof.
pub(crate) fn result_of(label: &str, arm: &str) -> ArmResult {
    ArmResult {
        label: label.into(),
        arm: arm.into(),
        outcome: Outcome::Finished,
        known_to_fail: None,
        identity: None,
        summary: None,
        samples: Vec::new(),
        alone: Vec::new(),
        rss_over_time: Vec::new(),
        stderr: Vec::new(),
    }
}

/// The outcome of an arm after `failure`.
pub(crate) fn outcome_of(failure: &Failure, trial: Trial) -> Outcome {
    let Trial { process, round, .. } = trial;
    match failure {
        Failure::Interrupted => Outcome::Interrupted,
        // Rounds are numbered across all processes; cold rounds are not, so the reason names the process.
        failure if round == 0 && process > 0 => {
            Outcome::Failed { round, reason: format!("process {}: {failure}", process + 1) }
        }
        failure => Outcome::Failed { round, reason: failure.to_string() },
    }
}

/// Fails if the arm was built from other sources or with other flags than the driver. Its figures would carry a wrong
/// name.
pub(crate) fn check_build(identity: &Identity, binary: &Path) -> Result<(), Failure> {
    if identity.build == build_info::current() {
        return Ok(());
    }
    let again = "`cargo build --release --bins` builds all";
    Err(Failure::Workload(format!("not built from prove-bench's sources and flags: {} ({again})", binary.display())))
}
