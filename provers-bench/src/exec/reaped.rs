//! Processes that have ended: waited for, with what they have spent.

use super::tree::Spent;
use anyhow::Context;
use nix::sys::prctl;
use nix::unistd::Pid;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Makes this process the parent of what the command leaves behind. Once per process.
pub(super) fn adopt_orphans() -> anyhow::Result<()> {
    prctl::set_child_subreaper(true).context("cannot become the parent of what the command leaves behind")
}

/// What the processes that were waited for have spent.
#[derive(Default)]
pub(super) struct Reaped {
    pub(super) spent: Spent,
    /// The most that one of them had.
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

/// Waits for a child that has ended, whichever it is; `None` if there is none. Its figures hold those of all children that
/// it has itself waited for.
pub(super) fn reap() -> Option<Ended> {
    let mut status = 0;
    // SAFETY: a `rusage` is numbers, for which zeros are a value.
    #[expect(unsafe_code, reason = "the C library's structure has no other beginning")]
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places are ours to write to, and are alive for the call (wait4(2)).
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
