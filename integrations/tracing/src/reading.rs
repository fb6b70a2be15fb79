//! The counters at one moment, of zk-alloc and of the kernel, and their changes between two.

use std::ops::AddAssign;
use std::time::Instant;

use serde::Serialize;
use zk_alloc::{Stats, ThreadStats};

macro_rules! add {
    ($to:ident, $more:ident, $($field:ident)*) => {
        $($to.$field += $more.$field;)*
    };
}

/// The changes of the process's counters while a span was entered on any thread. It includes the work of
/// other threads, such as rayon's workers. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// Time, in nanoseconds. Where several threads were in the span at once, it counts once.
    pub wall_ns: u64,
    /// Processor time of all threads, in nanoseconds.
    pub cpu_ns: u64,
    /// Page faults of all threads that needed no disk.
    pub minor_faults: u64,
    /// Whether the arena served at any time of it. If not, all that follows is 0 and means nothing.
    pub is_served: bool,
    /// Requests that the arena served.
    pub requests: u64,
    /// Bytes of them ([`Stats::arena_bytes`](zk_alloc::Stats::arena_bytes)).
    pub allocated_bytes: u64,
    /// Bytes among them that were not resident ([`Stats::fresh_bytes`](zk_alloc::Stats::fresh_bytes)).
    pub fresh_bytes: u64,
    /// Bytes requested of the arena that the backing allocator served instead.
    pub overflow_bytes: u64,
    /// The peak of the live bytes of the process ([`Stats::peak_live_bytes`](zk_alloc::Stats::peak_live_bytes)).
    pub peak_live_bytes: u64,
}

impl AddAssign<&Self> for Totals {
    fn add_assign(&mut self, more: &Self) {
        add!(self, more, wall_ns cpu_ns minor_faults requests allocated_bytes fresh_bytes overflow_bytes);
        self.is_served |= more.is_served;
        self.peak_live_bytes = self.peak_live_bytes.max(more.peak_live_bytes);
    }
}

/// The changes of one thread's counters while it was in a span. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ThreadTotals {
    /// Time, in nanoseconds.
    pub wall_ns: u64,
    /// Processor time, in nanoseconds. 0 where the system does not tell it for a thread (all but Linux).
    pub cpu_ns: u64,
    /// Page faults that needed no disk. 0 as above.
    pub minor_faults: u64,
    /// Requests that the arena served.
    pub requests: u64,
    /// Bytes of them.
    pub allocated_bytes: u64,
}

impl AddAssign<&Self> for ThreadTotals {
    fn add_assign(&mut self, more: &Self) {
        add!(self, more, wall_ns cpu_ns minor_faults requests allocated_bytes);
    }
}

/// The arena's memory at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Level {
    /// Live blocks and page runs.
    pub live_bytes: u64,
    /// Resident memory of the arena.
    pub resident_bytes: u64,
    /// Free and resident: retained for the next proof, cached by threads, or lost to rounding.
    pub retained_bytes: u64,
}

/// The process's counters at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) at_ns: u64,
    pub(crate) level: Level,
    pub(crate) stats: Stats,
    usage: Usage,
    is_serving: bool,
}

impl Reading {
    pub(crate) fn now(began: Instant) -> Self {
        let stats = zk_alloc::stats();
        Self {
            at_ns: began.elapsed().as_nanos() as u64,
            level: Level {
                live_bytes: stats.live_bytes as u64,
                resident_bytes: stats.resident_bytes as u64,
                retained_bytes: stats.retained_bytes() as u64,
            },
            usage: Usage::now(false),
            is_serving: zk_alloc::is_serving(),
            stats,
        }
    }

    /// The changes since `before`, between which live bytes had this peak.
    pub(crate) fn since(&self, before: &Self, peak_live_bytes: u64) -> Totals {
        let (now, then) = (&self.stats, &before.stats);
        let is_served = self.is_serving || before.is_serving || now.arena_allocations > then.arena_allocations;
        Totals {
            wall_ns: self.at_ns - before.at_ns,
            // The kernel's sum over running threads may go back by a little.
            cpu_ns: self.usage.cpu_ns.saturating_sub(before.usage.cpu_ns),
            minor_faults: self.usage.minor_faults.saturating_sub(before.usage.minor_faults),
            is_served,
            // The sums over threads are not taken at one instant.
            requests: now.arena_allocations.saturating_sub(then.arena_allocations),
            allocated_bytes: now.arena_bytes.saturating_sub(then.arena_bytes),
            fresh_bytes: now.fresh_bytes.saturating_sub(then.fresh_bytes),
            // The program may have reset it.
            overflow_bytes: now.overflow_bytes.saturating_sub(then.overflow_bytes),
            peak_live_bytes: if is_served { peak_live_bytes } else { 0 },
        }
    }
}

/// A thread's counters at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadReading {
    at_ns: u64,
    usage: Usage,
    stats: ThreadStats,
}

impl ThreadReading {
    /// Of the calling thread.
    pub(crate) fn at(at_ns: u64) -> Self {
        Self { at_ns, usage: Usage::now(true), stats: zk_alloc::thread_stats() }
    }

    pub(crate) fn since(&self, before: &Self) -> ThreadTotals {
        ThreadTotals {
            wall_ns: self.at_ns - before.at_ns,
            cpu_ns: self.usage.cpu_ns.saturating_sub(before.usage.cpu_ns),
            minor_faults: self.usage.minor_faults.saturating_sub(before.usage.minor_faults),
            requests: self.stats.allocations.saturating_sub(before.stats.allocations),
            allocated_bytes: self.stats.bytes.saturating_sub(before.stats.bytes),
        }
    }
}

/// The kernel's counters so far. 0 where it does not tell them.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    cpu_ns: u64,
    minor_faults: u64,
}

impl Usage {
    /// Of all threads of the process, or of the calling thread alone.
    fn now(_of_thread: bool) -> Self {
        #[cfg(unix)]
        {
            use nix::sys::resource::{UsageWho, getrusage};
            use nix::sys::time::TimeValLike;
            #[cfg(target_os = "linux")]
            let who = if _of_thread { UsageWho::RUSAGE_THREAD } else { UsageWho::RUSAGE_SELF };
            #[cfg(not(target_os = "linux"))]
            let who = UsageWho::RUSAGE_SELF;
            if let (Ok(usage), true) = (getrusage(who), cfg!(target_os = "linux") || !_of_thread) {
                let cpu_ns = usage.user_time().num_nanoseconds() + usage.system_time().num_nanoseconds();
                return Self { cpu_ns: cpu_ns as u64, minor_faults: usage.minor_page_faults() as u64 };
            }
        }
        Self::default()
    }
}

/// Bytes of a page of memory.
pub(crate) fn page_bytes() -> u64 {
    #[cfg(unix)]
    if let Ok(Some(bytes)) = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE) {
        return bytes as u64;
    }
    4096
}
