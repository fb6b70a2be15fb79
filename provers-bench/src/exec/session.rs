//! Runs the command under all arms: once without any library, as a test, and then in rounds of random order.

use super::cli::Job;
use super::libraries::Entrant;
use super::output::{self, SameOutput};
use super::process::{self, Ran, Task};
use super::seat::{Seat, Turn, outcome_of};
use super::surroundings::Surroundings;
use crate::arms::BASELINE;
use crate::measure::interrupt::Interrupt;
use crate::measure::process::Failure;
use crate::measure::progress::Progress;
use crate::measure::schedule::Schedule;
use crate::results::format;
use crate::results::record::{self, ArmResult, Ended, Outcome};
use crate::results::samples::SampleLog;
use crate::results::timed::Timed;
use anyhow::{anyhow, bail};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Lowest time limit of a run.
const LEAST_LIMIT: Duration = Duration::from_secs(120);
/// A run that takes this many times as long as the slowest run so far counts as hung.
const HANG_FACTOR: u32 = 20;
/// Fewest matching lines that make a cold interval and a warm one.
const LEAST_LINES: usize = 3;

/// A command that is being measured.
pub(super) struct Session<'a> {
    job: &'a Job,
    name: String,
    interrupt: &'a Interrupt,
    pub(super) progress: Progress,
    samples: SampleLog,
    pub(super) seats: Vec<Seat>,
    /// Index of the arm that the others are compared with.
    pub(super) baseline: usize,
    same_output: Option<SameOutput>,
    /// Intervals of a run, if intervals are timed.
    intervals: Option<usize>,
    slowest: Duration,
    /// Libraries that every run preloads.
    preloaded: String,
    /// Notes for the reader of the figures.
    pub(super) remarks: Vec<String>,
}

fn baseline(seats: &[Seat]) -> usize {
    let named = seats.iter().position(|seat| seat.entrant.arm == BASELINE);
    named.or_else(|| seats.iter().position(Seat::takes_part)).unwrap_or(0)
}

impl<'a> Session<'a> {
    /// A session for the command of `job`, called `name`, before its first run.
    pub(super) fn new(
        job: &'a Job,
        name: &str,
        entrants: &[Entrant],
        surroundings: Surroundings,
        samples: SampleLog,
        interrupt: &'a Interrupt,
    ) -> Self {
        let seats: Vec<_> = entrants.iter().cloned().map(Seat::new).collect();
        let taking_part = seats.iter().filter(|seat| seat.takes_part()).count() as u64;
        let progress = Progress::new(u64::from(job.rounds) * taking_part, Timed::Runs.noun());
        let Surroundings { preloaded, remarks } = surroundings;
        remarks.iter().for_each(|remark| progress.note(remark));
        Self {
            job,
            name: name.to_owned(),
            interrupt,
            progress,
            samples,
            baseline: baseline(&seats),
            seats,
            same_output: job.same_output.as_deref().map(SameOutput::new),
            intervals: None,
            slowest: Duration::ZERO,
            preloaded,
            remarks,
        }
    }

    /// Runs the command once without a library, untimed. The command must succeed by itself. This run brings the
    /// command's input into the page cache, and its output is the reference for all other runs.
    pub(super) fn rehearse(&mut self) -> anyhow::Result<()> {
        self.progress.note(&format!("{}: once as it is, untimed", self.name));
        let ran = match self.once(&[], None, self.job.timeout) {
            Ok(ran) => ran,
            Err(Failure::Interrupted) => return Ok(()),
            Err(failure) => return Err(anyhow!("{} fails by itself, without any library: {failure}", self.name)),
        };
        self.slowest = ran.wall;
        self.remark_on(&ran);
        if let Some(each) = &self.job.each {
            if ran.marks.len() < LEAST_LINES {
                bail!(
                    "{} lines of the output match --each {each}, and it takes {LEAST_LINES} to have a cold interval and a warm one",
                    ran.marks.len()
                );
            }
            self.intervals = Some(ran.marks.len() - 1);
        }
        let sys = ran.spent.sys_ns as f64 / (ran.spent.user_ns + ran.spent.sys_ns).max(1) as f64;
        self.progress.note(&format!(
            "{}: {}, {:.1}% of its CPU time in the kernel, {} page faults, peak RSS {}",
            self.name,
            format::time(ran.wall.as_nanos() as u64),
            100.0 * sys,
            format::count(ran.spent.minflt),
            format::bytes(ran.peak_rss_bytes)
        ));
        Ok(())
    }

    /// Adds notes for the reader, from a run without a library.
    fn remark_on(&mut self, ran: &Ran) {
        let name = &self.name;
        let own = ran.allocators.iter().map(|file| {
            format!(
                "{name} maps {file} by itself: in the row {BASELINE} it runs with that, and a preloaded library comes before it"
            )
        });
        let short = (ran.wall < process::EVERY).then(|| {
            let [wall, every] = [ran.wall, process::EVERY].map(|time| format::time(time.as_nanos() as u64));
            format!("A run takes {wall}, and memory is looked at every {every}: peaks are missed")
        });
        let remarks: Vec<_> = own.chain(short).collect();
        remarks.iter().for_each(|remark| self.progress.note(remark));
        self.remarks.extend(remarks);
    }

    pub(super) fn rounds(&mut self) -> anyhow::Result<Ended> {
        let deadline = self.job.max_time.map(|time| Instant::now() + time);
        let schedule = Schedule::of_runs(self.job.rounds, self.job.precision, deadline);
        let mut randomness = StdRng::seed_from_u64(self.job.seed);
        let mut round = 0;
        let ended = loop {
            if self.interrupt.is_raised() {
                break Ended::Interrupted;
            }
            if !self.seats.iter().any(Seat::takes_part) {
                break Ended::NoArms;
            }
            let widest = || record::widest_interval(&self.arms(), self.baseline, self.job.seed);
            if let Some(ended) = schedule.ends_after(round, widest) {
                break ended;
            }
            if round > 0 && schedule.is_out_of_time() {
                break Ended::OutOfTime;
            }
            if round >= self.job.rounds {
                self.progress.expect_more(self.seats.iter().filter(|seat| seat.takes_part()).count() as u64);
            }
            round += 1;
            self.round(round, &mut randomness)?;
        };
        for seat in &mut self.seats {
            // The interrupt can come between two runs. Then an arm has no failed run, and may still lack rounds.
            if ended == Ended::Interrupted && seat.takes_part() && seat.runs < self.job.rounds {
                seat.result.outcome = Outcome::Interrupted;
            } else {
                seat.conclude();
            }
        }
        Ok(ended)
    }

    fn arms(&self) -> Vec<ArmResult> {
        self.seats.iter().map(|seat| seat.result.clone()).collect()
    }

    /// Runs the command once under every arm.
    fn round(&mut self, round: u32, randomness: &mut StdRng) -> anyhow::Result<()> {
        let what = format!("{}, round {round} of {}", self.name, self.job.rounds.max(round));
        let mut order: Vec<_> = (0..self.seats.len()).filter(|&index| self.seats[index].takes_part()).collect();
        order.shuffle(randomness);
        let mut times = Vec::new();
        for (place, index) in order.into_iter().enumerate() {
            if self.interrupt.is_raised() {
                return Ok(());
            }
            let turn = Turn { round, order: place as u32 };
            let label = self.seats[index].entrant.label.clone();
            self.progress.proving(&what, &label);
            match self.turn(index, turn) {
                Ok(ran) => {
                    self.slowest = self.slowest.max(ran.wall);
                    times.push(format!("{label} {}", format::time(ran.wall.as_nanos() as u64)));
                    self.keep(index, &ran, turn)?;
                    self.progress.proved();
                }
                Err(outcome) => self.leave(index, outcome, round),
            }
        }
        self.progress.round_done(&what, &times.join(", "));
        Ok(())
    }

    /// Runs the turn of one arm. The error says why the arm takes no further part.
    fn turn(&mut self, index: usize, turn: Turn) -> Result<Ran, Outcome> {
        let limit = self.job.timeout.unwrap_or_else(|| LEAST_LIMIT.max(self.slowest * HANG_FACTOR));
        let Entrant { library, .. } = &self.seats[index].entrant;
        let (library, variables) = (library.clone(), self.seats[index].entrant.variables());
        let ran = self.once(&variables, library, Some(limit)).map_err(|failure| outcome_of(&failure, turn))?;
        let failed = |reason| Err(Outcome::Failed { round: turn.round, reason });
        if let Some(reason) = self.seats[index].objection(&ran) {
            return failed(reason);
        }
        match self.intervals {
            Some(intervals) if ran.marks.len() <= intervals.min(LEAST_LINES - 1) => failed(format!(
                "{} lines of its output match --each, and {} did without a library",
                ran.marks.len(),
                intervals + 1
            )),
            _ => Ok(ran),
        }
    }

    /// Runs the command, and checks its output.
    fn once(
        &mut self,
        environment: &[(String, String)],
        library: Option<PathBuf>,
        limit: Option<Duration>,
    ) -> Result<Ran, Failure> {
        let before = self.same_output.as_ref().map(SameOutput::before);
        let task = Task {
            command: &self.job.command,
            environment,
            preloaded: &self.preloaded,
            library: library.as_deref(),
            each: self.job.each.as_ref(),
            hashes_stdout: self.same_output.as_ref().is_some_and(SameOutput::is_stdout),
            limit,
        };
        let ran = process::run(&task, self.interrupt)?;
        let verified = self.job.verify.as_ref().and_then(|line| output::verify(line, self.interrupt));
        let same = self.same_output.as_mut().zip(before);
        let differs = same.and_then(|(same, before)| same.objection(&before, &ran.stdout_sha256));
        match verified.or(differs) {
            _ if self.interrupt.is_raised() => Err(Failure::Interrupted),
            Some(reason) => Err(Failure::Workload(reason)),
            None => Ok(ran),
        }
    }

    /// Records a run in its arm and in the file of samples.
    fn keep(&mut self, index: usize, ran: &Ran, turn: Turn) -> anyhow::Result<()> {
        let seat = &mut self.seats[index];
        let before = seat.result.samples.len();
        if ran.left_behind > 0 && seat.runs == 0 {
            let (label, left) = (&seat.entrant.label, ran.left_behind);
            self.progress.note(&format!("{label}: the command left {left} processes behind, killed after a second"));
        }
        seat.add(ran, turn, self.intervals);
        for proof in &seat.result.samples[before..] {
            self.samples.append(&self.name, 0, 0, &seat.entrant.label, proof)?;
        }
        Ok(())
    }

    /// Ends an arm that takes no further part.
    fn leave(&mut self, index: usize, outcome: Outcome, round: u32) {
        let seat = &mut self.seats[index];
        if let Some(text) = format::outcome(&outcome) {
            self.progress.note(&format!("{}: {text}", seat.entrant.label));
        }
        self.progress.expect_fewer(u64::from(self.job.rounds.saturating_sub(round - 1)));
        seat.result.outcome = outcome;
    }
}
