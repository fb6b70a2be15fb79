//! One run of the command: started, watched, waited for with everything that it started.

use super::libraries::PRELOAD;
use super::reaped::{Reaped, reap};
use super::scanned::{Lines, Scanned};
use super::tree::{self, Mapped, Spent, Tree};
use crate::machine::memory;
use crate::measure::interrupt::Interrupt;
use crate::measure::process::{self, Failure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use regex::bytes::Regex;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at the processes.
pub(super) const EVERY: Duration = Duration::from_millis(20);
/// Between two looks at a process that has just started, until it can be told what it has mapped.
const EARLY: Duration = Duration::from_micros(500);
/// For how long that may be.
const STARTING: Duration = Duration::from_millis(50);
/// What looking may take of one processor: after a look of 1 ms there is none for this many times as long.
const PAUSE_FACTOR: u32 = 50;
/// How long processes that the command left behind may take to end.
const GRACE: Duration = Duration::from_secs(1);
/// How long killed processes may take to be gone.
const KILLED: Duration = Duration::from_secs(10);

/// What to run.
pub(super) struct Task<'a> {
    pub(super) command: &'a [OsString],
    pub(super) environment: &'a [(String, String)],
    /// Libraries that every run has, where `environment` names none.
    pub(super) preloaded: &'a str,
    /// What is to be mapped, a path without links.
    pub(super) library: Option<&'a Path>,
    /// Lines of the output that end an interval.
    pub(super) each: Option<&'a Regex>,
    /// Whether its standard output is to be told from another.
    pub(super) hashes_stdout: bool,
    /// Longest time that it may take.
    pub(super) limit: Option<Duration>,
}

/// What came of it.
pub(super) struct Ran {
    pub(super) wall: Duration,
    /// By all of its processes that were waited for.
    pub(super) spent: Spent,
    pub(super) peak_rss_bytes: u64,
    /// At the last look.
    pub(super) last_rss_bytes: u64,
    pub(super) rss_over_time: Vec<(Duration, u64)>,
    pub(super) marks: Vec<Mark>,
    pub(super) mapped: Mapped,
    /// Files of allocators that were seen mapped.
    pub(super) allocators: Vec<String>,
    pub(super) programs: usize,
    /// It left processes behind that had to be killed.
    pub(super) left_behind: usize,
    /// Of its standard output, if that was asked for.
    pub(super) stdout_sha256: String,
    pub(super) stderr: Vec<String>,
}

/// A line that matched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) at: Duration,
    pub(super) spent: Spent,
    pub(super) rss_bytes: u64,
    /// Since the line before.
    pub(super) peak_rss_bytes: u64,
}

enum Event {
    Line(Instant),
    Ended(Instant),
    Interrupted,
}

/// Runs the command once.
pub(super) fn run(task: &Task<'_>, interrupt: &Interrupt) -> Result<Ran, Failure> {
    // What ended since the last run is not this one's.
    while reap().is_some() {}
    let before = memory::peak_rss_bytes().unwrap_or(0);
    let (sender, events) = mpsc::channel();
    let wake = sender.clone();
    interrupt.wake_by(move || drop(wake.send(Event::Interrupted)));
    let program = task.command.first().cloned().unwrap_or_default();
    let mut command = Command::new(&program);
    command.args(&task.command[1..]);
    if task.preloaded.is_empty() {
        command.env_remove(PRELOAD);
    } else {
        command.env(PRELOAD, task.preloaded);
    }
    command.envs(task.environment.iter().map(|(name, value)| (name, value)));
    // A terminal sends Ctrl-C to the driver's whole group: the command must not die of it before the driver knows why.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let started = Instant::now();
    let mut child = command.spawn().map_err(|source| Failure::Start { binary: program.into(), source })?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let lines = || {
        let tell = sender.clone();
        // Fails only when nobody waits any more.
        task.each.map(|each| Lines::new(each.clone(), move |at| drop(tell.send(Event::Line(at)))))
    };
    let stdout = child.stdout.take().map(|pipe| {
        let pipe = Scanned { pipe, lines: lines(), hash: task.hashes_stdout.then(Sha256::new) };
        thread::spawn(move || pipe.drained())
    });
    let stderr = child.stderr.take().map(|pipe| {
        let pipe = Scanned { pipe, lines: lines(), hash: None };
        thread::spawn(move || process::last_lines(pipe))
    });
    // Seen, and left to be waited for: its number stays its own, and its figures are there to be read.
    thread::spawn(move || {
        let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        // Fails only when nobody waits any more.
        let _ = sender.send(Event::Ended(Instant::now()));
    });
    let mut watch = Watch {
        started,
        tree: Tree::new(task.library),
        reaped: Reaped::default(),
        seen: Vec::new(),
        marks: Vec::new(),
    };
    let ended = watch.until_ended(&events, task.limit);
    let left_behind = watch.end_all(pid, ended.is_ok());
    let join =
        |reader: Option<thread::JoinHandle<String>>| reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
    let stdout_sha256 = join(stdout);
    let stderr: VecDeque<String> = stderr.and_then(|reader| reader.join().ok()).unwrap_or_default();
    let wall = ended?;
    match watch.reaped.status(pid) {
        Some(status) if status.success() => {}
        Some(status) => return Err(Failure::Died(process::how_it_died(status, "", stderr.into()))),
        None => return Err(Failure::Died("ended without a status".into())),
    }
    // What a process had before `execve` counts as its maximum, and before that it was this driver.
    let alone = watch.reaped.max_rss_bytes.filter(|bytes| *bytes > before).unwrap_or(0);
    let seen = watch.seen.iter().map(|(_, bytes)| *bytes);
    let last_rss_bytes = watch.last_rss_bytes();
    Ok(Ran {
        wall,
        spent: watch.reaped.spent,
        peak_rss_bytes: seen.max().unwrap_or(0).max(alone),
        last_rss_bytes,
        rss_over_time: watch.seen,
        marks: watch.marks,
        mapped: watch.tree.mapped(watch.reaped.spent),
        allocators: watch.tree.allocators(),
        programs: watch.tree.programs(),
        left_behind,
        stdout_sha256,
        stderr: stderr.into(),
    })
}

/// What is seen of a run.
struct Watch<'a> {
    started: Instant,
    tree: Tree<'a>,
    reaped: Reaped,
    seen: Vec<(Duration, u64)>,
    marks: Vec<Mark>,
}

impl Watch<'_> {
    /// Looks now and then until the command's own process has ended, and returns how long that took.
    fn until_ended(&mut self, events: &Receiver<Event>, limit: Option<Duration>) -> Result<Duration, Failure> {
        let mut next = self.started;
        loop {
            let now = Instant::now();
            if let Some(limit) = limit.filter(|limit| now - self.started > *limit) {
                return Err(Failure::Hung { limit });
            }
            if now >= next {
                self.look();
                let is_early = now - self.started < STARTING && !self.tree.is_settled();
                next = Instant::now() + if is_early { EARLY } else { EVERY.max(now.elapsed() * PAUSE_FACTOR) };
            }
            match events.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Event::Line(at)) => self.mark(at),
                Ok(Event::Ended(at)) => {
                    // Lines that were written before may be behind in the queue.
                    while let Ok(Event::Line(at)) = events.recv_timeout(EARLY) {
                        self.mark(at);
                    }
                    return Ok(at - self.started);
                }
                Ok(Event::Interrupted) => return Err(Failure::Interrupted),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::Died("nobody waits for it".into())),
            }
        }
    }

    /// Resident memory at the last look that found a process.
    fn last_rss_bytes(&self) -> u64 {
        self.seen.iter().rev().map(|(_, bytes)| *bytes).find(|bytes| *bytes > 0).unwrap_or(0)
    }

    fn look(&mut self) {
        let bytes = self.tree.look();
        self.seen.push((self.started.elapsed(), bytes));
    }

    fn mark(&mut self, at: Instant) {
        self.look();
        let at = at - self.started;
        let since = self.marks.last().map_or(Duration::ZERO, |mark| mark.at);
        let recent = self.seen.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, bytes)| *bytes);
        let peak_rss_bytes = recent.max().unwrap_or(0);
        // A program may have ended right after its last line.
        let rss_bytes = self.last_rss_bytes();
        self.marks.push(Mark { at, spent: tree::spent().plus(self.reaped.spent), rss_bytes, peak_rss_bytes });
    }

    /// Waits for every process, and returns how many had to be killed. They have a moment to end, if the command ended
    /// by itself.
    fn end_all(&mut self, group: Pid, by_itself: bool) -> usize {
        let mut killed = 0;
        let patience = if by_itself { GRACE } else { Duration::ZERO };
        let since = Instant::now();
        loop {
            while let Some(one) = reap() {
                self.reaped.add(one);
            }
            let left = tree::processes();
            if left.is_empty() || since.elapsed() > KILLED {
                return killed;
            }
            if since.elapsed() >= patience {
                killed = killed.max(left.len());
                // Each fails only for what is gone already.
                let _ = kill(Pid::from_raw(-group.as_raw()), Signal::SIGKILL);
                for pid in left {
                    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
                }
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}
