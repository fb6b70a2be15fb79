//! Runs rounds in random order of the arms. Each round has one trial per arm: a proof, or a run of a command. Decides which arm is next,
//! when the rounds end, and when a trial counts as hung, and shows progress.

use crate::arms::BASELINE;
use crate::measure::{Failure, Interrupt, Recording};
use crate::results::{ArmResult, Ended, Outcome, Proof, WorkloadResult, format, widest_interval};
use crate::sample::Sample;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::io::{IsTerminal, stderr};
use std::ops::Range;
use std::time::{Duration, Instant};

/// A trial counts as hung once it has taken this many times as long as the slowest trial so far.
const HANG_FACTOR: u32 = 20;

/// One proof, or one run of a command: its position in the whole run, and its input.
#[derive(Clone, Copy)]
pub(crate) struct Trial {
    /// Number of the arm's process, from 0, as in the samples.
    pub(crate) process: u32,
    pub(crate) round: u32,
    pub(crate) order: u32,
    pub(crate) input: u64,
}

impl Trial {
    /// Returns the record of this trial: its position, and what was measured.
    pub(crate) fn proof(self, byte_seconds: Option<u64>, sample: Sample) -> Proof {
        Proof { process: self.process, round: self.round, order: self.order, byte_seconds, sample }
    }

    /// Returns the outcome of an arm whose trial failed for `reason`.
    pub(crate) fn failed(self, reason: String) -> Outcome {
        Outcome::Failed { round: self.round, reason }
    }

    /// Returns the outcome of an arm whose trial ended with `failure`.
    pub(crate) fn ended_by(self, failure: &Failure) -> Outcome {
        match failure {
            Failure::Interrupted => Outcome::Interrupted,
            // Warm rounds are numbered across all processes, but every cold round is 0, so the reason names the process.
            failure if self.round == 0 && self.process > 0 => {
                self.failed(format!("process {}: {failure}", self.process + 1))
            }
            failure => self.failed(failure.to_string()),
        }
    }
}

/// An arm and its results.
pub(crate) struct ArmRunner<A> {
    /// The caller's data for the arm's trials.
    pub(crate) arm: A,
    pub(crate) result: ArmResult,
}

impl<A> ArmRunner<A> {
    /// Returns whether the arm still takes part in the rounds, that is, has not failed, been left out or been interrupted.
    pub(crate) fn takes_part(&self) -> bool {
        self.result.outcome == Outcome::Finished
    }
}

/// The arms of one workload, and the state of their rounds.
pub(crate) struct Rounds<'a, A> {
    pub(crate) runners: Vec<ArmRunner<A>>,
    /// Workload, rows (log2) and threads, for the sample log.
    point: (String, u32, usize),
    /// Index of the arm that the others are compared with.
    pub(crate) baseline: usize,
    pub(crate) schedule: Schedule,
    pub(crate) randomness: StdRng,
    pub(crate) slowest: Duration,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) recording: &'a mut Recording,
    seed: u64,
    /// Time limit of a trial, if the user sets one. Otherwise it is derived from the trials so far.
    timeout: Option<Duration>,
    /// Position of the progress bar after all these rounds.
    end: u64,
}

impl<'a, A> Rounds<'a, A> {
    pub(crate) fn new(
        arms: impl Iterator<Item = (A, ArmResult)>,
        point: (String, u32, usize),
        schedule: Schedule,
        (seed, timeout): (u64, Option<Duration>),
        interrupt: &'a Interrupt,
        recording: &'a mut Recording,
    ) -> Self {
        let runners: Vec<_> = arms.map(|(arm, result)| ArmRunner { arm, result }).collect();
        // Without the baseline, the others are compared with the first arm that takes part.
        let named = runners.iter().position(|runner| runner.result.arm == BASELINE);
        let baseline = named.or_else(|| runners.iter().position(ArmRunner::takes_part)).unwrap_or(0);
        let end = recording.progress.0.position() + schedule.trials();
        Self {
            runners,
            point,
            baseline,
            schedule,
            randomness: StdRng::seed_from_u64(seed),
            slowest: Duration::ZERO,
            interrupt,
            recording,
            seed,
            timeout,
            end,
        }
    }

    /// Runs one process of every arm, then the next process of every arm, until the rounds end. `trials` runs every arm's process with the
    /// given number, and returns a reason if the rounds must end there. Fails only if samples cannot be written.
    pub(crate) fn run(
        &mut self,
        mut trials: impl FnMut(&mut Self, u32) -> anyhow::Result<Option<Ended>>,
    ) -> anyhow::Result<Ended> {
        let mut process = 0;
        let ended = loop {
            if let Some(ended) = self.ends_after(process) {
                break ended;
            }
            if process >= self.schedule.processes {
                let more = self.schedule.trials_of(process);
                self.end += more;
                self.recording.progress.0.inc_length(more);
            }
            if let Some(ended) = trials(self, process)? {
                break ended;
            }
            process += 1;
        };
        self.recording.progress.0.set_position(self.end);
        if ended == Ended::Interrupted {
            let left = self.runners.iter_mut().filter(|runner| runner.takes_part());
            left.for_each(|runner| runner.result.outcome = Outcome::Interrupted);
        }
        Ok(ended)
    }

    /// Returns why the rounds end after `done` processes; `None` if they continue.
    fn ends_after(&self, done: u32) -> Option<Ended> {
        let Schedule { processes, precision, .. } = self.schedule;
        let widest = || {
            let arms: Vec<_> = self.runners.iter().map(|runner| runner.result.clone()).collect();
            widest_interval(&arms, self.baseline, self.seed)
        };
        match precision {
            _ if self.interrupt.is_raised() => Some(Ended::Interrupted),
            _ if !self.is_any_left() => Some(Ended::NoArms),
            None if done >= processes => Some(Ended::AllRounds),
            Some(precision) if done >= processes && widest() <= precision => Some(Ended::Precise),
            _ => (done > 0 && self.schedule.is_out_of_time()).then_some(Ended::OutOfTime),
        }
    }

    pub(crate) fn is_any_left(&self) -> bool {
        self.runners.iter().any(ArmRunner::takes_part)
    }

    /// Returns the time limit of the next trial: at least `least`, unless the user sets a limit.
    pub(crate) fn limit(&self, least: Duration) -> Duration {
        self.timeout.unwrap_or_else(|| limit_after(self.slowest, least))
    }

    /// Lets every arm take a turn of `rounds` rounds, in random order. `turn` gets the arm's index and its position in the order, and adds
    /// the samples to the arm's result. Its error is the outcome of an arm that drops out. After an interrupt, no further turn starts.
    pub(crate) fn turns(
        &mut self,
        rounds: u32,
        mut turn: impl FnMut(&mut Self, usize, u32) -> Result<(), Outcome>,
    ) -> anyhow::Result<()> {
        let mut order: Vec<_> = (0..self.runners.len()).filter(|&index| self.runners[index].takes_part()).collect();
        order.shuffle(&mut self.randomness);
        for (order, index) in (0..).zip(order) {
            if self.interrupt.is_raised() {
                break;
            }
            let before = self.runners[index].result.samples.len();
            let ended = turn(self, index, order);
            let (runner, (workload, log_rows, threads)) = (&self.runners[index], &self.point);
            for proof in &runner.result.samples[before..] {
                self.recording.samples.append((workload, *log_rows, *threads), &runner.result.label, proof)?;
            }
            if let Err(outcome) = ended {
                self.leave(index, outcome);
            }
        }
        self.recording.progress.0.inc(rounds.into());
        Ok(())
    }

    /// Runs one trial of every arm for each of `rounds`. An arm runs all its trials in one [turn](Self::turns), and all arms get the same
    /// inputs. `make` runs one trial of one arm and returns its duration. Its error is the outcome of an arm that drops out. `name` returns
    /// a round's name for the progress display.
    pub(crate) fn trials(
        &mut self,
        process: u32,
        rounds: Range<u32>,
        name: impl Fn(u32) -> String,
        mut make: impl FnMut(&mut Self, usize, Trial) -> Result<Duration, Outcome>,
    ) -> anyhow::Result<()> {
        let inputs: Vec<u64> = rounds.clone().map(|_| self.randomness.random()).collect();
        let mut times = Vec::new();
        self.turns(rounds.end - rounds.start, |arms, index, order| {
            for (round, &input) in rounds.clone().zip(&inputs) {
                if arms.interrupt.is_raised() {
                    break;
                }
                arms.recording.progress.begins(&name(round), &arms.runners[index].result.label);
                let time = make(arms, index, Trial { process, round, order, input })?;
                let label = &arms.runners[index].result.label;
                times.push((round, format!("{label} {}", format::time(time.as_nanos() as u64))));
            }
            Ok(())
        })?;
        for round in rounds.filter(|_| !self.interrupt.is_raised()) {
            let of_round = times.iter().filter(|(of, _)| *of == round).map(|(_, time)| time.as_str());
            self.recording.progress.round_done(&name(round), &of_round.collect::<Vec<_>>().join(", "));
        }
        Ok(())
    }

    /// Removes an arm from the rounds.
    pub(crate) fn leave(&mut self, index: usize, outcome: Outcome) {
        let result = &mut self.runners[index].result;
        if let Some(text) = format::outcome(&outcome) {
            self.recording.progress.note(&format!("{}: {text}", result.label));
        }
        result.outcome = outcome;
    }

    /// Returns the arms' results, with their summaries.
    pub(crate) fn result(self) -> WorkloadResult {
        WorkloadResult::of(self.runners.into_iter().map(|runner| runner.result).collect(), self.baseline, self.seed)
    }
}

fn limit_after(slowest: Duration, least: Duration) -> Duration {
    least.max(slowest * HANG_FACTOR)
}

/// The planned numbers of rounds and processes, and the conditions under which a run makes more or fewer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Number of requested warm rounds.
    pub(crate) rounds: u32,
    /// Number of processes that share the rounds. More follow if `precision` is set and the intervals are wider.
    pub(crate) processes: u32,
    /// Whether each process begins with a cold round, which does not count in `rounds`.
    pub(crate) is_cold_first: bool,
    pub(crate) precision: Option<f64>,
    /// No further round starts after this time.
    pub(crate) deadline: Option<Instant>,
}

impl Schedule {
    /// Returns the number of warm rounds of process number `process`. The processes share the rounds as evenly as possible.
    pub(crate) fn warm_rounds(&self, process: u32) -> u32 {
        let (rounds, processes) = (self.rounds, self.processes);
        if process < processes {
            rounds / processes + u32::from(process < rounds % processes)
        } else {
            rounds.div_ceil(processes)
        }
    }

    fn trials_of(&self, process: u32) -> u64 {
        u64::from(self.is_cold_first) + u64::from(self.warm_rounds(process))
    }

    /// Returns the number of trials, cold and warm, of an arm that does not fail.
    pub(crate) fn trials(&self) -> u64 {
        u64::from(self.rounds) + u64::from(self.is_cold_first) * u64::from(self.processes)
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn is_out_of_time(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// Progress over a whole run, counted in rounds: a bar on a terminal, one line per round elsewhere. The driver draws
/// nothing while a proof runs, to avoid disturbing it.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Creates the progress display of a run with this many rounds.
    pub(crate) fn new(rounds: u64) -> Self {
        let is_shown = stderr().is_terminal();
        let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{bar:16} {pos}/{len} rounds  {wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::with_draw_target(Some(rounds), target).with_style(style))
    }

    /// Shows which trial is running.
    pub(crate) fn begins(&self, what: &str, arm: &str) {
        self.0.set_message(format!("{what}: {arm}{}", self.left()));
    }

    /// Prints the times of a finished round, unless a bar is shown.
    pub(crate) fn round_done(&self, what: &str, times: &str) {
        if self.0.is_hidden() {
            eprintln!("{what}: {times}{}", self.left());
        }
    }

    /// Prints a message that the user must not miss.
    pub(crate) fn note(&self, text: &str) {
        self.aside(|| eprintln!("{text}"));
    }

    /// Hides the bar while `write` writes to the terminal.
    pub(crate) fn aside<R>(&self, write: impl FnOnce() -> R) -> R {
        self.0.suspend(write)
    }

    /// Removes the bar at the end of the run.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }

    /// Returns the estimated time left as text, or an empty string before the first round ends and after the last.
    fn left(&self) -> String {
        match self.0.eta() {
            Duration::ZERO => String::new(),
            left => format!(", about {} left", HumanDuration(left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_grow_with_the_slowest_trial() {
        let limit = |slowest| limit_after(Duration::from_secs(slowest), Duration::from_secs(120)).as_secs();
        assert_eq!((limit(1), limit(30)), (120, 600));
    }
}
