//! Runs one workload under all arms in lockstep: rounds in random order, one proof at a time. Every few rounds all arms
//! restart, so that no arm's figures depend on the luck of one process.

use crate::machine::memory;
use crate::measure::budget::Budget;
use crate::measure::interrupt::Interrupt;
use crate::measure::progress::Progress;
use crate::measure::schedule::Schedule;
use crate::measure::seat::{Seat, Turn, outcome_of};
use crate::plan::{self, Plan, Point, SizedWorkload};
use crate::results::format;
use crate::results::record::{self, Ended, Outcome, WorkloadResult};
use crate::results::samples::SampleLog;
use crate::results::timed::Timed;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait for an answer before the first proof, at a workload's default size or below.
const FIRST_WAIT: Duration = Duration::from_secs(120);
/// A proof that takes this many times as long as the slowest proof so far counts as hung.
const HANG_FACTOR: u32 = 20;

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
pub(super) struct Course<'a> {
    pub(super) point: Point,
    pub(super) schedule: Schedule,
    pub(super) seats: Vec<Seat<'a>>,
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
        let mut course = Course {
            point,
            schedule,
            seats: plan.contestants.iter().map(|contestant| Seat::new(contestant, schedule.proofs())).collect(),
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
                Some(slots) => self.turns(&mut course, process, slots)?,
                None => self.all_rounds_of(&mut course, process)?,
            };
            if let Some(ended) = ended {
                break ended;
            }
            process += 1;
            let widest = || {
                let arms: Vec<_> = course.seats.iter().map(|seat| seat.result.clone()).collect();
                record::widest_interval(&arms, course.baseline, plan.seed)
            };
            if let Some(ended) = schedule.ends_after(process, widest) {
                break ended;
            }
            if schedule.is_out_of_time() {
                break Ended::OutOfTime;
            }
            if process >= schedule.processes {
                self.expect_another(&mut course, process);
            }
        };
        for seat in &course.seats {
            self.progress.expect_fewer(seat.expected - seat.result.samples.len() as u64);
        }
        for pass in 0..plan.alone {
            self.alone(&mut course, pass);
        }
        let mut arms: Vec<_> = course.seats.into_iter().map(|seat| seat.result).collect();
        record::summarise(&mut arms, course.baseline, plan.seed);
        let Point { workload, threads } = point;
        Ok(WorkloadResult {
            workload: workload.spec.name.into(),
            about: workload.spec.about.into(),
            timed: if plan.slots.is_some() { Timed::Slots } else { Timed::Proofs },
            log_rows: workload.log_rows,
            threads,
            live_peak_bytes: record::live_peak_bytes(&arms),
            baseline: arms[course.baseline].label.clone(),
            arms,
            ended,
        })
    }

    /// Runs all rounds of the arms' processes with this number: starts the processes, runs cold and warm rounds, ends
    /// the processes. Returns the reason if the run ends here.
    fn all_rounds_of(&mut self, course: &mut Course<'a>, process: u32) -> anyhow::Result<Option<Ended>> {
        let mut ended = None;
        course.stack_bytes = course.randomness.random();
        for index in 0..=course.schedule.warm_rounds(process) {
            if index > 0 && course.schedule.is_out_of_time() {
                ended = Some(Ended::OutOfTime);
                break;
            }
            course.warm_rounds += u32::from(index > 0);
            let round = if index == 0 { 0 } else { course.warm_rounds };
            self.round(course, process, round)?;
            if self.interrupt.is_raised() {
                ended = Some(Ended::Interrupted);
                break;
            }
            if !course.seats.iter().any(Seat::takes_part) {
                return Ok(Some(Ended::NoArms));
            }
        }
        self.end_children(course, process, ended);
        Ok(ended)
    }

    /// One proof of every arm. Round 0 starts the arms' processes.
    fn round(&mut self, course: &mut Course<'a>, process: u32, round: u32) -> anyhow::Result<()> {
        let what = course.name_of(process, round);
        // All arms of a round prove the same input.
        let input = course.randomness.random();
        for (place, index) in course.order().into_iter().enumerate() {
            if self.interrupt.is_raised() {
                return Ok(());
            }
            let turn = Turn { process, round, order: place as u32, input };
            self.progress.proving(&what, &course.seats[index].contestant.label);
            let asked = Instant::now();
            let before = course.seats[index].result.samples.len();
            let ended = self.turn(course, index, turn);
            self.keep_samples(course, index, before)?;
            if let Err(outcome) = ended {
                self.leave(&mut course.seats[index], outcome);
            }
            course.slowest = course.slowest.max(asked.elapsed());
        }
        if !self.interrupt.is_raised() {
            self.progress.round_done(&what, &times(&course.seats, process, round));
        }
        Ok(())
    }

    /// Runs the turn of one arm. The error says why the arm drops out.
    fn turn(&self, course: &mut Course<'a>, index: usize, turn: Turn) -> Result<(), Outcome> {
        let limit = self.plan.timeout.unwrap_or_else(|| limit(course.point.workload, course.slowest));
        let baseline_waits = index != course.baseline && course.seats[course.baseline].result.samples.is_empty();
        let seat = &mut course.seats[index];
        if turn.round == 0 {
            // Only the first process is checked; later processes run the same arms again.
            if turn.process == 0
                && let Err(reason) = course.memory.admits(baseline_waits)
            {
                return Err(Outcome::LeftOut { reason });
            }
            let started = seat.start(&self.folder, self.plan, course.point, course.stack_bytes, &self.interrupt, limit);
            started.map_err(|failure| outcome_of(&failure, turn))?;
        }
        seat.prove(turn, limit)
    }

    /// One pass over all arms in random order. Each arm makes one first proof, after a pause and alone on the machine.
    fn alone(&mut self, course: &mut Course<'a>, pass: u32) {
        let input = course.randomness.random();
        course.stack_bytes = course.randomness.random();
        let order = course.order();
        let what = format!("{}, alone (pass {} of {})", course.size(), pass + 1, self.plan.alone);
        for (place, index) in order.into_iter().enumerate() {
            if self.interrupt.is_raised() {
                return;
            }
            let limit = self.plan.timeout.unwrap_or_else(|| limit(course.point.workload, course.slowest));
            let seat = &mut course.seats[index];
            self.progress.proving(&what, &seat.contestant.label);
            self.interrupt.sleep(ALONE_PAUSE);
            let turn = Turn { process: pass, round: 0, order: place as u32, input };
            let proved = seat
                .start(&self.folder, self.plan, course.point, course.stack_bytes, &self.interrupt, limit)
                .map_err(|failure| outcome_of(&failure, turn))
                .and_then(|()| seat.prove_alone(turn, limit, &self.interrupt));
            match proved {
                Ok(()) => {}
                // The samples of its rounds are complete, so the arm keeps its outcome.
                Err(Outcome::Interrupted) => seat.drop_child(),
                Err(outcome) => self.leave(&mut course.seats[index], outcome),
            }
        }
        let times = course.seats.iter().filter_map(|seat| {
            let proof = seat.result.alone.iter().find(|proof| proof.pass == pass)?;
            Some(format!("{} {}", seat.contestant.label, format::time(proof.sample.wall_ns)))
        });
        self.progress.round_done(&what, &times.collect::<Vec<_>>().join(", "));
    }

    /// Logs the arm's samples after the first `before`.
    pub(super) fn keep_samples(&mut self, course: &mut Course<'a>, index: usize, before: usize) -> anyhow::Result<()> {
        let Seat { contestant, result, .. } = &course.seats[index];
        let Point { workload, threads } = course.point;
        for proof in &result.samples[before..] {
            self.samples.append(workload.spec.name, workload.log_rows, threads, &contestant.label, proof)?;
            self.progress.proved();
            if (proof.process, proof.round) == (0, 0) {
                course.memory.take(proof.sample.peak_rss_bytes);
            }
        }
        Ok(())
    }

    /// Removes an arm from the run.
    pub(super) fn leave(&mut self, seat: &mut Seat, outcome: Outcome) {
        if let Some(text) = format::outcome(&outcome) {
            self.progress.note(&format!("{}: {text}", seat.contestant.label));
        }
        self.progress.expect_fewer(seat.expected - seat.result.samples.len() as u64);
        seat.expected = seat.result.samples.len() as u64;
        seat.leave(outcome);
    }

    /// Ends the children of all arms, one after another.
    fn end_children(&mut self, course: &mut Course<'a>, process: u32, ended: Option<Ended>) {
        let last = Turn { process, round: course.warm_rounds, order: 0, input: 0 };
        for seat in &mut course.seats {
            let complete = seat.result.samples.len() as u64 == seat.expected;
            if ended == Some(Ended::Interrupted) && seat.takes_part() && !complete {
                // Its process may be in the middle of a proof, so it is killed.
                seat.leave(Outcome::Interrupted);
            } else if let Err(outcome) = seat.end_child(last) {
                self.leave(seat, outcome);
            }
        }
    }

    /// Adds the process with this number to the planned ones.
    fn expect_another(&mut self, course: &mut Course<'a>, process: u32) {
        let proofs = 1 + u64::from(course.schedule.warm_rounds(process));
        for seat in course.seats.iter_mut().filter(|seat| seat.takes_part()) {
            seat.expected += proofs;
            self.progress.expect_more(proofs);
        }
    }
}

impl Course<'_> {
    /// The arms that take part, in random order.
    pub(super) fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.seats.len()).filter(|&index| self.seats[index].takes_part()).collect();
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

fn times(seats: &[Seat], process: u32, round: u32) -> String {
    let proofs = seats.iter().flat_map(|seat| seat.result.samples.iter().map(|proof| (&seat.contestant.label, proof)));
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
