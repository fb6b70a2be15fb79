//! Processes that have ended and were waited for, with their CPU time and faults.

use super::tree::Spent;
use anyhow::Context;
use nix::sys::prctl;
use nix::unistd::Pid;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Makes this process the parent of processes that the command leaves behind. Called once per process.
pub(super) fn adopt_orphans() -> anyhow::Result<()> {
    prctl::set_child_subreaper(true).context("cannot become the parent of what the command leaves behind")
}

/// The totals of the processes that were waited for.
#[derive(Default)]
pub(super) struct Reaped {
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

impl Reaped {
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
