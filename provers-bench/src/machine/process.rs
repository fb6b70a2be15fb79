//! Reads what Linux reports about a process: its memory, its CPU time and page faults, and its children.

use anyhow::{Context, anyhow};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::{SysconfVar, sysconf};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Returns the resident memory of this process.
pub(crate) fn rss_bytes() -> anyhow::Result<u64> {
    status_bytes("VmRSS:")
}

/// Returns the highest resident memory of this process since it started, or since [`reset_peak`].
pub(crate) fn peak_rss_bytes() -> anyhow::Result<u64> {
    status_bytes("VmHWM:")
}

/// Resets [`peak_rss_bytes`]; returns false if the kernel does not support this.
pub(crate) fn reset_peak() -> bool {
    // proc_pid_clear_refs(5): writing 5 resets the high-water mark and touches no page table.
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Returns this process's memory in huge pages; `None` if the kernel does not report it. Takes milliseconds.
pub(crate) fn huge_page_bytes() -> Option<u64> {
    field_bytes("/proc/self/smaps_rollup", "AnonHugePages:")
}

fn status_bytes(name: &str) -> anyhow::Result<u64> {
    field_bytes("/proc/self/status", name).with_context(|| format!("/proc/self/status (Linux) has no {name}"))
}

/// Returns the value of a line such as `VmRSS:   1956 kB` in a file, in bytes.
pub(super) fn field_bytes(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let kibibytes =
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Some(kibibytes? * 1024)
}

/// Resident memory of a process, in parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    /// Memory that the process has written: heaps, arenas, stacks.
    pub(crate) anonymous_bytes: u64,
    /// Pages of files, including its own code.
    pub(crate) file_bytes: u64,
}

impl Resident {
    /// Reads the memory of the process `pid`; `None` if it has ended. Reads `statm`, which is cheaper than `status`.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/statm")).ok()?)
    }

    fn parse(statm: &str) -> Option<Self> {
        let mut fields = statm.split(' ').skip(1).map_while(|pages| pages.parse::<u64>().ok());
        let (pages, of_files) = (fields.next()?, fields.next()?);
        let page_bytes = page_bytes();
        // A process that has ended but has not been waited for has no pages.
        (pages > 0).then(|| Self {
            anonymous_bytes: pages.saturating_sub(of_files) * page_bytes,
            file_bytes: of_files.min(pages) * page_bytes,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.anonymous_bytes + self.file_bytes
    }
}

/// Returns this machine's page size.
pub(crate) fn page_bytes() -> u64 {
    sysconf(SysconfVar::PAGE_SIZE).ok().flatten().map_or(4096, i64::unsigned_abs)
}

/// The `statm` file of this process, kept open. Reading it allocates nothing, so the reading does not disturb a
/// measurement of allocations.
#[derive(Debug)]
pub(crate) struct Account(File);

impl Account {
    pub(crate) fn open() -> anyhow::Result<Self> {
        Ok(Self(File::open("/proc/self/statm").context("resident memory is read from /proc (Linux)")?))
    }

    pub(crate) fn resident(&self) -> anyhow::Result<Resident> {
        let mut buffer = [0; 256];
        let read = self.0.read_at(&mut buffer, 0).context("cannot read /proc/self/statm")?;
        let text = buffer[..read].utf8_chunks().next().map_or("", |chunk| chunk.valid());
        Resident::parse(text).context("/proc/self/statm has no resident memory")
    }
}

/// CPU time and page faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) user_ns: u64,
    pub(crate) sys_ns: u64,
    pub(crate) minflt: u64,
    pub(crate) majflt: u64,
}

impl Spent {
    /// Returns the time and faults of this process so far, over all of its threads.
    pub(crate) fn by_this_process() -> anyhow::Result<Self> {
        Ok(getrusage(UsageWho::RUSAGE_SELF).context("getrusage failed")?.as_ref().into())
    }

    /// Returns the time and faults of the process `pid` since it started, including ended children that it waited for. Times have the
    /// resolution of the kernel's clock ticks, 10 ms. `None` if the process has ended.
    pub(crate) fn by(pid: u32) -> Option<Self> {
        Self::of_family(&stat_of(pid)?, tick_ns())
    }

    /// Returns the time and faults from `fields`, the fields of `/proc/PID/stat` from the third on (proc_pid_stat(5)).
    fn of_family(fields: &[u64], tick_ns: u64) -> Option<Self> {
        let &[minflt, of_children, majflt, of_children_too, user, sys, user_too, sys_too] =
            fields.get(7..15)?.first_chunk()?;
        Some(Self {
            user_ns: (user + user_too) * tick_ns,
            sys_ns: (sys + sys_too) * tick_ns,
            minflt: minflt + of_children,
            majflt: majflt + of_children_too,
        })
    }

    pub(crate) fn cpu_ns(self) -> u64 {
        self.user_ns + self.sys_ns
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        self.with(other, u64::wrapping_add)
    }

    /// Returns the difference since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(self, other: Self, f: fn(u64, u64) -> u64) -> Self {
        Self {
            user_ns: f(self.user_ns, other.user_ns),
            sys_ns: f(self.sys_ns, other.sys_ns),
            minflt: f(self.minflt, other.minflt),
            majflt: f(self.majflt, other.majflt),
        }
    }
}

impl From<&libc::rusage> for Spent {
    fn from(usage: &libc::rusage) -> Self {
        let ns = |time: libc::timeval| time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_usec.unsigned_abs() * 1_000;
        Self {
            user_ns: ns(usage.ru_utime),
            sys_ns: ns(usage.ru_stime),
            minflt: usage.ru_minflt.unsigned_abs(),
            majflt: usage.ru_majflt.unsigned_abs(),
        }
    }
}

/// Returns the CPU time of one process, without its children; `None` if it has ended.
pub(crate) fn cpu_ns_of(pid: u32) -> Option<u64> {
    Some(stat_of(pid)?.get(11..13)?.iter().sum::<u64>() * tick_ns())
}

/// Returns the fields of `/proc/PID/stat` after the program's name.
fn stat_of(pid: u32) -> Option<Vec<u64>> {
    Some(fields_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
}

/// Returns the length of a clock tick.
fn tick_ns() -> u64 {
    1_000_000_000 / sysconf(SysconfVar::CLK_TCK).ok().flatten().map_or(100, i64::unsigned_abs)
}

/// Parses the fields after the program's name, which is in parentheses and may contain any character.
fn fields_of(stat: &str) -> Vec<u64> {
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    behind.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect()
}

/// Returns the processes that descend from this one.
pub(crate) fn descendants() -> Vec<u32> {
    let mut found = children_of(std::process::id());
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children_of(pid));
        next += 1;
    }
    found
}

fn children_of(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    found
}

/// Returns the program that a process runs; `None` if the process has ended.
pub(crate) fn program_of(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Returns the mappings of a process, as lines; empty if the process has ended.
pub(crate) fn maps_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default()
}

/// A thread that takes readings repeatedly until it is stopped.
pub(crate) struct Sampler<T> {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Sampler<T> {
    /// Starts the thread. It calls `read` with the readings so far, and with whether this is the last call, made after [`end`](Self::end).
    /// `read` returns the pause before the next call, or `None` to stop.
    pub(crate) fn begin(
        mut readings: T,
        mut read: impl FnMut(&mut T, bool) -> Option<Duration> + Send + 'static,
    ) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = thread::spawn(move || {
            loop {
                let is_last = over.load(Ordering::Relaxed);
                match read(&mut readings, is_last) {
                    Some(pause) if !is_last => thread::park_timeout(pause),
                    _ => return readings,
                }
            }
        });
        Self { is_over, thread }
    }

    /// Stops the thread, and returns the readings.
    pub(crate) fn end(self) -> anyhow::Result<T> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().map_err(|_| anyhow!("a thread that takes readings panicked"))
    }
}

/// Sampling interval: about fifty samples in a proof of one second, at about 10 us each.
const EVERY: Duration = Duration::from_millis(20);

/// Resident memory over time: milliseconds since the start, and bytes.
pub(crate) type Curve = Vec<(u32, u64)>;

/// Samples the resident memory of the process `pid` until it ends or the sampler is stopped.
pub(crate) fn watch_rss(pid: u32) -> Sampler<Curve> {
    let since = Instant::now();
    Sampler::begin(Vec::new(), move |seen: &mut Curve, _| {
        let resident = Resident::of(pid)?;
        seen.push((since.elapsed().as_millis() as u32, resident.bytes()));
        Some(EVERY)
    })
}

/// Returns the area under the curve of resident memory up to `time`, in byte-seconds; `None` if there are no samples.
pub(crate) fn byte_seconds(seen: &[(u32, u64)], time: Duration) -> Option<u64> {
    let end = time.as_secs_f64();
    let (mut sum, mut at, mut bytes) = (0.0, 0.0, seen.first()?.1 as f64);
    for &(at_ms, next) in seen {
        let until = (f64::from(at_ms) / 1e3).min(end);
        sum += (until - at) * (bytes + next as f64) / 2.0;
        (at, bytes) = (until, next as f64);
    }
    Some((sum + (end - at) * bytes).round() as u64)
}

/// Returns at most `most` of the samples: the highest of each group of neighbours, so no peak is lost.
pub(crate) fn highest(seen: &[(u32, u64)], most: usize) -> impl Iterator<Item = (u32, u64)> {
    let group = seen.len().div_ceil(most).max(1);
    seen.chunks(group).filter_map(|group| group.iter().copied().max_by_key(|(_, bytes)| *bytes))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Tests run in threads of one process and share its memory counters, so tests that read them take turns.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program's name may contain any character, including parentheses.
    #[test]
    fn fields_are_counted_after_the_programs_name() {
        let stat = "12 (a) b) (c) S 1 12 12 0 -1 4194560 100 20 3 4 50 60 7 8 20 0 1 0 123";
        let spent = Spent { user_ns: 570, sys_ns: 680, minflt: 120, majflt: 7 };
        assert_eq!(Spent::of_family(&fields_of(stat), 10), Some(spent));
        assert_eq!(Spent::of_family(&fields_of("12 (a) S 1"), 10), None);
    }

    /// The memory of a two-second proof is 1 kB, and rises to 3 kB at the end. Later samples, during verification, do not count.
    #[test]
    fn memory_is_summed_over_the_time_of_the_proof() {
        let seen = [(0, 1_000), (1_000, 1_000), (2_000, 3_000), (9_000, 9_000)];
        let sums = [&seen[..2], &seen[..3], &seen, &[]].map(|seen| byte_seconds(seen, Duration::from_secs(2)));
        assert_eq!(sums, [Some(2_000), Some(3_000), Some(3_000), None]);
    }

    #[test]
    fn a_shorter_curve_keeps_its_peaks() {
        let seen: Vec<_> = (0..1000).map(|at| (at, if at == 777 { 9 } else { 1 })).collect();
        let shorter: Vec<_> = highest(&seen, 100).collect();
        assert_eq!((shorter.len(), shorter.iter().map(|(_, bytes)| *bytes).max()), (100, Some(9)));
        assert!(shorter.is_sorted_by_key(|(at, _)| *at));
        assert_eq!(highest(&seen, 5000).count(), 1000);
    }
}
