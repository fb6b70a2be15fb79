//! One run of the command: starts the command, and waits for it and for all processes that it started. Meanwhile polls
//! their memory, their CPU time, and whether they map the library. Scans the output as it arrives for lines that end an
//! interval, and compares the output after the run.
//!
//! The driver is the subreaper of its descendants (PR_SET_CHILD_SUBREAPER), so it becomes the parent of a process whose
//! parent has ended. The processes of the command are therefore all descendants of the driver.

use super::preload::{self, PRELOAD};
use crate::arms::Variables;
use crate::machine;
use crate::machine::process::{Resident, Spent, cpu_ns_of, descendants, maps_of, peak_rss_bytes, program_of};
use crate::measure::process;
use crate::measure::{Failure, Interrupt};
use anyhow::Context;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use regex::bytes::Regex;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two polls of the processes.
pub(super) const EVERY: Duration = Duration::from_millis(20);
/// Time between two polls just after the command has started, until the mappings of its processes are known.
const EARLY: Duration = Duration::from_micros(500);
/// Maximum duration of polling at the interval [`EARLY`].
const STARTING: Duration = Duration::from_millis(50);
/// After a poll, the watcher pauses for at least this many times the poll's duration, except just after the start. This limits its CPU
/// time.
const PAUSE_FACTOR: u32 = 50;
/// Time limit for processes that the command leaves behind. They are killed if they have not ended by then.
const GRACE: Duration = Duration::from_secs(1);
/// Longest wait for all processes to end, including those that were killed.
const KILLED: Duration = Duration::from_secs(10);

/// The parameters of a run.
#[derive(Default)]
pub(super) struct Task<'a> {
    pub(super) command: &'a [OsString],
    pub(super) environment: &'a Variables,
    /// Libraries that every run preloads. Overridden by `LD_PRELOAD` in `environment`.
    pub(super) preloaded: &'a str,
    /// The library that must be mapped: a path without symbolic links.
    pub(super) library: Option<&'a Path>,
    /// Matches the output lines that end an interval.
    pub(super) each: Option<&'a Regex>,
    /// Whether to hash the standard output, for a comparison with other runs.
    pub(super) hashes_stdout: bool,
    /// Longest time that the run may take.
    pub(super) limit: Option<Duration>,
}

/// The result of a run.
pub(super) struct Ran {
    /// The end of the run: its time, the CPU time and faults of all processes that were waited for, and its memory peak.
    pub(super) end: Mark,
    /// Resident memory over time: milliseconds since the start, and bytes.
    pub(super) rss_over_time: Vec<(u32, u64)>,
    pub(super) marks: Vec<Mark>,
    pub(super) mapped: Mapped,
    /// Allocator libraries that a process had mapped.
    pub(super) allocators: Vec<String>,
    pub(super) programs: usize,
    /// Number of processes that the command left behind and that had to be killed.
    pub(super) left_behind: usize,
    /// SHA-256 of the standard output; empty if the task does not request it.
    pub(super) stdout_sha256: String,
    pub(super) stderr: Vec<String>,
}

/// A matching line of the output, or the end of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// Time since the start.
    pub(super) at: Duration,
    pub(super) spent: Spent,
    /// Resident memory at the last poll that found a process.
    pub(super) rss_bytes: u64,
    /// Peak of resident memory since the previous mark, or of the whole run.
    pub(super) peak_rss_bytes: u64,
}

enum Event {
    Line(Instant),
    Ended(Instant),
}

/// Runs the command once.
pub(super) fn run(task: &Task<'_>, interrupt: &Interrupt) -> Result<Ran, Failure> {
    // Reaps processes that ended since the previous run, because they do not belong to this one.
    Exited::default().reap();
    let (sender, events) = mpsc::channel();
    let mut command = Command::new(&task.command[0]);
    command.args(&task.command[1..]).stdin(Stdio::null());
    if task.preloaded.is_empty() {
        command.env_remove(PRELOAD);
    } else {
        command.env(PRELOAD, task.preloaded);
    }
    let started = Instant::now();
    let mut child = process::spawn(&mut command, task.environment)?;
    let of_driver = peak_rss_bytes().unwrap_or(0);
    let pid = Pid::from_raw(child.id().cast_signed());
    let scanner = |hashes: bool| Scanner {
        each: task.each.map(|each| (each.clone(), sender.clone())),
        hash: hashes.then(Sha256::new),
    };
    let stdout = process::read_lines(child.stdout.take(), scanner(task.hashes_stdout), Scanner::see);
    let stderr = process::read_lines(child.stderr.take(), scanner(false), Scanner::see);
    // Waits without reaping: the process ID stays reserved, and the measurements of the process stay readable.
    thread::spawn(move || {
        let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        // The send fails only if the receiver is gone.
        let _ = sender.send(Event::Ended(Instant::now()));
    });
    let mut watch = Watch::new(started, task.library);
    let ended = watch.until_ended(&events, task.limit, interrupt);
    let left_behind = watch.end_all(pid, ended.is_ok());
    let hash = stdout.join().ok().and_then(|(_, scanner)| scanner.hash);
    let stderr = stderr.join().map_or_else(|_| Vec::new(), |(lines, _)| lines);
    let wall = ended?;
    match watch.exited.statuses.get(&pid).copied() {
        Some(status) if status.success() => {}
        Some(status) => return Err(Failure::Failed(process::how_it_died(status, "", stderr))),
        None => return Err(Failure::Failed("ended without a status".into())),
    }
    // The kernel's maximum includes memory from before `execve`, when the process was a copy of this driver, so it counts only above the
    // driver's own peak.
    let alone = watch.exited.max_rss_bytes.filter(|bytes| *bytes > of_driver).unwrap_or(0);
    let peak_rss_bytes = watch.seen.iter().map(|(_, bytes)| *bytes).fold(alone, u64::max);
    let spent = watch.exited.spent;
    Ok(Ran {
        end: Mark { at: wall, spent, rss_bytes: watch.last_rss_bytes(), peak_rss_bytes },
        mapped: watch.mapped(spent),
        rss_over_time: watch.seen,
        marks: watch.marks,
        allocators: watch.allocators.into_iter().collect(),
        programs: watch.programs.len(),
        left_behind,
        stdout_sha256: hash.map(|hash| machine::in_hex(&hash.finalize())).unwrap_or_default(),
        stderr,
    })
}

/// Scans the output as it arrives.
struct Scanner {
    /// The expression that matches lines that end an interval, and the channel to report them on.
    each: Option<(Regex, Sender<Event>)>,
    /// Hash of the whole output, if it is compared with another run's.
    hash: Option<Sha256>,
}

impl Scanner {
    fn see(&mut self, line: &[u8]) {
        let arrived = Instant::now();
        if let (Some((each, events)), Some(text)) = (&self.each, line.strip_suffix(b"\n"))
            && each.is_match(text)
        {
            // The send fails only if the receiver is gone.
            let _ = events.send(Event::Line(arrived));
        }
        self.hash.iter_mut().for_each(|hash| hash.update(line));
    }
}

/// Prefixes of the file names of allocator libraries.
const ALLOCATORS: &[&str] =
    &["libjemalloc", "libmimalloc", "libtcmalloc", "libsnmalloc", "librpmalloc", "libhoard", "libscudo", "libzk_alloc"];

/// Where the library was mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mapped {
    /// In `programs` of the `of` inspected programs, including every program that used much of the memory or CPU time.
    In { programs: usize, of: usize },
    /// Missing in this program, which had at least half the memory of the largest program, or at least half of the CPU
    /// time.
    NotIn(PathBuf),
    /// Every process ended before it could be inspected.
    Unseen,
}

/// A program that a process runs. A process that calls `execve` becomes another program.
type Program = (u32, PathBuf);

#[derive(Debug, Default)]
struct Seen {
    /// Whether the library is mapped; `None` until the loader has progressed far enough to tell.
    has_library: Option<bool>,
    most_bytes: u64,
    /// Its own CPU time at the last poll. Read only if the program is known to lack the library.
    cpu_ns: u64,
}

/// The observations of a run.
struct Watch<'a> {
    started: Instant,
    /// The library that must be mapped: a path without symbolic links.
    library: Option<&'a Path>,
    driver: PathBuf,
    programs: BTreeMap<Program, Seen>,
    allocators: BTreeSet<String>,
    exited: Exited,
    /// Resident memory over time: milliseconds since the start, and bytes.
    seen: Vec<(u32, u64)>,
    marks: Vec<Mark>,
}

impl<'a> Watch<'a> {
    fn new(started: Instant, library: Option<&'a Path>) -> Self {
        Self {
            started,
            library,
            driver: program_of(std::process::id()).unwrap_or_default(),
            programs: BTreeMap::new(),
            allocators: BTreeSet::new(),
            exited: Exited::default(),
            seen: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Polls the processes until the command's own process has ended. Returns how long that process ran.
    fn until_ended(
        &mut self,
        events: &Receiver<Event>,
        limit: Option<Duration>,
        interrupt: &Interrupt,
    ) -> Result<Duration, Failure> {
        let mut next = self.started;
        loop {
            if interrupt.is_raised() {
                return Err(Failure::Interrupted);
            }
            let now = Instant::now();
            if let Some(limit) = limit.filter(|limit| now - self.started > *limit) {
                return Err(Failure::hung(limit));
            }
            if now >= next {
                self.look();
                let is_early = now - self.started < STARTING && !self.is_settled();
                next = Instant::now() + if is_early { EARLY } else { EVERY.max(now.elapsed() * PAUSE_FACTOR) };
            }
            match events.recv_timeout(next.saturating_duration_since(Instant::now()).min(process::POLL)) {
                Ok(Event::Line(at)) => self.mark(at),
                Ok(Event::Ended(at)) => {
                    // Lines that were written earlier may still follow in the queue.
                    while let Ok(Event::Line(at)) = events.recv_timeout(EARLY) {
                        self.mark(at);
                    }
                    return Ok(at - self.started);
                }
                // A timeout: the next poll is due. The channel stays connected until `Ended` has been sent.
                Err(_) => {}
            }
        }
    }

    /// Returns the resident memory at the last poll that found a process.
    fn last_rss_bytes(&self) -> u64 {
        self.seen.iter().rev().map(|(_, bytes)| *bytes).find(|bytes| *bytes > 0).unwrap_or(0)
    }

    /// Polls every process, and records their total resident memory. Anonymous memory is summed over all processes. File pages are counted
    /// only for the process with the most of them, because the others share them.
    fn look(&mut self) {
        let (mut anonymous, mut most_of_files) = (0, 0);
        for pid in descendants() {
            let Some(resident) = Resident::of(pid) else { continue };
            let Some(exe) = program_of(pid) else { continue };
            // Between `fork` and `execve` the process still runs the driver.
            if exe == self.driver {
                continue;
            }
            anonymous += resident.anonymous_bytes;
            most_of_files = most_of_files.max(resident.file_bytes);
            let seen = self.programs.entry((pid, exe)).or_default();
            seen.most_bytes = seen.most_bytes.max(resident.bytes());
            if seen.has_library.is_none() {
                let maps = maps_of(pid);
                let files = maps.lines().filter_map(|line| line.rsplit_once('/')).map(|(_, file)| file);
                let allocators = files.filter(|file| ALLOCATORS.iter().any(|name| file.starts_with(name)));
                self.allocators.extend(allocators.map(str::to_owned));
                // A static program never maps the C library. Neither does a dynamic program during `execve`, so the program's file decides
                // which of the two this is.
                let is_static = || preload::is_static(format!("/proc/{pid}/exe").as_ref()) == Some(true);
                seen.has_library = told_by(&maps, self.library).or_else(|| is_static().then_some(false));
            }
            if self.library.is_some() && seen.has_library == Some(false) {
                seen.cpu_ns = cpu_ns_of(pid).unwrap_or(seen.cpu_ns);
            }
        }
        self.seen.push((self.started.elapsed().as_millis() as u32, anonymous + most_of_files));
    }

    fn mark(&mut self, at: Instant) {
        self.look();
        let at = at - self.started;
        let since = self.marks.last().map_or(0, |mark| mark.at.as_millis() as u32);
        let recent = self.seen.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, bytes)| *bytes);
        let peak_rss_bytes = recent.max().unwrap_or(0);
        // The last poll may find no process, because a program may end right after printing its last line.
        let rss_bytes = self.last_rss_bytes();
        let spent = descendants().into_iter().filter_map(Spent::by).fold(self.exited.spent, Spent::plus);
        self.marks.push(Mark { at, spent, rss_bytes, peak_rss_bytes });
    }

    /// Waits for every process, and returns how many had to be killed. If the command ended by itself, the remaining
    /// processes have [`GRACE`] to end.
    fn end_all(&mut self, group: Pid, by_itself: bool) -> usize {
        let mut killed = 0;
        let patience = if by_itself { GRACE } else { Duration::ZERO };
        let since = Instant::now();
        loop {
            self.exited.reap();
            let left = descendants();
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

    /// Returns whether at least one program was seen, and it is known for each one whether it maps the library.
    fn is_settled(&self) -> bool {
        !self.programs.is_empty() && self.programs.values().all(|seen| seen.has_library.is_some())
    }

    /// Returns where the library was mapped, among processes that spent `spent` in total.
    fn mapped(&self, spent: Spent) -> Mapped {
        let told = || self.programs.iter().filter(|(_, seen)| seen.has_library.is_some());
        let Some(most) = told().map(|(_, seen)| seen.most_bytes).max() else { return Mapped::Unseen };
        let cpu_ns = spent.cpu_ns();
        let matters = |seen: &Seen| seen.most_bytes >= most / 2 || (cpu_ns > 0 && seen.cpu_ns >= cpu_ns / 2);
        let without = told().filter(|(_, seen)| seen.has_library == Some(false) && matters(seen));
        match without.max_by_key(|(_, seen)| seen.most_bytes) {
            Some(((_, program), _)) => Mapped::NotIn(program.clone()),
            None => {
                let with = told().filter(|(_, seen)| seen.has_library == Some(true));
                Mapped::In { programs: with.count(), of: told().count() }
            }
        }
    }
}

/// Returns whether a process with these `maps` has `library` mapped; `None` if it is too early to tell. The loader maps preloaded libraries
/// before the program's own dependencies, which include the C library.
fn told_by(maps: &str, library: Option<&Path>) -> Option<bool> {
    let paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    if library.is_some_and(|library| paths.clone().any(|path| Path::new(path) == library)) {
        return Some(true);
    }
    let mut names = paths.filter_map(|path| path.rsplit('/').next());
    names.any(|name| name.starts_with("libc.so") || name.starts_with("libc-")).then_some(false)
}

/// Makes this process the parent of processes that the command leaves behind. Call this once per process.
pub(super) fn adopt_orphans() -> anyhow::Result<()> {
    prctl::set_child_subreaper(true).context("cannot become the parent of processes that the command leaves behind")
}

/// The totals of the processes that were waited for.
#[derive(Default)]
struct Exited {
    spent: Spent,
    /// The highest resident memory of a single process.
    max_rss_bytes: Option<u64>,
    statuses: BTreeMap<Pid, ExitStatus>,
}

impl Exited {
    /// Waits for every child that has ended, and adds its measurements. They include those of all children that the child itself waited
    /// for.
    fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: all fields of `rusage` are integers, for which zero is a valid value.
            #[expect(unsafe_code, reason = "the C library's structure has no constructor")]
            let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
            // SAFETY: both pointers are valid for writes during the call (wait4(2)).
            #[expect(unsafe_code, reason = "nix has no wait4")]
            let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
            if pid <= 0 {
                return;
            }
            self.spent = self.spent.plus((&usage).into());
            // `ru_maxrss` is in KiB (getrusage(2)).
            self.max_rss_bytes = self.max_rss_bytes.max(Some(usage.ru_maxrss.unsigned_abs() * 1024));
            self.statuses.entry(Pid::from_raw(pid)).or_insert(ExitStatus::from_raw(status));
        }
    }
}

/// The file name that means standard output.
const STDOUT: &str = "-";

/// The file that `--same-output` compares.
#[derive(Debug)]
pub(super) struct SameOutput {
    file: PathBuf,
    /// SHA-256 of the first run's output.
    expected: Option<String>,
}

/// File metadata that changes when the file is written; `None` if there is no file.
type State = Option<(u64, i64, i64)>;

impl SameOutput {
    pub(super) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), expected: None }
    }

    pub(super) fn is_stdout(&self) -> bool {
        self.file == Path::new(STDOUT)
    }

    /// Returns the current state of the file.
    pub(super) fn state(&self) -> State {
        let file = fs::metadata(&self.file).ok()?;
        Some((file.ino(), file.ctime(), file.ctime_nsec()))
    }

    /// Compares the output of a run with that of the first run. `before` is the state of the file before the run. The error states why the
    /// run does not count.
    pub(super) fn check(&mut self, before: State, stdout_sha256: &str) -> Result<(), String> {
        let name = self.file.display();
        let (what, found) = match self.is_stdout() {
            true => ("its output".into(), stdout_sha256.to_owned()),
            // Without this check, a file from an earlier run could pass for this run's.
            false if self.state() == before => return Err(format!("it did not write {name}")),
            false => {
                let found = machine::sha256_of(&self.file).ok_or_else(|| format!("{name} cannot be read"))?;
                (name.to_string(), found)
            }
        };
        let expected = self.expected.get_or_insert_with(|| found.clone());
        if found == *expected {
            return Ok(());
        }
        Err(format!(
            "{what} differs from that of the first run, without a library: SHA-256 {found:.12}…, not {expected:.12}…"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A poll that comes too early must not fail an arm.
    #[test]
    fn the_library_counts_as_missing_only_once_the_c_library_is_mapped() {
        let library = "/usr/lib/libjemalloc.so.2";
        let (early, c_library) = ("/usr/bin/sort /usr/lib/ld-linux-x86-64.so.2 [stack]", "/usr/lib/libc.so.6");
        for (paths, library, expected) in [
            (early.to_owned(), Some(library), None),
            (format!("{early} {library}"), Some(library), Some(true)),
            (format!("{early} {c_library}"), Some(library), Some(false)),
            // The process may be in the middle of `execve`, or may have ended.
            ("/usr/bin/sort [heap]".into(), Some(library), None),
            (String::new(), Some(library), None),
            (format!("{early} {c_library}"), None, Some(false)),
        ] {
            let maps: String = paths.split(' ').map(|path| format!("7f00-7f01 r-xp 0 0 9   {path}\n")).collect();
            assert_eq!(told_by(&maps, library.map(Path::new)), expected, "{paths}");
        }
    }
}
