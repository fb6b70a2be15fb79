//! Runs one workload under all arms in lockstep: rounds in random order, one proof at a time. Every few rounds all arms
//! restart, so that no arm's figures depend on the luck of one process.
//!
//! An arm makes its proofs of two warm rounds one after the other, as a program does that proves back to back. With one
//! proof a turn, every arm would wait longer between its proofs than it proves.

use crate::machine::memory;
use crate::measure::arm_runner::{ArmRunner, Trial, outcome_of};
use crate::measure::interrupt::Interrupt;
use crate::measure::progress::Progress;
use crate::measure::schedule::{Budget, HANG_FACTOR, Schedule};
use crate::plan::{self, Plan, Point, SizedWorkload};
use crate::results::columns::SampleLog;
use crate::results::format;
use crate::results::record::{self, Ended, Outcome, Timed, WorkloadResult};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait for an answer before the first proof, at a workload's default size or below.
const FIRST_WAIT: Duration = Duration::from_secs(120);

/// Warm rounds whose proofs an arm makes one after the other.
const BACK_TO_BACK: u32 = 2;

/// Pause before a proof alone. By then a host that reclaims free memory has done so, and the proof runs under the
/// conditions of a command that is started occasionally.
pub(super) const ALONE_PAUSE: Duration = Duration::from_secs(12);

/// State shared by the runs of all points.
pub(crate) struct Lockstep<'a> {
    pub(crate) plan: &'a Plan,
    /// Folder of the arms' binaries.
    pub(crate) folder: PathBuf,
    pub(crate) interrupt: Interrupt,
    pub(crate) progress: Progress,
    pub(crate) samples: SampleLog,
}

/// The run of one point.
pub(super) struct PointRun<'a> {
    pub(super) point: Point,
    pub(super) schedule: Schedule,
    pub(super) runners: Vec<ArmRunner<'a>>,
    /// Index of the baseline arm.
    baseline: usize,
    pub(super) randomness: StdRng,
    /// Offset in a page at which the stacks of the arms' processes begin. It is drawn once for each set of processes,
    /// so that no arm owes its time to it.
    pub(super) stack_bytes: u16,
    memory: Budget,
    pub(super) slowest: Duration,
    /// Warm rounds so far.
    pub(super) warm_rounds: u32,
}

impl<'a> Lockstep<'a> {
    /// Runs one point until its rounds end, `deadline` passes, or the user interrupts it. Fails only if samples cannot
    /// be written.
    pub(crate) fn run(&mut self, point: Point, deadline: Option<Instant>) -> anyhow::Result<WorkloadResult> {
        let plan: &'a Plan = self.plan;
        let schedule = Schedule::new(plan, point.workload.spec, deadline);
        let mut run = PointRun {
            point,
            schedule,
            runners: plan.contestants.iter().map(|contestant| ArmRunner::new(contestant, schedule.proofs())).collect(),
            baseline: plan::baseline(&plan.contestants),
            randomness: StdRng::seed_from_u64(plan.seed),
            stack_bytes: 0,
            memory: Budget::of(memory::available_bytes()),
            slowest: Duration::ZERO,
            warm_rounds: 0,
        };
        let mut process = 0;
        let ended = loop {
            let ended = match plan.slots {
                Some(slots) => self.turns(&mut run, process, slots)?,
                None => self.all_rounds_of(&mut run, process)?,
            };
            if let Some(ended) = ended {
                break ended;
            }
            process += 1;
            let widest = || {
                let arms: Vec<_> = run.runners.iter().map(|runner| runner.result.clone()).collect();
                record::widest_interval(&arms, run.baseline, plan.seed)
            };
            if let Some(ended) = schedule.ends_after(process, widest) {
                break ended;
            }
            if schedule.is_out_of_time() {
                break Ended::OutOfTime;
            }
            if process >= schedule.processes {
                self.expect_another(&mut run, process);
            }
        };
        for runner in &run.runners {
            self.progress.expect_fewer(runner.expected - runner.result.samples.len() as u64);
        }
        for pass in 0..plan.alone {
            self.alone(&mut run, pass);
        }
        let mut arms: Vec<_> = run.runners.into_iter().map(|runner| runner.result).collect();
        record::summarise(&mut arms, run.baseline, plan.seed);
        let Point { workload, threads } = point;
        Ok(WorkloadResult {
            workload: workload.spec.name.into(),
            about: workload.spec.about.into(),
            timed: if plan.slots.is_some() { Timed::Slots } else { Timed::Proofs },
            log_rows: workload.log_rows,
            threads,
            live_peak_bytes: record::live_peak_bytes(&arms),
            baseline: arms[run.baseline].label.clone(),
            arms,
            ended,
        })
    }

    /// Runs all rounds of the arms' processes with this number: starts the processes, runs cold and warm rounds, ends
    /// the processes. Returns the reason if the run ends here.
    fn all_rounds_of(&mut self, run: &mut PointRun<'a>, process: u32) -> anyhow::Result<Option<Ended>> {
        let mut ended = None;
        run.stack_bytes = run.randomness.random();
        let warm_rounds = run.schedule.warm_rounds(process);
        let mut done = 0;
        self.rounds(run, process, 0..1)?;
        while done < warm_rounds && !self.interrupt.is_raised() && run.runners.iter().any(ArmRunner::takes_part) {
            if run.schedule.is_out_of_time() {
                ended = Some(Ended::OutOfTime);
                break;
            }
            let first = run.warm_rounds + 1;
            let count = BACK_TO_BACK.min(warm_rounds - done);
            run.warm_rounds += count;
            done += count;
            self.rounds(run, process, first..first + count)?;
        }
        if self.interrupt.is_raised() {
            ended = Some(Ended::Interrupted);
        } else if !run.runners.iter().any(ArmRunner::takes_part) {
            return Ok(Some(Ended::NoArms));
        }
        self.end_children(run, process, ended);
        Ok(ended)
    }

    /// One proof of every arm for each of these rounds. Round 0 starts the arms' processes.
    fn rounds(&mut self, run: &mut PointRun<'a>, process: u32, rounds: Range<u32>) -> anyhow::Result<()> {
        // All arms of a round prove the same input.
        let inputs: Vec<u64> = rounds.clone().map(|_| run.randomness.random()).collect();
        for (place, index) in run.order().into_iter().enumerate() {
            for (round, &input) in rounds.clone().zip(&inputs) {
                if self.interrupt.is_raised() {
                    return Ok(());
                }
                if !run.runners[index].takes_part() {
                    break;
                }
                let trial = Trial { process, round, order: place as u32, input };
                self.progress.proving(&run.name_of(process, round), &run.runners[index].contestant.label);
                let asked = Instant::now();
                let before = run.runners[index].result.samples.len();
                let ended = self.turn(run, index, trial);
                self.keep_samples(run, index, before)?;
                if let Err(outcome) = ended {
                    self.leave(&mut run.runners[index], outcome);
                }
                run.slowest = run.slowest.max(asked.elapsed());
            }
        }
        if !self.interrupt.is_raised() {
            for round in rounds {
                self.progress.round_done(&run.name_of(process, round), &times(&run.runners, process, round));
            }
        }
        Ok(())
    }

    /// Runs the turn of one arm. The error says why the arm drops out.
    fn turn(&self, run: &mut PointRun<'a>, index: usize, trial: Trial) -> Result<(), Outcome> {
        let limit = self.plan.timeout.unwrap_or_else(|| limit(run.point.workload, run.slowest));
        let baseline_waits = index != run.baseline && run.runners[run.baseline].result.samples.is_empty();
        let runner = &mut run.runners[index];
        if trial.round == 0 {
            // Only the first process is checked; later processes run the same arms again.
            if trial.process == 0
                && let Err(reason) = run.memory.admits(baseline_waits)
            {
                return Err(Outcome::LeftOut { reason });
            }
            let started = runner.start(&self.folder, self.plan, run.point, run.stack_bytes, &self.interrupt, limit);
            started.map_err(|failure| outcome_of(&failure, trial))?;
        }
        runner.prove(trial, limit)
    }

    /// One pass over all arms in random order. Each arm makes one first proof, after a pause and alone on the machine.
    fn alone(&mut self, run: &mut PointRun<'a>, pass: u32) {
        let input = run.randomness.random();
        run.stack_bytes = run.randomness.random();
        let order = run.order();
        let what = format!("{}, alone (pass {} of {})", run.size(), pass + 1, self.plan.alone);
        for (place, index) in order.into_iter().enumerate() {
            if self.interrupt.is_raised() {
                return;
            }
            let limit = self.plan.timeout.unwrap_or_else(|| limit(run.point.workload, run.slowest));
            let runner = &mut run.runners[index];
            self.progress.proving(&what, &runner.contestant.label);
            self.interrupt.sleep(ALONE_PAUSE);
            let trial = Trial { process: pass, round: 0, order: place as u32, input };
            let proved = runner
                .start(&self.folder, self.plan, run.point, run.stack_bytes, &self.interrupt, limit)
                .map_err(|failure| outcome_of(&failure, trial))
                .and_then(|()| runner.prove_alone(trial, limit, &self.interrupt));
            match proved {
                Ok(()) => {}
                // The samples of its rounds are complete, so the arm keeps its outcome.
                Err(Outcome::Interrupted) => runner.drop_child(),
                Err(outcome) => self.leave(&mut run.runners[index], outcome),
            }
        }
        let times = run.runners.iter().filter_map(|runner| {
            let proof = runner.result.alone.iter().find(|proof| proof.pass == pass)?;
            Some(format!("{} {}", runner.contestant.label, format::time(proof.sample.wall_ns)))
        });
        self.progress.round_done(&what, &times.collect::<Vec<_>>().join(", "));
    }

    /// Logs the arm's samples after the first `before`.
    pub(super) fn keep_samples(&mut self, run: &mut PointRun<'a>, index: usize, before: usize) -> anyhow::Result<()> {
        let ArmRunner { contestant, result, .. } = &run.runners[index];
        let Point { workload, threads } = run.point;
        for proof in &result.samples[before..] {
            self.samples.append(workload.spec.name, workload.log_rows, threads, &contestant.label, proof)?;
            self.progress.proved();
            if (proof.process, proof.round) == (0, 0) {
                run.memory.take(proof.sample.peak_rss_bytes);
            }
        }
        Ok(())
    }

    /// Removes an arm from the run.
    pub(super) fn leave(&mut self, runner: &mut ArmRunner, outcome: Outcome) {
        if let Some(text) = format::outcome(&outcome) {
            self.progress.note(&format!("{}: {text}", runner.contestant.label));
        }
        self.progress.expect_fewer(runner.expected - runner.result.samples.len() as u64);
        runner.expected = runner.result.samples.len() as u64;
        runner.leave(outcome);
    }

    /// Ends the children of all arms, one after another.
    fn end_children(&mut self, run: &mut PointRun<'a>, process: u32, ended: Option<Ended>) {
        let last = Trial { process, round: run.warm_rounds, order: 0, input: 0 };
        for runner in &mut run.runners {
            let complete = runner.result.samples.len() as u64 == runner.expected;
            if ended == Some(Ended::Interrupted) && runner.takes_part() && !complete {
                // Its process may be in the middle of a proof, so it is killed.
                runner.leave(Outcome::Interrupted);
            } else if let Err(outcome) = runner.end_child(last) {
                self.leave(runner, outcome);
            }
        }
    }

    /// Adds the process with this number to the planned ones.
    fn expect_another(&mut self, run: &mut PointRun<'a>, process: u32) {
        let proofs = 1 + u64::from(run.schedule.warm_rounds(process));
        for runner in run.runners.iter_mut().filter(|runner| runner.takes_part()) {
            runner.expected += proofs;
            self.progress.expect_more(proofs);
        }
    }
}

impl PointRun<'_> {
    /// The arms that take part, in random order.
    pub(super) fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.runners.len()).filter(|&index| self.runners[index].takes_part()).collect();
        order.shuffle(&mut self.randomness);
        order
    }

    fn name_of(&self, process: u32, round: u32) -> String {
        let schedule = self.schedule;
        let planned = process < schedule.processes;
        let of = |number: u32, all: u32| if planned { format!("{number} of {all}") } else { number.to_string() };
        let process = of(process + 1, schedule.processes);
        let round = if round == 0 { "cold".into() } else { format!("round {}", of(round, schedule.rounds)) };
        format!("{}, {round} (process {process})", self.size())
    }

    pub(super) fn size(&self) -> String {
        let Point { workload, threads } = self.point;
        format!("{} 2^{}, threads {threads}", workload.spec.name, workload.log_rows)
    }
}

/// Longest wait for an answer. Work grows with the rows, so the first wait does too.
pub(super) fn limit(workload: SizedWorkload, slowest: Duration) -> Duration {
    let doublings = workload.log_rows.saturating_sub(workload.spec.default_log_rows).min(12);
    (FIRST_WAIT * (1 << doublings)).max(slowest * HANG_FACTOR)
}

fn times(runners: &[ArmRunner], process: u32, round: u32) -> String {
    let proofs =
        runners.iter().flat_map(|runner| runner.result.samples.iter().map(|proof| (&runner.contestant.label, proof)));
    let in_round = proofs.filter(|(_, proof)| (proof.process, proof.round) == (process, round));
    let times: Vec<_> =
        in_round.map(|(label, proof)| format!("{label} {}", format::time(proof.sample.wall_ns))).collect();
    times.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::tests::PROVERS;

    #[test]
    fn waits_grow_with_the_size_and_with_the_slowest_proof() {
        let spec = &PROVERS[0].workloads[0];
        let at = |log_rows, slowest| limit(SizedWorkload { spec, log_rows }, Duration::from_secs(slowest));
        assert_eq!(at(spec.default_log_rows - 3, 1), FIRST_WAIT);
        assert_eq!(at(spec.default_log_rows + 2, 1), FIRST_WAIT * 4);
        assert_eq!(at(spec.default_log_rows, 30), Duration::from_secs(600));
    }
}
