//! Runs the command under all arms: once without any library, as a test, and then in rounds of random order. The
//! result is a table, the advice, and the run's files.

use super::advice;
use super::arm_runner::ArmRunner;
use super::cli::Job;
use super::libraries::{self, Candidate, OUR_FILE, OUR_PACKAGE, PRELOAD};
use super::output::{self, SameOutput};
use super::process::{self, Ran, Task};
use super::process_tree;
use super::target::{self, Target};
use crate::arms::BASELINE;
use crate::machine::Machine;
use crate::measure::arm_runner::{Trial, outcome_of};
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::measure::process::Failure;
use crate::measure::progress::Progress;
use crate::measure::schedule::{HANG_FACTOR, Schedule};
use crate::report::{self, Style};
use crate::results::columns::SampleLog;
use crate::results::format;
use crate::results::record::{self, ArmResult, Ended, Outcome, Run, Timed, WorkloadResult};
use crate::together::Concurrent;
use anyhow::{anyhow, bail};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, fs};

/// Runs the command under all arms, shows the table and the advice, and writes the run's files.
pub(crate) fn run(job: &Job, interrupt: &Interrupt) -> anyhow::Result<Run> {
    let target = Target::of(job.command.first().map_or("".as_ref(), |word| word.as_os_str()))?;
    if let Some(obstacle) = &target.obstacle {
        bail!("{obstacle}; so there is nothing to compare");
    }
    let mut inherited = InheritedEnvironment::observe();
    inherited.remarks.extend(target.remark.clone());
    let candidates = candidates(job, &inherited.preloaded);
    process_tree::adopt_orphans()?;
    let machine = Machine::observe();
    let name = target.name();
    let (folder, run_name) = crate::run::new_folder(job.measured.out.as_deref(), &format!("exec-{name}"))?;
    let samples = SampleLog::create(&folder, run_name.clone())?;
    let mut session = Session::new(job, &name, &candidates, inherited, samples, interrupt);
    if let Err(error) = session.rehearse() {
        // Nothing was measured, so the folder has no use. If it cannot be removed, it stays.
        let _ = fs::remove_dir_all(&folder);
        return Err(error);
    }
    let ended = session.rounds()?;
    let Session { progress, runners, baseline, remarks, .. } = session;
    let mut arms: Vec<_> = runners.into_iter().map(|runner| runner.result).collect();
    record::summarise(&mut arms, baseline, job.measured.seed);
    let workload = WorkloadResult {
        workload: name.clone(),
        about: libraries::command_line(&job.command),
        timed: if job.each.is_some() { Timed::Intervals } else { Timed::Runs },
        log_rows: 0,
        threads: 0,
        live_peak_bytes: None,
        baseline: arms[baseline].label.clone(),
        arms,
        ended,
    };
    let mut run = Run {
        schema: record::SCHEMA,
        run: run_name,
        prover: name,
        command_line: env::args().collect(),
        seed: job.measured.seed,
        rounds: job.rounds,
        threads: 0,
        concurrent: Concurrent::default(),
        sweep: None,
        machine,
        workloads: Vec::new(),
        interrupted: interrupt.is_raised(),
        advice: None,
    };
    run.advice = Some(advice::of(&workload, job.measured.seed, &candidates, &job.command, &remarks));
    run.workloads.push(workload);
    report::write(&folder, &run)?;
    progress.finish();
    let section = |workload| report::section(&run, workload, Style::Terminal);
    let table = run.workloads.iter().map(section).collect::<String>();
    crate::run::conclude(&run, &folder, job.measured.json, &report::with_advice(&run, &table, Style::Terminal))?;
    Ok(run)
}

/// The arms. Each preloads its own library before the `preloaded` ones.
pub(super) fn candidates(job: &Job, preloaded: &str) -> Vec<Candidate> {
    let ours = || -> Result<PathBuf, String> {
        let built = binaries::library(OUR_PACKAGE, OUR_FILE);
        built.or_else(|error| {
            let installed = libraries::found(&[OUR_FILE]);
            installed.ok_or_else(|| format!("{error:#}, and --library PATH names one that lies elsewhere"))
        })
    };
    libraries::candidates(&job.allocators, &job.library, preloaded, ours)
}

/// Lowest time limit of a run.
const MIN_LIMIT: Duration = Duration::from_secs(120);
/// Fewest matching lines that make a cold interval and a warm one.
const MIN_LINES: usize = 3;

/// A command that is being measured.
pub(super) struct Session<'a> {
    job: &'a Job,
    name: String,
    interrupt: &'a Interrupt,
    pub(super) progress: Progress,
    samples: SampleLog,
    pub(super) runners: Vec<ArmRunner>,
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

fn baseline(runners: &[ArmRunner]) -> usize {
    let named = runners.iter().position(|runner| runner.candidate.arm == BASELINE);
    named.or_else(|| runners.iter().position(ArmRunner::takes_part)).unwrap_or(0)
}

impl<'a> Session<'a> {
    /// A session for the command of `job`, called `name`, before its first run.
    pub(super) fn new(
        job: &'a Job,
        name: &str,
        candidates: &[Candidate],
        inherited: InheritedEnvironment,
        samples: SampleLog,
        interrupt: &'a Interrupt,
    ) -> Self {
        let runners: Vec<_> = candidates.iter().cloned().map(ArmRunner::new).collect();
        let taking_part = runners.iter().filter(|runner| runner.takes_part()).count() as u64;
        let progress = Progress::new(u64::from(job.rounds) * taking_part, Timed::Runs.noun());
        let InheritedEnvironment { preloaded, remarks } = inherited;
        remarks.iter().for_each(|remark| progress.note(remark));
        Self {
            job,
            name: name.to_owned(),
            interrupt,
            progress,
            samples,
            baseline: baseline(&runners),
            runners,
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
            if ran.marks.len() < MIN_LINES {
                bail!(
                    "{} lines of the output match --each {each}, and it takes {MIN_LINES} to have a cold interval and a warm one",
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
        let deadline = self.job.measured.max_time.map(|time| Instant::now() + time);
        let schedule = Schedule::of_runs(self.job.rounds, self.job.measured.until_precise, deadline);
        let mut randomness = StdRng::seed_from_u64(self.job.measured.seed);
        let mut round = 0;
        let ended = loop {
            if self.interrupt.is_raised() {
                break Ended::Interrupted;
            }
            if !self.runners.iter().any(ArmRunner::takes_part) {
                break Ended::NoArms;
            }
            let widest = || record::widest_interval(&self.arms(), self.baseline, self.job.measured.seed);
            if let Some(ended) = schedule.ends_after(round, widest) {
                break ended;
            }
            if round > 0 && schedule.is_out_of_time() {
                break Ended::OutOfTime;
            }
            if round >= self.job.rounds {
                self.progress.expect_more(self.runners.iter().filter(|runner| runner.takes_part()).count() as u64);
            }
            round += 1;
            self.round(round, &mut randomness)?;
        };
        for runner in &mut self.runners {
            // The interrupt can come between two runs. Then an arm has no failed run, and may still lack rounds.
            if ended == Ended::Interrupted && runner.takes_part() && runner.runs < self.job.rounds {
                runner.result.outcome = Outcome::Interrupted;
            } else {
                runner.conclude();
            }
        }
        Ok(ended)
    }

    fn arms(&self) -> Vec<ArmResult> {
        self.runners.iter().map(|runner| runner.result.clone()).collect()
    }

    /// Runs the command once under every arm.
    fn round(&mut self, round: u32, randomness: &mut StdRng) -> anyhow::Result<()> {
        let what = format!("{}, round {round} of {}", self.name, self.job.rounds.max(round));
        let mut order: Vec<_> = (0..self.runners.len()).filter(|&index| self.runners[index].takes_part()).collect();
        order.shuffle(randomness);
        let mut times = Vec::new();
        for (place, index) in order.into_iter().enumerate() {
            if self.interrupt.is_raised() {
                return Ok(());
            }
            let trial = Trial { process: round - 1, round, order: place as u32, input: 0 };
            let label = self.runners[index].candidate.label.clone();
            self.progress.proving(&what, &label);
            match self.trial(index, trial) {
                Ok(ran) => {
                    self.slowest = self.slowest.max(ran.wall);
                    times.push(format!("{label} {}", format::time(ran.wall.as_nanos() as u64)));
                    self.keep(index, &ran, trial)?;
                    self.progress.proved();
                }
                Err(outcome) => self.leave(index, outcome, round),
            }
        }
        self.progress.round_done(&what, &times.join(", "));
        Ok(())
    }

    /// Runs the trial of one arm. The error says why the arm takes no further part.
    fn trial(&mut self, index: usize, trial: Trial) -> Result<Ran, Outcome> {
        let limit = self.job.timeout.unwrap_or_else(|| MIN_LIMIT.max(self.slowest * HANG_FACTOR));
        let Candidate { library, .. } = &self.runners[index].candidate;
        let (library, variables) = (library.clone(), self.runners[index].candidate.variables());
        let ran = self.once(&variables, library, Some(limit)).map_err(|failure| outcome_of(&failure, trial))?;
        let failed = |reason| Err(Outcome::Failed { round: trial.round, reason });
        if let Some(reason) = self.runners[index].objection(&ran) {
            return failed(reason);
        }
        match self.intervals {
            Some(intervals) if ran.marks.len() <= intervals.min(MIN_LINES - 1) => failed(format!(
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
    fn keep(&mut self, index: usize, ran: &Ran, trial: Trial) -> anyhow::Result<()> {
        let runner = &mut self.runners[index];
        let before = runner.result.samples.len();
        if ran.left_behind > 0 && runner.runs == 0 {
            let (label, left) = (&runner.candidate.label, ran.left_behind);
            self.progress.note(&format!("{label}: the command left {left} processes behind, killed after a second"));
        }
        runner.add(ran, trial, self.intervals);
        for proof in &runner.result.samples[before..] {
            self.samples.append(&self.name, 0, 0, &runner.candidate.label, proof)?;
        }
        Ok(())
    }

    /// Ends an arm that takes no further part.
    fn leave(&mut self, index: usize, outcome: Outcome, round: u32) {
        let runner = &mut self.runners[index];
        if let Some(text) = format::outcome(&outcome) {
            self.progress.note(&format!("{}: {text}", runner.candidate.label));
        }
        self.progress.expect_fewer(u64::from(self.job.rounds.saturating_sub(round - 1)));
        runner.result.outcome = outcome;
    }
}

/// Prefixes of the variables that allocators read.
const SETTINGS: &[&str] = &["GLIBC_TUNABLES", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "ZK_ALLOC_"];

/// The relevant part of the environment.
#[derive(Debug, Default)]
pub(super) struct InheritedEnvironment {
    /// The preloaded libraries that are not allocators, in the loader's syntax. Every run preloads them.
    pub(super) preloaded: String,
    /// Notes for the reader on the rest.
    pub(super) remarks: Vec<String>,
}

impl InheritedEnvironment {
    pub(super) fn observe() -> Self {
        let variables =
            env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
        Self::of(variables)
    }

    fn of(variables: impl Iterator<Item = (String, String)>) -> Self {
        let mut found = Self::default();
        let mut settings = Vec::new();
        for (name, value) in variables {
            if name == PRELOAD {
                // ld.so(8) allows both separators.
                let files: Vec<_> = value.split([':', ' ']).filter(|file| !file.is_empty()).collect();
                let (allocators, others): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| is_allocator(file));
                found.preloaded = others.join(":");
                found.remarks.extend(allocators.iter().map(|file| {
                    format!("{PRELOAD} of this environment names {file}, an allocator: it is taken out for every run")
                }));
            } else if SETTINGS.iter().any(|prefix| name.starts_with(prefix)) {
                settings.push(format!("{name}={value}"));
            }
        }
        if !settings.is_empty() {
            settings.sort();
            let settings = settings.join(" ");
            found
                .remarks
                .push(format!("This environment sets {settings}, for every arm that does not set it otherwise"));
        }
        found
    }
}

fn is_allocator(file: &str) -> bool {
    let path = if file.contains('/') { Some(PathBuf::from(file)) } else { libraries::found(&[file]) };
    path.is_some_and(|path| target::is_allocator(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings from outside change the plain arms, and nothing else tells the reader.
    #[test]
    fn settings_from_outside_are_named_and_other_libraries_stay() {
        let variables =
            [("MIMALLOC_PURGE_DELAY", "9"), ("PATH", "/bin"), ("LD_PRELOAD", "libno-such.so /lib/other.so")];
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = InheritedEnvironment::of(owned.into_iter());
        assert_eq!(found.preloaded, "libno-such.so:/lib/other.so");
        assert_eq!(found.remarks.len(), 1, "{:?}", found.remarks);
        assert!(found.remarks[0].contains("MIMALLOC_PURGE_DELAY=9"), "{:?}", found.remarks);
    }
}
