//! Runs one workload under all arms in lockstep: in each round every arm proves once, in random order, one proof at a time. All arms start
//! new processes every few rounds, so that no result depends on the luck of a single process.
//!
//! An arm makes its proofs of two warm rounds back to back, like a prover under load. With one proof per turn, each arm would be idle most
//! of the time, while the others prove.

use crate::machine::host;
use crate::machine::process::{Resident, byte_seconds, highest, watch_rss};
use crate::measure::{ArmRunner, ChildProcess, Interrupt, Recording, Rounds, Schedule, Trial};
use crate::plan::{Contestant, Plan, Point, SizedWorkload, Slots};
use crate::protocol::Request;
use crate::results::{AloneProof, ArmResult, Ended, Outcome, RssPoint, Timed, WorkloadResult, format, whole_median};
use crate::sample::{Proved, Sample};
use crate::workloads::WorkloadSpec;
use rand::RngExt;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// Lower bound on the time limit for a child's answer, at a workload's default size or below. The limit may rise once earlier proofs show
/// how long one takes.
const FIRST_WAIT: Duration = Duration::from_secs(120);
/// Number of warm proofs that an arm makes back to back in one turn, one for each round.
const BACK_TO_BACK: u32 = 2;
/// Pause before a proof that runs alone. It gives the host time to reclaim free memory, so the proof is measured as if a user ran the
/// prover once in a while.
const ALONE_PAUSE: Duration = Duration::from_secs(12);
/// A proof that starts this long after its tick counts as late. This happens when the previous proof took longer than its slot.
const LATE: Duration = Duration::from_millis(100);
/// Maximum number of points in the curve of memory over a turn with proofs at fixed times.
const CURVE_POINTS: usize = 600;

/// An arm of the bench, and its child process while one runs.
struct Proving<'a> {
    contestant: &'a Contestant,
    child: Option<ChildProcess>,
    /// Number of proofs made by the current child.
    made: u32,
}

type Runner<'a> = ArmRunner<Proving<'a>>;
type Arms<'r, 'a> = Rounds<'r, Proving<'a>>;

/// Returns the schedule of `spec` under `plan`. No round starts after `deadline`.
pub(super) fn schedule(plan: &Plan, spec: &WorkloadSpec, deadline: Option<Instant>) -> Schedule {
    let (rounds, precision) = (plan.args.rounds, plan.args.measured.until_precise);
    Schedule { rounds, processes: plan.processes(spec), is_cold_first: true, precision, deadline }
}

/// Runs one point until its rounds end, `deadline` passes, or the user interrupts it. `folder` contains the arms'
/// binaries. Fails only if samples cannot be written.
pub(super) fn run(
    plan: &Plan,
    folder: &Path,
    point: Point,
    deadline: Option<Instant>,
    interrupt: &Interrupt,
    recording: &mut Recording,
) -> anyhow::Result<WorkloadResult> {
    let Point { workload, threads } = point;
    let arms = plan.contestants.iter().map(|contestant| {
        let mut result = ArmResult::new(&contestant.label, contestant.arm.name);
        result.known_to_fail = contestant.arm.known_to_fail.map(str::to_owned);
        (Proving { contestant, child: None, made: 0 }, result)
    });
    let schedule = schedule(plan, workload.spec, deadline);
    let columns = (workload.spec.name.to_owned(), workload.log_rows, threads);
    let mut arms =
        Rounds::new(arms, columns, schedule, (plan.args.measured.seed, plan.args.timeout), interrupt, recording);
    let mut lockstep = Lockstep { plan, folder, point, stack_bytes: 0, peak_rss_bytes: 0, warm_rounds: 0 };
    let ended = arms.run(|arms, process| {
        lockstep.stack_bytes = arms.randomness.random();
        match plan.slots {
            Some(slots) => lockstep.all_slots_of(arms, process, slots),
            None => lockstep.all_rounds_of(arms, process),
        }
    })?;
    for pass in 0..plan.args.alone {
        lockstep.alone(&mut arms, pass)?;
    }
    Ok(WorkloadResult {
        workload: workload.spec.name.into(),
        about: workload.spec.about.into(),
        timed: if plan.slots.is_some() { Timed::Slots } else { Timed::Proofs },
        log_rows: workload.log_rows,
        threads,
        ended,
        ..arms.result()
    })
}

/// The measurement of one point: what is fixed, and its state so far.
struct Lockstep<'a> {
    plan: &'a Plan,
    /// Folder of the arms' binaries.
    folder: &'a Path,
    point: Point,
    /// Offset within a page, in bytes, at which the stacks of the arms' processes begin. Each time the arms restart, one random offset is
    /// chosen for all of them, so it favours no arm.
    stack_bytes: u16,
    /// Highest peak of a cold proof so far.
    peak_rss_bytes: u64,
    /// Number of warm rounds so far.
    warm_rounds: u32,
}

impl<'a> Lockstep<'a> {
    /// Runs the rounds of each arm's process number `process`: starts these processes, runs the cold round and their warm rounds, and ends
    /// them. If no further rounds may follow, returns the reason.
    fn all_rounds_of(&mut self, arms: &mut Arms<'_, 'a>, process: u32) -> anyhow::Result<Option<Ended>> {
        let mut ended = None;
        let warm_rounds = arms.schedule.warm_rounds(process);
        let mut done = 0;
        self.rounds(arms, process, 0..1)?;
        while done < warm_rounds && !arms.interrupt.is_raised() && arms.is_any_left() {
            if arms.schedule.is_out_of_time() {
                ended = Some(Ended::OutOfTime);
                break;
            }
            let first = self.warm_rounds + 1;
            let count = BACK_TO_BACK.min(warm_rounds - done);
            self.warm_rounds += count;
            done += count;
            self.rounds(arms, process, first..first + count)?;
        }
        let last = Trial { process, round: self.warm_rounds, order: 0, input: 0 };
        for index in 0..arms.runners.len() {
            let runner = &mut arms.runners[index];
            if arms.interrupt.is_raised() {
                // Dropping the child kills its process, which may be in the middle of a proof.
                runner.arm.child = None;
            } else if let Err(outcome) = runner.end_child(last) {
                arms.leave(index, outcome);
            }
        }
        Ok(ended)
    }

    /// Makes one proof under every arm for each of `rounds`. Round 0 also starts the arms' processes.
    fn rounds(&mut self, arms: &mut Arms<'_, 'a>, process: u32, rounds: Range<u32>) -> anyhow::Result<()> {
        let (size, schedule) = (self.size(), arms.schedule);
        let name = |round| name_of(&size, schedule, process, round);
        arms.trials(process, rounds, name, |arms, index, trial| self.trial(arms, index, trial))
    }

    /// Runs one trial of an arm. The error states why the arm drops out.
    fn trial(&mut self, arms: &mut Arms<'_, 'a>, index: usize, trial: Trial) -> Result<Duration, Outcome> {
        let baseline_waits = index != arms.baseline && arms.runners[arms.baseline].result.samples.is_empty();
        // Memory is checked only before an arm's first process; its later processes need no more than the first.
        let is_first = (trial.process, trial.round) == (0, 0);
        if is_first && let Some(reason) = shortage(host::available_bytes(), self.peak_rss_bytes, baseline_waits) {
            return Err(Outcome::LeftOut { reason });
        }
        let begun = Instant::now();
        if trial.round == 0 {
            self.start(arms, index, trial)?;
        }
        let limit = self.limit(arms);
        let runner = &mut arms.runners[index];
        let ended = runner.prove(trial, limit);
        let last = runner.result.samples.last().map(|proof| &proof.sample);
        if is_first {
            self.peak_rss_bytes = self.peak_rss_bytes.max(last.map_or(0, |sample| sample.peak_rss_bytes));
        }
        let time = Duration::from_nanos(last.map_or(0, |sample| sample.wall_ns));
        ended.inspect_err(|_| runner.arm.child = None)?;
        arms.slowest = arms.slowest.max(begun.elapsed());
        Ok(time)
    }

    /// Runs one turn of every arm, with proofs at fixed times, as in a node or a service. Each arm is alone on the machine, makes one proof
    /// at each tick, and idles in between. If no further turns may follow, returns the reason.
    fn all_slots_of(&mut self, arms: &mut Arms<'_, 'a>, process: u32, slots: Slots) -> anyhow::Result<Option<Ended>> {
        // Chosen once, so that all arms prove the same inputs.
        let inputs: Vec<u64> = (0..slots.proofs).map(|_| arms.randomness.random()).collect();
        let mut ended = None;
        arms.turns(slots.proofs, |arms, index, order| {
            if ended.is_some() || arms.schedule.is_out_of_time() {
                ended = Some(Ended::OutOfTime);
                return Ok(());
            }
            let first = Trial { process, round: 0, order, input: inputs[0] };
            let proved = self.slots_of(arms, index, first, slots, &inputs);
            proved.inspect_err(|_| arms.runners[index].arm.child = None)
        })?;
        self.warm_rounds += slots.proofs - 1;
        Ok(ended)
    }

    /// Runs the turn of one arm in a new process, after a pause. The error states why the arm drops out.
    fn slots_of(
        &self,
        arms: &mut Arms<'_, 'a>,
        index: usize,
        first: Trial,
        slots: Slots,
        inputs: &[u64],
    ) -> Result<(), Outcome> {
        let limit = self.limit(arms);
        let what = format!("{}, a proof every {}", self.size(), format::time(slots.every.as_nanos() as u64));
        arms.recording.progress.begins(&what, &arms.runners[index].result.label);
        arms.interrupt.sleep(ALONE_PAUSE.min(slots.every * 3));
        self.start(arms, index, first)?;
        let runner = &mut arms.runners[index];
        let (watch, begun) = (watch_rss(runner.pid()), Instant::now());
        let (mut starts, mut late) = (Vec::new(), 0);
        for (number, &input) in (0..).zip(inputs) {
            let tick = slots.every * number;
            arms.interrupt.sleep(tick.saturating_sub(begun.elapsed()));
            if arms.interrupt.is_raised() {
                return Err(Outcome::Interrupted);
            }
            let start = begun.elapsed();
            late += u32::from(start > tick + LATE);
            starts.push(start);
            let round = if number == 0 { 0 } else { self.warm_rounds + number };
            let trial = Trial { round, input, ..first };
            // `turn_ended` adds `byte_seconds` when the turn is over.
            let proved = runner.ask(trial, limit)?;
            runner.add(trial, proved, None)?;
            arms.slowest = arms.slowest.max(begun.elapsed() - start);
        }
        let end = (slots.every * slots.proofs).max(begun.elapsed());
        arms.interrupt.sleep(end.saturating_sub(begun.elapsed()));
        runner.turn_ended(&watch.end().unwrap_or_default(), &starts, end, first.process == 0);
        let (label, of) = (&runner.result.label, slots.proofs);
        if late > 0 {
            let note = format!("{label}: {late} of {of} proofs began late, because the previous one took longer");
            arms.recording.progress.note(&note);
        }
        let times = runner.result.samples.iter().rev().take(starts.len()).map(|proof| proof.sample.wall_ns);
        let median = format::time(whole_median(times).unwrap_or(0));
        arms.recording.progress.round_done(&what, &format!("{label} {median} in the median"));
        runner.end_child(first)
    }

    /// Runs one pass over all arms: after a pause, each arm makes one proof in a new process, alone on the machine.
    fn alone(&mut self, arms: &mut Arms<'_, 'a>, pass: u32) -> anyhow::Result<()> {
        self.stack_bytes = arms.randomness.random();
        let what = format!("{}, alone (pass {} of {})", self.size(), pass + 1, self.plan.args.alone);
        let name = |_| what.clone();
        arms.trials(pass, 0..1, name, |arms, index, trial| {
            let limit = self.limit(arms);
            arms.interrupt.sleep(ALONE_PAUSE);
            let started = self.start(arms, index, trial);
            let runner = &mut arms.runners[index];
            let proved = started.and_then(|()| runner.prove_alone(trial, limit, arms.interrupt));
            match proved.inspect_err(|_| runner.arm.child = None) {
                // The arm has already completed its rounds, so an interrupt here does not change its outcome.
                Err(Outcome::Interrupted) => Ok(Duration::ZERO),
                proved => proved,
            }
        })
    }

    /// Starts the next child of an arm and sets the workload up in it.
    fn start(&self, arms: &mut Arms<'_, 'a>, index: usize, trial: Trial) -> Result<(), Outcome> {
        let (limit, runner) = (self.limit(arms), &mut arms.runners[index]);
        let Contestant { label, arm } = runner.arm.contestant;
        let Point { workload, threads } = self.point;
        let binary = self.folder.join(arm.binary);
        let mut environment = arm.variables();
        environment.push(("RAYON_NUM_THREADS".to_owned(), threads.to_string()));
        let request = Request::Setup {
            arm: label.clone(),
            prover: self.plan.prover.name.into(),
            workload: workload.spec.name.into(),
            log_rows: workload.log_rows,
            concurrent: self.plan.args.concurrent,
            requires: arm.requires(),
            stack_bytes: self.stack_bytes,
        };
        let child = ChildProcess::start(&binary, &environment, arms.interrupt).and_then(|mut child| {
            runner.result.identity = Some(child.set_up(&request, limit)?);
            Ok(child)
        });
        runner.arm.child = Some(child.map_err(|failure| trial.ended_by(&failure))?);
        runner.arm.made = 0;
        Ok(())
    }

    fn limit(&self, arms: &Arms<'_, 'a>) -> Duration {
        arms.limit(first_wait(self.point.workload))
    }

    fn size(&self) -> String {
        let Point { workload, threads } = self.point;
        format!("{} 2^{}, threads {threads}", workload.spec.name, workload.log_rows)
    }
}

/// Returns a round's name for the progress display.
fn name_of(size: &str, schedule: Schedule, process: u32, round: u32) -> String {
    let planned = process < schedule.processes;
    let of = |number: u32, all: u32| if planned { format!("{number} of {all}") } else { number.to_string() };
    let process = of(process + 1, schedule.processes);
    let round = if round == 0 { "cold".into() } else { format!("round {}", of(round, schedule.rounds)) };
    format!("{size}, {round} (process {process})")
}

/// Returns the lower bound on the time limit for a child's answer. Above the default size, it is proportional to the number of rows.
fn first_wait(workload: SizedWorkload) -> Duration {
    let doublings = workload.log_rows.saturating_sub(workload.spec.default_log_rows).min(12);
    FIRST_WAIT * (1 << doublings)
}

impl Runner<'_> {
    /// Returns the process ID of the child; 0 if none runs.
    fn pid(&self) -> u32 {
        self.arm.child.as_ref().map_or(0, ChildProcess::id)
    }

    /// Makes one proof while sampling the process's memory, and adds the proof to the samples.
    fn prove(&mut self, trial: Trial, limit: Duration) -> Result<(), Outcome> {
        let watch = watch_rss(self.pid());
        let proved = self.ask(trial, limit);
        let seen = watch.end().unwrap_or_default();
        // The report plots memory over time for two proofs of the first process: the cold one and the first warm one.
        if trial.process == 0 && trial.round <= 1 {
            self.result.rss_over_time.extend(RssPoint::of(trial.round, seen.iter().copied()));
        }
        let proved = proved?;
        let byte_seconds = byte_seconds(&seen, Duration::from_nanos(proved.0.wall_ns));
        self.add(trial, proved, byte_seconds)
    }

    /// Asks the child for a proof. Returns the sample and, if the proof does not count, the reason.
    fn ask(&mut self, trial: Trial, limit: Duration) -> Result<Proved, Outcome> {
        let child = self.arm.child.as_mut().ok_or_else(|| trial.failed("its process has ended".into()))?;
        let answer = child.prove(trial.round, trial.input, limit);
        let (sample, refusal) = answer.map_err(|failure| trial.ended_by(&failure))?;
        self.arm.made += 1;
        let reason = self.objection(&sample, refusal);
        Ok((sample, reason))
    }

    /// Adds a proof to the samples, even if it makes the arm fail.
    fn add(&mut self, trial: Trial, (sample, reason): Proved, byte_seconds: Option<u64>) -> Result<(), Outcome> {
        self.result.samples.push(trial.proof(byte_seconds, sample));
        reason.map_or(Ok(()), |reason| Err(trial.failed(reason)))
    }

    /// Computes the `byte_seconds` of a turn's samples, which are the last `starts.len()` samples, from the resident memory `seen` by the
    /// driver. Each sample covers the time from its start to the start of the next sample, or to `end` for the last one.
    fn turn_ended(&mut self, seen: &[(u32, u64)], starts: &[Duration], end: Duration, is_first: bool) {
        let until = |at: Duration| byte_seconds(seen, at).unwrap_or(0);
        let first = self.result.samples.len().saturating_sub(starts.len());
        let ends = starts.iter().skip(1).copied().chain([end]);
        for ((proof, &start), end) in self.result.samples[first..].iter_mut().zip(starts).zip(ends) {
            proof.byte_seconds = (!seen.is_empty()).then(|| until(end).saturating_sub(until(start)));
        }
        if is_first {
            self.result.rss_over_time.extend(RssPoint::of(0, highest(seen, CURVE_POINTS)));
        }
    }

    /// Makes one proof in the new child, reads the child's resident memory after 1 and 10 idle seconds, and ends the child.
    fn prove_alone(&mut self, trial: Trial, limit: Duration, interrupt: &Interrupt) -> Result<Duration, Outcome> {
        let (sample, reason) = self.ask(trial, limit)?;
        if let Some(reason) = reason {
            return Err(trial.failed(reason));
        }
        let (pid, time) = (self.pid(), Duration::from_nanos(sample.wall_ns));
        let [rss_after_1_s_bytes, rss_after_10_s_bytes] = [1, 9].map(|seconds| {
            interrupt.sleep(Duration::from_secs(seconds));
            Resident::of(pid).map(|resident| resident.bytes())
        });
        if !interrupt.is_raised() {
            let (pass, order) = (trial.process, trial.order);
            self.result.alone.push(AloneProof { pass, order, rss_after_1_s_bytes, rss_after_10_s_bytes, sample });
        }
        self.end_child(trial)?;
        Ok(time)
    }

    /// Returns why a proof does not count; `None` if it counts.
    fn objection(&self, sample: &Sample, refusal: Option<String>) -> Option<String> {
        let Proving { contestant, made, .. } = &self.arm;
        match refusal {
            Some(refusal) => Some(format!("proof {made} does not verify: {refusal}")),
            None if !sample.verified => Some(format!("proof {made} was not verified")),
            None => contestant.arm.objection(sample),
        }
    }

    /// Lets the child exit by itself. The arm fails if the child exits with a failure.
    fn end_child(&mut self, last: Trial) -> Result<(), Outcome> {
        let Some(child) = self.arm.child.take() else { return Ok(()) };
        self.result.stderr = child.finish().map_err(|failure| last.ended_by(&failure))?;
        Ok(())
    }
}

/// Returns why one more arm does not fit in the `available` memory; `None` if it fits, or if the available memory is unknown. The children
/// of all arms are alive at the same time. The arm is assumed to need `peak_rss_bytes`, the highest peak of any arm so far. If the baseline
/// has not started yet, the arm must leave room for it, because ratios need the baseline.
fn shortage(available: Option<u64>, peak_rss_bytes: u64, baseline_waits: bool) -> Option<String> {
    let (available, needed) = (available?, peak_rss_bytes * (1 + u64::from(baseline_waits)));
    if needed <= available {
        return None;
    }
    let [needed, available] = [needed, available].map(format::bytes);
    Some(format!("needs about {needed} of memory, and {available} are available"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::tests::PROVERS;

    #[test]
    fn waits_grow_with_the_size() {
        let spec = &PROVERS[0].workloads[0];
        let at = |log_rows| first_wait(SizedWorkload { spec, log_rows });
        assert_eq!(at(spec.default_log_rows - 3), FIRST_WAIT);
        assert_eq!(at(spec.default_log_rows + 2), FIRST_WAIT * 4);
    }

    /// An arm must be left out if starting it might trigger the OOM killer, or if it would take the memory that a baseline still needs: a
    /// run without the baseline has no ratios.
    #[test]
    fn an_arm_is_admitted_while_its_peak_and_a_waiting_baselines_fit() {
        let admits = |available, peak, baseline_waits| shortage(available, peak, baseline_waits).is_none();
        assert!(admits(Some(10), 0, true), "nothing to go by");
        assert!(admits(None, 100, true), "the kernel does not say");
        assert!(admits(Some(15), 10, false) && !admits(Some(15), 20, false));
        assert!(!admits(Some(15), 10, true), "would take the baseline's place");
    }
}
