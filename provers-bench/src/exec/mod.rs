//! `prove-bench exec -- COMMAND`: runs any command under the allocators that can be preloaded, in lockstep rounds, and
//! measures its whole process tree. docs/exec.md has the method and its limits.
//!
//! - `mod`: the options, the steps of a job, and which runs count
//! - `process`: one run: starts, polls and waits for the command's processes, and reads their output
//! - `profile`: which functions cause page faults and hold memory
//! - `preload`: the allocators' libraries on this machine, the lines that set one up, and checks of the program's file
//! - `advice`: which differences count, and the advice

use crate::arms::{BASELINE, Variables};
use crate::machine::BuildInfo;
use crate::machine::process::highest;
use crate::measure::{ArmRunner, Failure, Interrupt, Recording, Rounds, Schedule, Trial};
use crate::plan::{MeasuredArgs, PRECISE_TIME, UsageError, time, whole};
use crate::protocol::Identity;
use crate::report::{self, Style};
use crate::results::{ArmResult, Outcome, Proof, RssPoint, Run, Timed, WorkloadResult, format};
use crate::sample::{Counters, Sample};
use anyhow::{anyhow, ensure};
use clap::Args;
use preload::{Candidate, Named, PRELOAD, Target};
use process::{Mapped, Mark, Ran, SameOutput, Task};
use regex::bytes::Regex;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod advice;
mod preload;
mod process;
#[cfg(feature = "profile")]
mod profile;

#[cfg(feature = "profile")]
pub(crate) use profile::profile;

/// Options of `exec`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Job {
    /// Runs of the command under each allocator, each in a new process; a verdict needs 6
    #[arg(long, value_name = "N", default_value = "10", value_parser = whole::<u32>(1..=10_000))]
    rounds: u32,
    /// Comma-separated allocators: glibc, jemalloc, mimalloc and tcmalloc, each also with the suffix -tuned, and
    /// zk-alloc; ratios are to glibc, or to the first one if glibc is not listed
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "all")]
    allocators: Vec<String>,
    /// Path of libzk_alloc.so, or NAME=PATH for another allocator's library; a new NAME adds an allocator
    #[arg(long, value_name = "[NAME=]PATH", value_parser = preload::named)]
    library: Vec<Named>,
    /// Time the intervals between output lines that match, instead of whole runs; the first interval of each run is
    /// cold
    #[arg(long, value_name = "REGEX", value_parser = regex)]
    each: Option<Regex>,
    /// Command line for sh that must succeed after every run
    #[arg(long, value_name = "COMMAND LINE")]
    verify: Option<String>,
    /// File that every run must write with the same content as the first run; - means standard output
    #[arg(long, value_name = "FILE")]
    same_output: Option<PathBuf>,
    /// Longest time for one run [default: 20 times the slowest so far, at least 120 s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Show which functions cause page faults, and which hold memory under zk-alloc: two runs, and one page
    #[arg(long, conflicts_with_all = [
        "each", "verify", "same_output", "rounds", "allocators", "until_precise", "max_time", "seed", "json",
    ])]
    pub(crate) profile: bool,
    #[command(flatten)]
    measured: MeasuredArgs,
    /// The command and its arguments, after --
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl Job {
    /// Returns the job with its list of allocators expanded to one name for each arm. Fails if an allocator is unknown, or if this build
    /// lacks a feature that it needs.
    pub(crate) fn checked(self) -> Result<Self, UsageError> {
        if self.profile && !cfg!(feature = "profile") {
            let text = "this bench was built without its feature profile: `cargo prove-bench exec --profile -- COMMAND` enables it";
            return Err(UsageError(text.into()));
        }
        Ok(Self { allocators: preload::names(&self.allocators, &self.library)?, ..self })
    }
}

/// Parses a regular expression. The error is the last line of the regex crate's message, which states the reason.
fn regex(given: &str) -> Result<Regex, String> {
    Regex::new(given).map_err(|error| {
        let text = error.to_string();
        text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}

/// Runs the command once without any library, to check that it works. Then runs it under all arms in rounds, in random
/// order. Prints the table and the advice, and writes the run's files.
pub(crate) fn run(job: &Job, interrupt: &Interrupt) -> anyhow::Result<Run> {
    let Target { name, remark } = Target::of(&job.command)?;
    let remark = remark.map_err(|obstacle| anyhow!("{obstacle}; so there is nothing to compare"))?;
    let (preloaded, mut remarks) = inherited();
    remarks.extend(remark);
    remarks.iter().for_each(|remark| eprintln!("{remark}"));
    let candidates = preload::candidates(&job.allocators, &job.library, &preloaded);
    process::adopt_orphans()?;
    let same_output = job.same_output.as_deref().map(SameOutput::new);
    let mut session = Session { job, name: name.clone(), interrupt, same_output, intervals: None, preloaded, remarks };
    let slowest = session.rehearse()?;
    let measured = &job.measured;
    let mut recording = Recording::begin(&format!("exec-{name}"), measured, job.rounds, job.rounds.into())?;
    recording.run.prover.clone_from(&name);
    let max_time = measured.max_time.or(measured.until_precise.map(|_| PRECISE_TIME));
    let schedule = Schedule {
        rounds: job.rounds,
        processes: job.rounds,
        is_cold_first: false,
        precision: measured.until_precise,
        deadline: max_time.map(|time| Instant::now() + time),
    };
    let arms = candidates.iter().map(|candidate| (candidate.clone(), candidate.result()));
    let mut arms =
        Rounds::new(arms, (name.clone(), 0, 0), schedule, (measured.seed, job.timeout), interrupt, &mut recording);
    arms.slowest = slowest;
    let ended = arms.run(|arms, process| session.round(arms, process).map(|()| None))?;
    arms.runners.iter_mut().for_each(Runner::conclude);
    let workload = WorkloadResult {
        workload: name,
        about: preload::command_line(&job.command),
        timed: if job.each.is_some() { Timed::Intervals } else { Timed::Runs },
        ended,
        ..arms.result()
    };
    let run = &mut recording.run;
    run.advice = Some(advice::of(&workload, measured.seed, &candidates, &job.command, &session.remarks));
    run.workloads.push(workload);
    let table = report::section(run, &run.workloads[0], Style::Terminal);
    let text = report::with_advice(run, &table, Style::Terminal);
    recording.end(interrupt, measured.json, &text)
}

/// Lowest default of the time limit of a run.
const MIN_LIMIT: Duration = Duration::from_secs(120);
/// Minimum number of matching lines in a run: enough for a cold interval and a warm one.
const MIN_LINES: usize = 3;
/// Maximum number of memory readings that a run retains. A longer series is split into groups, and only the highest
/// reading of each group is retained.
const MAX_POINTS: usize = 400;
/// Messages with which loaders and allocators reject a library or a setting.
const COMPLAINTS: &[&str] = &["ERROR: ld.so: object", "<jemalloc>: "];

type Runner = ArmRunner<Candidate>;
type Arms<'r> = Rounds<'r, Candidate>;

impl Candidate {
    /// Creates the result of this arm, before its first run.
    fn result(&self) -> ArmResult {
        let version = self.package.as_ref().map(|(package, version)| format!("({package} {version})"));
        let identity = Identity {
            allocator: self.arm.trim_end_matches("-tuned").into(),
            version: version.unwrap_or_default(),
            settings: self.variables().iter().map(|(name, value)| format!("{name}={value}")).collect(),
            confirmed: Vec::new(),
            peak_is_per_proof: true,
            build: BuildInfo::current(),
        };
        ArmResult {
            outcome: self.trouble.clone().unwrap_or(Outcome::Finished),
            // An arm that is never started has no identity.
            identity: self.trouble.is_none().then_some(identity),
            ..ArmResult::new(&self.label, &self.arm)
        }
    }
}

impl Runner {
    /// Adds a successful run: as a single sample, or as one sample for each of the first `intervals` intervals between
    /// marks.
    fn add(&mut self, ran: &Ran, trial: Trial, intervals: Option<usize>) {
        match intervals {
            None => {
                let mut sample = sample(&Mark::default(), &ran.end);
                sample.gauges.insert("programs".into(), ran.programs as u64);
                self.result.samples.push(trial.proof(None, sample));
            }
            Some(intervals) => self.result.samples.extend(between(&ran.marks, trial, intervals)),
        }
        if self.result.rss_over_time.is_empty() {
            let points = highest(&ran.rss_over_time, MAX_POINTS);
            self.result.rss_over_time = RssPoint::of(trial.round, points).collect();
        }
        if let (Mapped::In { programs, of }, Some(file)) = (&ran.mapped, self.arm.file()) {
            let seen = format!("{file} mapped in {programs} of {of} programs of a run");
            self.result.identity.iter_mut().for_each(|identity| identity.confirmed = vec![seen.clone()]);
        }
        self.result.stderr.clone_from(&ran.stderr);
    }

    /// Checks that stderr contains no complaint, that the library was mapped, and that there are enough intervals. The error states why the
    /// run does not count.
    fn check(&self, ran: &Ran, intervals: Option<usize>) -> Result<(), String> {
        let complaint = ran.stderr.iter().find(|line| COMPLAINTS.iter().any(|words| line.contains(words)));
        if let Some(line) = complaint.filter(|_| !self.arm.variables().is_empty()) {
            return Err(format!("the library or a setting was refused: {line}"));
        }
        if let (Mapped::NotIn(program), Some(file)) = (&ran.mapped, self.arm.file()) {
            let program = program.display();
            return Err(format!("{file} was not mapped in {program}, which has much of the memory (/proc/PID/maps)"));
        }
        let lines = ran.marks.len();
        match intervals {
            Some(intervals) if lines <= intervals.min(MIN_LINES - 1) => {
                Err(format!("{lines} lines of its output match --each, and {} did without a library", intervals + 1))
            }
            _ => Ok(()),
        }
    }

    /// Fails an arm if all its processes ended before the driver could see whether they mapped the library.
    fn conclude(&mut self) {
        let is_unseen = self.result.identity.as_ref().is_some_and(|identity| identity.confirmed.is_empty());
        let last = self.result.samples.last().filter(|_| is_unseen && self.takes_part());
        if let (Some(file), Some(last)) = (self.arm.file(), last) {
            let reason = format!("no process lived long enough to see whether {file} was mapped");
            self.result.outcome = Outcome::Failed { round: last.process + 1, reason };
        }
    }
}

/// Returns the sample for the interval between two marks.
fn sample(from: &Mark, to: &Mark) -> Sample {
    let spent = to.spent.since(from.spent);
    Sample {
        wall_ns: (to.at - from.at).as_nanos() as u64,
        user_ns: spent.user_ns,
        sys_ns: spent.sys_ns,
        minflt: spent.minflt,
        rss_bytes: to.rss_bytes,
        peak_rss_bytes: to.peak_rss_bytes,
        // Always true, because a run that does not count has no sample.
        verified: true,
        counters: Counters::from([("major_faults".to_owned(), spent.majflt)]),
        ..Sample::default()
    }
}

/// Returns the samples of the first `intervals` intervals between marks. The first interval is cold. Warm intervals are
/// numbered across all runs.
fn between(marks: &[Mark], trial: Trial, intervals: usize) -> impl Iterator<Item = Proof> {
    let warm_each = intervals.saturating_sub(1) as u32;
    (0_u32..).zip(marks.array_windows::<2>()).take(intervals).map(move |(index, [from, to])| {
        let round = if index == 0 { 0 } else { trial.process * warm_each + index };
        Trial { round, ..trial }.proof(None, sample(from, to))
    })
}

/// A command that is being measured.
struct Session<'a> {
    job: &'a Job,
    name: String,
    interrupt: &'a Interrupt,
    same_output: Option<SameOutput>,
    /// Number of intervals in a run, if intervals are timed.
    intervals: Option<usize>,
    /// Libraries that every run preloads.
    preloaded: String,
    /// Notes for the reader of the results.
    remarks: Vec<String>,
}

impl Session<'_> {
    /// Runs the command once without a library. Fails if the command fails. This run is not a measurement: it brings the command's input
    /// into the page cache, and its output is the reference for all other runs. Returns the run's duration.
    fn rehearse(&mut self) -> anyhow::Result<Duration> {
        eprintln!("{}: once as it is, untimed", self.name);
        let ran = match self.once(&[], None, self.job.timeout) {
            Ok(ran) => ran,
            Err(Failure::Interrupted) => return Ok(Duration::ZERO),
            Err(failure) => return Err(anyhow!("{} fails by itself, without any library: {failure}", self.name)),
        };
        let own = ran.allocators.iter().map(|file| {
            format!(
                "{} maps {file} by itself: the row {BASELINE} measures that allocator, and a preloaded library replaces it",
                self.name
            )
        });
        let short = (ran.end.at < process::EVERY).then(|| {
            let [wall, every] = [ran.end.at, process::EVERY].map(|time| format::time(time.as_nanos() as u64));
            format!("A run takes {wall}, and memory is read every {every}, so peaks are missed")
        });
        for remark in own.chain(short) {
            eprintln!("{remark}");
            self.remarks.push(remark);
        }
        if let Some(each) = &self.job.each {
            let lines = ran.marks.len();
            ensure!(
                lines >= MIN_LINES,
                "{lines} lines of the output match --each {each}, and it takes {MIN_LINES} to have a cold interval and a warm one"
            );
            self.intervals = Some(lines - 1);
        }
        let Mark { at: wall, spent, peak_rss_bytes, .. } = ran.end;
        let kernel = 100.0 * (spent.sys_ns as f64 / spent.cpu_ns().max(1) as f64);
        eprintln!(
            "{}: {}, {kernel:.1}% of its CPU time in the kernel, {} page faults, peak RSS {}",
            self.name,
            format::time(wall.as_nanos() as u64),
            format::count(spent.minflt),
            format::bytes(peak_rss_bytes)
        );
        Ok(wall)
    }

    /// Runs the command once under every arm.
    fn round(&mut self, arms: &mut Arms<'_>, process: u32) -> anyhow::Result<()> {
        let round = process + 1;
        let what = format!("{}, round {round} of {}", self.name, self.job.rounds.max(round));
        let make = |arms: &mut Arms<'_>, index: usize, trial: Trial| {
            let begun = Instant::now();
            let (limit, runner) = (arms.limit(MIN_LIMIT), &mut arms.runners[index]);
            let ran = self.once(&runner.arm.variables(), runner.arm.library.as_deref(), Some(limit));
            let ran = ran.map_err(|failure| trial.ended_by(&failure))?;
            runner.check(&ran, self.intervals).map_err(|reason| trial.failed(reason))?;
            arms.slowest = arms.slowest.max(begun.elapsed());
            if ran.left_behind > 0 && runner.result.samples.is_empty() {
                let (label, left) = (&runner.result.label, ran.left_behind);
                let note = format!("{label}: the command left {left} processes behind, killed after a second");
                arms.recording.progress.note(&note);
            }
            runner.add(&ran, trial, self.intervals);
            Ok(ran.end.at)
        };
        arms.trials(process, round..round + 1, |_| what.clone(), make)
    }

    /// Runs the command, and checks its output.
    fn once(
        &mut self,
        environment: &Variables,
        library: Option<&Path>,
        limit: Option<Duration>,
    ) -> Result<Ran, Failure> {
        let before = self.same_output.as_ref().map(SameOutput::state);
        let task = Task {
            command: &self.job.command,
            environment,
            preloaded: &self.preloaded,
            library,
            each: self.job.each.as_ref(),
            hashes_stdout: self.same_output.as_ref().is_some_and(SameOutput::is_stdout),
            limit,
        };
        let ran = process::run(&task, self.interrupt)?;
        if let Some(line) = &self.job.verify {
            let command: [OsString; 3] = ["sh".into(), "-c".into(), line.into()];
            let task = Task { command: &command, preloaded: &self.preloaded, ..Task::default() };
            process::run(&task, self.interrupt).map_err(|failure| match failure {
                Failure::Interrupted => failure,
                failure => Failure::Failed(format!("--verify failed: {failure}")),
            })?;
        }
        if let Some((same, before)) = self.same_output.as_mut().zip(before) {
            same.check(before, &ran.stdout_sha256).map_err(Failure::Failed)?;
        }
        Ok(ran)
    }
}

/// Prefixes of the environment variables that allocators read.
const SETTINGS: &[&str] = &["GLIBC_TUNABLES", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "ZK_ALLOC_"];

/// Returns the libraries that every run preloads, in the loader's syntax: those in the environment's `LD_PRELOAD` that are not allocators.
/// Also returns notes for the reader about allocators and settings in the environment.
fn inherited() -> (String, Vec<String>) {
    let preloaded = env::var(PRELOAD).unwrap_or_default();
    // ld.so(8) allows both separators.
    let files = preloaded.split([':', ' ']).filter(|file| !file.is_empty());
    let (allocators, others): (Vec<_>, Vec<_>) = files.partition(|file| is_allocator(file));
    let left_out =
        |file: &&str| format!("{PRELOAD} of this environment names {file}, an allocator: every run leaves it out");
    let mut remarks: Vec<_> = allocators.iter().map(left_out).collect();
    let variables = env::vars_os().map(|(name, value)| format!("{}={}", name.display(), value.display()));
    let mut settings: Vec<_> =
        variables.filter(|setting| SETTINGS.iter().any(|prefix| setting.starts_with(prefix))).collect();
    if !settings.is_empty() {
        settings.sort();
        let settings = settings.join(" ");
        remarks.push(format!("This environment sets {settings}, which applies to every arm without its own value"));
    }
    (others.join(":"), remarks)
}

fn is_allocator(file: &str) -> bool {
    let path = if file.contains('/') { Some(PathBuf::from(file)) } else { preload::found(&[file]) };
    path.is_some_and(|path| preload::is_allocator(&path))
}
