//! One run of the command: starts it, watches it, and waits for it and for everything that it started.

use super::libraries::PRELOAD;
use super::output::{Lines, OutputScanner};
use super::process_tree::{self, Exited, Mapped, ProcessTree, Spent, reap};
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

/// Time between two looks at the processes.
pub(super) const EVERY: Duration = Duration::from_millis(20);
/// Time between two looks at a process that has just started, until its mappings are known.
const EARLY: Duration = Duration::from_micros(500);
/// Longest period of such frequent looks.
const STARTING: Duration = Duration::from_millis(50);
/// Limits the watcher's share of one processor: after a look of 1 ms it pauses for this many times as long.
const PAUSE_FACTOR: u32 = 50;
/// Time that processes get to end after the command left them behind.
const GRACE: Duration = Duration::from_secs(1);
/// Time that killed processes get to disappear.
const KILLED: Duration = Duration::from_secs(10);

/// A run to make.
pub(super) struct Task<'a> {
    pub(super) command: &'a [OsString],
    pub(super) environment: &'a [(String, String)],
    /// Libraries that every run preloads. `environment` takes precedence if it names libraries too.
    pub(super) preloaded: &'a str,
    /// The library that must be mapped: a path without symbolic links.
    pub(super) library: Option<&'a Path>,
    /// Lines of the output that end an interval.
    pub(super) each: Option<&'a Regex>,
    /// Whether to hash the standard output, to compare it with that of other runs.
    pub(super) hashes_stdout: bool,
    /// Longest time that the run may take.
    pub(super) limit: Option<Duration>,
}

/// The result of a run.
pub(super) struct Ran {
    pub(super) wall: Duration,
    /// CPU time and faults of all its processes that were waited for.
    pub(super) spent: Spent,
    pub(super) peak_rss_bytes: u64,
    /// Resident memory at the last look that found a process.
    pub(super) last_rss_bytes: u64,
    /// Milliseconds since the start, and resident bytes at that time.
    pub(super) rss_over_time: Vec<(u32, u64)>,
    pub(super) marks: Vec<Mark>,
    pub(super) mapped: Mapped,
    /// Files of allocators that were seen mapped.
    pub(super) allocators: Vec<String>,
    pub(super) programs: usize,
    /// Processes that it left behind and that had to be killed.
    pub(super) left_behind: usize,
    /// Hash of its standard output; empty if the task does not ask for it.
    pub(super) stdout_sha256: String,
    pub(super) stderr: Vec<String>,
}

/// A line of the output that matched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) at: Duration,
    pub(super) spent: Spent,
    pub(super) rss_bytes: u64,
    /// Peak since the previous mark.
    pub(super) peak_rss_bytes: u64,
}

enum Event {
    Line(Instant),
    Ended(Instant),
    Interrupted,
}

/// Runs the command once.
pub(super) fn run(task: &Task<'_>, interrupt: &Interrupt) -> Result<Ran, Failure> {
    // Processes that ended since the last run do not belong to this one.
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
    // A terminal sends Ctrl-C to the driver's whole group. In that group the command could die before the driver knows
    // why.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let started = Instant::now();
    let mut child = command.spawn().map_err(|source| Failure::Start { binary: program.into(), source })?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let lines = || {
        let tell = sender.clone();
        // Fails only if nothing receives any more.
        task.each.map(|each| Lines::new(each.clone(), move |at| drop(tell.send(Event::Line(at)))))
    };
    let stdout = child.stdout.take().map(|pipe| {
        let pipe = OutputScanner { pipe, lines: lines(), hash: task.hashes_stdout.then(Sha256::new) };
        thread::spawn(move || pipe.drained())
    });
    let stderr = child.stderr.take().map(|pipe| {
        let pipe = OutputScanner { pipe, lines: lines(), hash: None };
        thread::spawn(move || process::last_lines(pipe))
    });
    // Waits without reaping: the process ID stays reserved, and the figures of the process stay readable.
    thread::spawn(move || {
        let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        // Fails only if nothing receives any more.
        let _ = sender.send(Event::Ended(Instant::now()));
    });
    let mut watch = Watch {
        started,
        tree: ProcessTree::new(task.library),
        exited: Exited::default(),
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
    match watch.exited.status(pid) {
        Some(status) if status.success() => {}
        Some(status) => return Err(Failure::Died(process::how_it_died(status, "", stderr.into()))),
        None => return Err(Failure::Died("ended without a status".into())),
    }
    // The kernel's maximum includes the memory before `execve`, when the process was a copy of this driver.
    let alone = watch.exited.max_rss_bytes.filter(|bytes| *bytes > before).unwrap_or(0);
    let seen = watch.seen.iter().map(|(_, bytes)| *bytes);
    let last_rss_bytes = watch.last_rss_bytes();
    Ok(Ran {
        wall,
        spent: watch.exited.spent,
        peak_rss_bytes: seen.max().unwrap_or(0).max(alone),
        last_rss_bytes,
        rss_over_time: watch.seen,
        marks: watch.marks,
        mapped: watch.tree.mapped(watch.exited.spent),
        allocators: watch.tree.allocators(),
        programs: watch.tree.programs(),
        left_behind,
        stdout_sha256,
        stderr: stderr.into(),
    })
}

/// The observations of a run.
struct Watch<'a> {
    started: Instant,
    tree: ProcessTree<'a>,
    exited: Exited,
    seen: Vec<(u32, u64)>,
    marks: Vec<Mark>,
}

impl Watch<'_> {
    /// Looks at the processes from time to time until the command's own process has ended. Returns how long that took.
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
                    // Lines that were written earlier may still follow in the queue.
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
        self.seen.push((self.started.elapsed().as_millis() as u32, bytes));
    }

    fn mark(&mut self, at: Instant) {
        self.look();
        let at = at - self.started;
        let since = self.marks.last().map_or(0, |mark| mark.at.as_millis() as u32);
        let recent = self.seen.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, bytes)| *bytes);
        let peak_rss_bytes = recent.max().unwrap_or(0);
        // A program may end right after its last line.
        let rss_bytes = self.last_rss_bytes();
        self.marks.push(Mark { at, spent: process_tree::spent().plus(self.exited.spent), rss_bytes, peak_rss_bytes });
    }

    /// Waits for every process, and returns how many had to be killed. If the command ended by itself, the others have
    /// a moment to end.
    fn end_all(&mut self, group: Pid, by_itself: bool) -> usize {
        let mut killed = 0;
        let patience = if by_itself { GRACE } else { Duration::ZERO };
        let since = Instant::now();
        loop {
            while let Some(one) = reap() {
                self.exited.add(one);
            }
            let left = process_tree::processes();
            if left.is_empty() || since.elapsed() > KILLED {
                return killed;
            }
            if since.elapsed() >= patience {
                killed = killed.max(left.len());
                // Each call fails only if its target has ended already.
                let _ = kill(Pid::from_raw(-group.as_raw()), Signal::SIGKILL);
                for pid in left {
                    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
                }
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}
