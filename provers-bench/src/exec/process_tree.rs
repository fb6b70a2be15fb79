//! The processes of a command, while they run and when they have ended: their memory, their CPU time, and whether they
//! map the library. Everything is read from `/proc` (Linux), or from `wait4`.
//!
//! The driver is the subreaper of its descendants (PR_SET_CHILD_SUBREAPER), so it becomes the parent of a process whose
//! parent has ended. The command is therefore everything that descends from the driver.

use super::target;
use crate::machine::memory;
use anyhow::Context;
use nix::sys::prctl;
use nix::unistd::{Pid, SysconfVar, sysconf};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Prefixes of the file names of allocators.
const ALLOCATORS: &[&str] =
    &["libjemalloc", "libmimalloc", "libtcmalloc", "libsnmalloc", "librpmalloc", "libhoard", "libscudo", "libzk_alloc"];

/// CPU time and faults of processes since they started, including ended children that were waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) user_ns: u64,
    pub(super) sys_ns: u64,
    pub(super) minflt: u64,
    pub(super) majflt: u64,
}

impl Spent {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            user_ns: self.user_ns + other.user_ns,
            sys_ns: self.sys_ns + other.sys_ns,
            minflt: self.minflt + other.minflt,
            majflt: self.majflt + other.majflt,
        }
    }

    /// The difference since `earlier`.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            sys_ns: self.sys_ns.saturating_sub(earlier.sys_ns),
            minflt: self.minflt.saturating_sub(earlier.minflt),
            majflt: self.majflt.saturating_sub(earlier.majflt),
        }
    }
}

/// Where the library was mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mapped {
    /// In this many of the inspected programs, among them all that had much of the memory or CPU time.
    In { programs: usize, of: usize },
    /// Missing in this program, which had at least half the memory of the largest one, or at least half of the CPU
    /// time.
    NotIn(PathBuf),
    /// Every process ended before it could be inspected.
    Unseen,
}

/// A program that a process runs. A process that calls `execve` becomes another program.
type Program = (u32, PathBuf);

#[derive(Debug, Default)]
struct Seen {
    /// `None` until its loader has run far enough to tell.
    has_library: Option<bool>,
    /// `None` until it is needed.
    is_static: Option<bool>,
    most_bytes: u64,
    /// Its own CPU time at the last look. Only read if the program is known to lack the library.
    cpu_ns: u64,
}

/// The command's processes that were seen.
#[derive(Debug)]
pub(super) struct ProcessTree<'a> {
    library: Option<&'a Path>,
    driver: PathBuf,
    programs: BTreeMap<Program, Seen>,
    allocators: BTreeSet<String>,
}

impl<'a> ProcessTree<'a> {
    /// The processes that must map `library`, a path without symbolic links.
    pub(super) fn new(library: Option<&'a Path>) -> Self {
        let driver = fs::read_link("/proc/self/exe").unwrap_or_default();
        Self { library, driver, programs: BTreeMap::new(), allocators: BTreeSet::new() }
    }

    /// Looks at every process, and returns the resident memory of all together. Anonymous memory is summed over all
    /// processes. File pages are counted only for the process that has the most, because the others share them.
    pub(super) fn look(&mut self) -> u64 {
        let (mut anonymous, mut most_of_files) = (0, 0);
        for pid in processes() {
            let Some(resident) = memory::resident_of(pid) else { continue };
            let Ok(exe) = fs::read_link(format!("/proc/{pid}/exe")) else { continue };
            // Between `fork` and `execve` the process still runs the driver.
            if exe == self.driver {
                continue;
            }
            anonymous += resident.anonymous_bytes;
            most_of_files = most_of_files.max(resident.file_bytes);
            let seen = self.programs.entry((pid, exe)).or_default();
            seen.most_bytes = seen.most_bytes.max(resident.anonymous_bytes + resident.file_bytes);
            if seen.has_library.is_none() {
                let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
                seen.has_library = told_by(&maps, self.library);
                self.allocators.extend(allocators_in(&maps));
            }
            // During `execve` a dynamic program has no loader either, so its file decides.
            if seen.has_library.is_none() {
                let program = PathBuf::from(format!("/proc/{pid}/exe"));
                let is_static = *seen.is_static.get_or_insert_with(|| target::is_static(&program).unwrap_or(false));
                seen.has_library = is_static.then_some(false);
            }
            if self.library.is_some() && seen.has_library == Some(false) {
                seen.cpu_ns = cpu_of(pid).unwrap_or(seen.cpu_ns);
            }
        }
        anonymous + most_of_files
    }

    /// Whether programs were seen, and each is known to have the library or to lack it.
    pub(super) fn is_settled(&self) -> bool {
        !self.programs.is_empty() && self.programs.values().all(|seen| seen.has_library.is_some())
    }

    /// Programs seen so far.
    pub(super) fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Files of allocators that were seen mapped.
    pub(super) fn allocators(&self) -> Vec<String> {
        self.allocators.iter().cloned().collect()
    }

    /// Where the library was mapped, among processes that have `spent` this in total.
    pub(super) fn mapped(&self, spent: Spent) -> Mapped {
        let told = || self.programs.iter().filter(|(_, seen)| seen.has_library.is_some());
        let Some(most) = told().map(|(_, seen)| seen.most_bytes).max() else { return Mapped::Unseen };
        let cpu_ns = spent.user_ns + spent.sys_ns;
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

/// The processes that descend from the driver.
pub(super) fn processes() -> Vec<u32> {
    let mut found = children_of(std::process::id());
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children_of(pid));
        next += 1;
    }
    found
}

/// CPU time and faults of the processes that descend from the driver. Times have the resolution of the kernel's clock
/// ticks, 10 ms.
pub(super) fn spent() -> Spent {
    processes().into_iter().filter_map(spent_by).fold(Spent::default(), Spent::plus)
}

fn children_of(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    found
}

fn spent_by(pid: u32) -> Option<Spent> {
    let (stat, tick_ns) = stat_of(pid)?;
    spent_in(&stat, tick_ns)
}

/// CPU time of one process, without its children.
fn cpu_of(pid: u32) -> Option<u64> {
    let (stat, tick_ns) = stat_of(pid)?;
    let field = fields_of(&stat)?;
    Some((field(14)? + field(15)?) * tick_ns)
}

/// The line of `/proc/PID/stat` (proc_pid_stat(5)), and the length of a clock tick.
fn stat_of(pid: u32) -> Option<(String, u64)> {
    let tick_ns = 1_000_000_000 / sysconf(SysconfVar::CLK_TCK).ok()??.unsigned_abs().max(1);
    Some((fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, tick_ns))
}

/// Returns a function from field numbers to the numbers of such a line.
fn fields_of(stat: &str) -> Option<impl Fn(usize) -> Option<u64>> {
    // The program's name is in parentheses, and may contain any character.
    let fields: Vec<u64> =
        stat.rsplit_once(')')?.1.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    Some(move |number: usize| fields.get(number - 3).copied())
}

/// The figures of a process, including those of children that it waited for.
fn spent_in(stat: &str, tick_ns: u64) -> Option<Spent> {
    let field = fields_of(stat)?;
    Some(Spent {
        user_ns: (field(14)? + field(16)?) * tick_ns,
        sys_ns: (field(15)? + field(17)?) * tick_ns,
        minflt: field(10)? + field(11)?,
        majflt: field(12)? + field(13)?,
    })
}

/// The files of allocators in these `maps`.
fn allocators_in(maps: &str) -> impl Iterator<Item = String> {
    let files = maps.lines().filter_map(|line| line.rsplit_once('/')).map(|(_, file)| file);
    files.filter(|file| ALLOCATORS.iter().any(|name| file.starts_with(name))).map(str::to_owned)
}

/// Whether a process with these `maps` has `library` mapped; `None` if it is too early to tell. The loader maps
/// preloaded libraries before the program's own dependencies, which include the C library.
fn told_by(maps: &str, library: Option<&Path>) -> Option<bool> {
    let paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..])).map(Path::new);
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned).unwrap_or_default();
    if library.is_some_and(|library| paths.clone().any(|path| path == library)) {
        return Some(true);
    }
    let is_c_library = |path: &Path| name(path).starts_with("libc.so") || name(path).starts_with("libc-");
    paths.clone().any(is_c_library).then_some(false)
}

/// Makes this process the parent of processes that the command leaves behind. Called once per process.
pub(super) fn adopt_orphans() -> anyhow::Result<()> {
    prctl::set_child_subreaper(true).context("cannot become the parent of what the command leaves behind")
}

/// The totals of the processes that were waited for.
#[derive(Default)]
pub(super) struct Exited {
    pub(super) spent: Spent,
    /// The highest resident memory of a single one.
    pub(super) max_rss_bytes: Option<u64>,
    statuses: Vec<(Pid, ExitStatus)>,
}

/// A process that has ended.
pub(super) struct Ended {
    pid: Pid,
    status: ExitStatus,
    spent: Spent,
    max_rss_bytes: u64,
}

impl Exited {
    pub(super) fn add(&mut self, ended: Ended) {
        self.spent = self.spent.plus(ended.spent);
        self.max_rss_bytes = self.max_rss_bytes.max(Some(ended.max_rss_bytes));
        self.statuses.push((ended.pid, ended.status));
    }

    pub(super) fn status(&self, pid: Pid) -> Option<ExitStatus> {
        self.statuses.iter().find(|(ended, _)| *ended == pid).map(|(_, status)| *status)
    }
}

/// Waits for any child that has ended; `None` if no child has. Its figures include those of all children that it waited
/// for itself.
pub(super) fn reap() -> Option<Ended> {
    let mut status = 0;
    // SAFETY: a `rusage` consists of numbers, and zero is a valid value of each.
    #[expect(unsafe_code, reason = "the C library's structure has no constructor")]
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for writes during the call (wait4(2)).
    #[expect(unsafe_code, reason = "nix has no wait4")]
    let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
    let time = |time: libc::timeval| time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_usec.unsigned_abs() * 1_000;
    (pid > 0).then(|| Ended {
        pid: Pid::from_raw(pid),
        status: ExitStatus::from_raw(status),
        spent: Spent {
            user_ns: time(usage.ru_utime),
            sys_ns: time(usage.ru_stime),
            minflt: usage.ru_minflt.unsigned_abs(),
            majflt: usage.ru_majflt.unsigned_abs(),
        },
        // In KiB (getrusage(2)).
        max_rss_bytes: usage.ru_maxrss.unsigned_abs() * 1024,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program's name may contain any character. Only the fields after it count.
    #[test]
    fn fields_are_counted_from_behind_the_programs_name() {
        let stat = "12 (a) b) (c) S 1 12 12 0 -1 4194560 100 20 3 4 50 60 7 8 20 0 1 0 123";
        let spent = Spent { user_ns: 570, sys_ns: 680, minflt: 120, majflt: 7 };
        assert_eq!(spent_in(stat, 10), Some(spent));
        assert_eq!(spent_in("12 (a) S 1", 10), None);
    }

    /// A look that comes too early must not fail an arm.
    #[test]
    fn the_library_is_missing_only_once_the_loader_is_past_it() {
        let library = Some(Path::new("/usr/lib/libjemalloc.so.2"));
        let maps =
            |paths: &[&str]| paths.iter().map(|path| format!("7f00-7f01 r-xp 0 0 9   {path}\n")).collect::<String>();
        let early = maps(&["/usr/bin/sort", "/usr/lib/ld-linux-x86-64.so.2", "[stack]"]);
        assert_eq!(told_by(&early, library), None);
        let with = format!("{early}{}", maps(&["/usr/lib/libjemalloc.so.2"]));
        assert_eq!(told_by(&with, library), Some(true));
        let without = format!("{early}{}", maps(&["/usr/lib/libc.so.6"]));
        assert_eq!(told_by(&without, library), Some(false));
        assert_eq!(told_by(&maps(&["/usr/bin/sort", "[heap]"]), library), None, "it may be in the middle of execve");
        assert_eq!(told_by("", library), None, "it has ended");
        assert_eq!(told_by(&without, None), Some(false), "without a library it is as soon known");
    }
}
