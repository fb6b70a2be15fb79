//! The report on a phase.

use std::fmt;
use std::time::Duration;

use crate::stats::{self, Mib, Stats};

/// The result of [`Phase::report`](crate::Phase::report): the changes of the process's counters since the phase began. Sizes are
/// in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PhaseReport {
    /// Time since the phase began.
    pub wall: Duration,
    /// Allocations served with blocks of slabs (up to 32 KiB).
    pub slab_allocations: u64,
    /// Bytes of these blocks: requests rounded up to their size classes.
    pub slab_bytes: u64,
    /// Allocations served as page runs (larger ones).
    pub run_allocations: u64,
    /// Bytes requested in them.
    pub run_bytes: u64,
    /// Requests meant for the arena that the backing allocator served.
    pub overflow_allocations: u64,
    /// Bytes requested in them.
    pub overflow_bytes: u64,
    /// Bytes handed out that were not resident before.
    pub fresh_bytes: u64,
    /// Bytes handed out that were resident before.
    pub reused_bytes: u64,
    /// The peak of the bytes of blocks and page runs in use since the first of the open phases began, as
    /// [`Stats::peak_live_bytes`] counts them.
    pub peak_live_bytes: usize,
    /// Page faults of the process that needed no disk.
    pub minor_faults: u64,
    /// System calls of the arena.
    pub system_calls: u64,
    /// The growth of the live size since the phase began: bytes of blocks and page runs. At the end of a phase, these bytes
    /// outlive it.
    pub escaped_bytes: usize,
}

impl PhaseReport {
    pub(crate) fn between(
        before: &Stats,
        after: &Stats,
        wall: Duration,
        peak_live_bytes: usize,
        minor_faults: u64,
    ) -> Self {
        let fresh_bytes = after.fresh_bytes - before.fresh_bytes;
        Self {
            wall,
            slab_allocations: after.slab_allocations - before.slab_allocations,
            slab_bytes: after.slab_bytes - before.slab_bytes,
            run_allocations: after.run_allocations - before.run_allocations,
            run_bytes: after.run_bytes - before.run_bytes,
            // The user may have reset these two since the phase began.
            overflow_allocations: after.overflow_allocations.saturating_sub(before.overflow_allocations),
            overflow_bytes: after.overflow_bytes.saturating_sub(before.overflow_bytes),
            fresh_bytes,
            reused_bytes: (after.arena_bytes - before.arena_bytes).saturating_sub(fresh_bytes),
            peak_live_bytes,
            minor_faults,
            system_calls: after.system_calls - before.system_calls,
            escaped_bytes: after.live_bytes.saturating_sub(before.live_bytes),
        }
    }
}

impl PhaseReport {
    /// The share of the phase's bytes that were resident already, from 0 to 1; `None` if the arena served none.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        stats::hit_rate(self.slab_bytes + self.run_bytes, self.fresh_bytes)
    }
}

#[cfg(feature = "tracing")]
impl PhaseReport {
    /// Makes an event of a phase that ended.
    pub(crate) fn trace(&self) {
        tracing::info!(
            target: "zk_alloc",
            wall_s = self.wall.as_secs_f64(),
            peak_live_bytes = self.peak_live_bytes,
            reused_bytes = self.reused_bytes,
            fresh_bytes = self.fresh_bytes,
            overflow_bytes = self.overflow_bytes,
            escaped_bytes = self.escaped_bytes,
            minor_faults = self.minor_faults,
            "phase ended"
        );
    }
}

impl fmt::Display for PhaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "phase of {:.3} s, {} minor faults, {} system calls",
            self.wall.as_secs_f64(),
            self.minor_faults,
            self.system_calls
        )?;
        writeln!(f, "  slabs      {:>9} allocations {}", self.slab_allocations, Mib(self.slab_bytes))?;
        writeln!(f, "  page runs  {:>9} allocations {}", self.run_allocations, Mib(self.run_bytes))?;
        writeln!(f, "  overflow   {:>9} allocations {}", self.overflow_allocations, Mib(self.overflow_bytes))?;
        writeln!(
            f,
            "  reused {}, fresh {}, at most {} live at once",
            Mib(self.reused_bytes),
            Mib(self.fresh_bytes),
            Mib(self.peak_live_bytes as u64)
        )?;
        write!(f, "  escaped {}", Mib(self.escaped_bytes as u64))
    }
}
