//! The statistics that a program can read: totals since the process started, reports of phases, the parts of resident memory, and metrics.

use std::fmt;
use std::time::Duration;

use crate::arena::{self, Zone};
use crate::config::{HugePagesOutcome, SettingsInForce};
use crate::{accounts, pinned};

/// The allocator's counters since the process started. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// The number of allocations that the arena served: blocks of slabs and page runs.
    pub arena_allocations: u64,
    /// Bytes of these allocations: the block size for a block, and the requested size for a run.
    pub arena_bytes: u64,
    /// The number of allocations served from slabs (up to 32 KiB).
    pub slab_allocations: u64,
    /// Bytes of these allocations since the process started, rounded up to their size classes. For the bytes that slabs occupy now, see
    /// [`slabs_in_use_bytes`](Self::slabs_in_use_bytes).
    pub slab_bytes: u64,
    /// The number of larger allocations, served as page runs.
    pub run_allocations: u64,
    /// Bytes requested by these allocations.
    pub run_bytes: u64,
    /// Bytes handed out for the first time, or for the first time since they were purged. Each of their pages costs a page fault. All other
    /// bytes handed out were resident already.
    pub fresh_bytes: u64,
    /// The number of requests meant for the arena that the backing allocator served.
    pub overflow_allocations: u64,
    /// Bytes of these requests.
    pub overflow_bytes: u64,
    /// The number of system calls that the arena made.
    pub system_calls: u64,
    /// The number of the arena's system calls that the kernel refused.
    pub refusals: u64,
    /// The number of phases begun.
    pub phases: u64,
    /// Bytes of live blocks and page runs, including rounding.
    pub live_bytes: usize,
    /// The peak of the live bytes. The arena updates it when a thread fetches blocks or claims a run, not when a thread takes memory from
    /// its cache. Blocks in thread caches count as live here.
    pub peak_live_bytes: usize,
    /// The number of slabs in use now.
    pub slabs: usize,
    /// Bytes of these slabs, whether resident or not.
    pub slabs_in_use_bytes: usize,
    /// Bytes of the live blocks in these slabs, rounded up to their size classes. The rest of these slabs is free for the next requests.
    pub slab_live_bytes: usize,
    /// Bytes of the arena that are handed out or retained: resident, or resident as soon as a thread touches them. Memory that was handed
    /// out and never touched counts too. [`resident_parts`](crate::resident_parts) asks the kernel how much of it really is resident.
    pub resident_bytes: usize,
    /// Bytes of the [pinned range](crate::pinned); 0 while there is none. The whole range counts towards
    /// [`resident_bytes`](Self::resident_bytes) and [`peak_live_bytes`](Self::peak_live_bytes), but only its bytes in use count towards
    /// [`live_bytes`](Self::live_bytes).
    pub pinned_bytes: usize,
    /// Bytes of the pinned range that are in use now.
    pub pinned_in_use_bytes: usize,
    /// The peak of the pinned range's bytes in use. If it is near [`pinned_bytes`](Self::pinned_bytes), a larger range would serve more
    /// requests.
    pub pinned_peak_bytes: usize,
    /// Bytes that were purged: the arena returned their pages to the kernel.
    pub purged_bytes: u64,
    /// The number of purges made because a control group of the process came near its memory limit.
    pub pressure_purges: u64,
    /// Bytes of address space that the arena may use; 0 while there is no arena. On Linux, the arena maps nothing there before it
    /// needs it.
    pub address_space_bytes: usize,
    /// The outcome of the huge-page setting on this host; `None` while there is no arena.
    pub huge_pages: Option<HugePagesOutcome>,
    /// The settings in force, and where each came from; `None` while there is no arena.
    pub settings: Option<SettingsInForce>,
}

impl Stats {
    /// Returns the bytes that are free and resident: retained for the next proof, cached by threads, or lost to rounding. A leak shows in
    /// [`live_bytes`](Self::live_bytes) instead, which then grows from proof to proof.
    ///
    /// ```
    /// # #[global_allocator]
    /// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
    /// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
    /// assert!(zk_alloc::stats().retained_bytes() >= 1 << 20);
    /// ```
    #[must_use]
    pub fn retained_bytes(&self) -> usize {
        self.resident_bytes.saturating_sub(self.live_bytes)
    }

    /// Returns the share of the bytes served that were already resident, from 0 to 1; `None` before the arena served any.
    ///
    /// ```
    /// # #[global_allocator]
    /// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
    /// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
    /// zk_alloc::phase(|| drop(vec![2u8; 1 << 20])); // in the pages of the first
    /// assert!(zk_alloc::stats().hit_rate().is_some_and(|rate| rate > 0.4));
    /// ```
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        hit_rate(self.arena_bytes, self.fresh_bytes)
    }
}

/// Computes [`Stats::hit_rate`] for any period.
pub(crate) fn hit_rate(served_bytes: u64, fresh_bytes: u64) -> Option<f64> {
    // Fresh bytes are counted in whole pages, so they may exceed the bytes served.
    (served_bytes > 0).then(|| 1.0 - fresh_bytes.min(served_bytes) as f64 / served_bytes as f64)
}

/// Returns the counters so far. Takes a few microseconds, locks nothing and allocates nothing. An allocation that another thread makes at
/// the same time may be only partly counted.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// let before = zk_alloc::stats();
/// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// let after = zk_alloc::stats();
/// assert_eq!(after.phases, before.phases + 1);
/// assert!(after.arena_bytes - before.arena_bytes >= 1 << 20);
/// println!("{after}");
/// ```
#[must_use]
pub fn stats() -> Stats {
    let (overflow_allocations, overflow_bytes) = accounts::overflow_stats();
    let mut stats = Stats {
        overflow_allocations: overflow_allocations as u64,
        overflow_bytes: overflow_bytes as u64,
        phases: accounts::phases(),
        live_bytes: live_bytes(),
        peak_live_bytes: accounts::peak_live_bytes(),
        ..Stats::default()
    };
    let Some(arena) = arena::get() else { return stats };
    let sums = arena::sums();
    let (blocks, runs) = (sums.blocks, sums.runs);
    (stats.slab_allocations, stats.slab_bytes) = (blocks.allocations, blocks.bytes);
    (stats.run_allocations, stats.run_bytes) = (runs.allocations, runs.bytes);
    (stats.slabs, stats.slabs_in_use_bytes) = arena.size_classes.slabs.in_use();
    stats.slab_live_bytes = arena.size_classes.live_bytes();
    stats.address_space_bytes = arena.region.len();
    [stats.pinned_bytes, stats.pinned_in_use_bytes, stats.pinned_peak_bytes] = pinned::sizes();
    (stats.resident_bytes, stats.purged_bytes) = (accounts::resident_bytes(), accounts::purged_bytes());
    stats.pressure_purges = arena::purge::pressure_purges();
    stats.huge_pages = Some(arena.config().huge_pages);
    stats.settings = Some(arena.config().settings);
    accounts::add_to(&mut stats);
    stats.arena_allocations = stats.slab_allocations + stats.run_allocations;
    stats.arena_bytes = stats.slab_bytes + stats.run_bytes;
    stats
}

/// Returns the peak of the live bytes since the last call, or since the process started, and resets it. The result is at least the bytes
/// that are live now. [`Stats::peak_live_bytes`] says what counts as live. No other counter changes.
///
/// The process has only one such peak. Each call resets it for all callers, so only one layer, profiler or loop should call this.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// let _phase = zk_alloc::PhaseGuard::new();
/// zk_alloc::take_peak_live_bytes();
/// drop(vec![1u8; 4 << 20]);
/// assert!(zk_alloc::take_peak_live_bytes() >= 4 << 20);
/// assert!(zk_alloc::take_peak_live_bytes() < 4 << 20); // the vector was freed before
/// ```
pub fn take_peak_live_bytes() -> usize {
    accounts::take_peak_live_bytes(live_bytes())
}

/// The request counters of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ThreadStats {
    /// The number of allocations that the arena served.
    pub allocations: u64,
    /// Their bytes, as [`Stats::arena_bytes`] counts them.
    pub bytes: u64,
}

/// Returns the calling thread's part of [`stats`]: the requests that it has made since the thread started. Takes a few nanoseconds. In the
/// destructors of a thread's thread-locals, most of its requests may be missing from the result.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// let before = zk_alloc::thread_stats();
/// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// assert!(zk_alloc::thread_stats().bytes - before.bytes >= 1 << 20);
/// ```
#[must_use]
pub fn thread_stats() -> ThreadStats {
    let totals = arena::thread_totals();
    ThreadStats { allocations: totals.allocations, bytes: totals.bytes }
}

/// Returns the bytes of live blocks and page runs.
pub(crate) fn live_bytes() -> usize {
    let [pinned, in_use, _] = pinned::sizes();
    accounts::used_bytes().saturating_sub(arena::cached_bytes() + pinned.saturating_sub(in_use))
}

/// A number of bytes, displayed in MiB.
pub(crate) struct Mib(pub(crate) u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, path, allocations, bytes| {
            writeln!(f, "{path:<10} {allocations:>10} allocations {}", Mib(bytes))
        };
        line(f, "slabs", self.slab_allocations, self.slab_bytes)?;
        line(f, "page runs", self.run_allocations, self.run_bytes)?;
        line(f, "fallback", self.overflow_allocations, self.overflow_bytes)?;
        let mib = |bytes: usize| Mib(bytes as u64);
        let (live, peak, slabs) = (mib(self.live_bytes), mib(self.peak_live_bytes), mib(self.slabs_in_use_bytes));
        write!(f, "live now {live}, at most {peak}; {} slabs of {slabs} in all, ", self.slabs)?;
        writeln!(f, "{} of them alive", mib(self.slab_live_bytes))?;
        let (resident, space) = (mib(self.resident_bytes), mib(self.address_space_bytes));
        write!(f, "handed out or retained {resident} of {space} of address space; ")?;
        writeln!(f, "{} were fresh, {} purged", Mib(self.fresh_bytes), Mib(self.purged_bytes))?;
        if self.pinned_bytes > 0 {
            let (in_use, peak) = (mib(self.pinned_in_use_bytes), mib(self.pinned_peak_bytes));
            writeln!(f, "pinned {} of them, {in_use} in use, at most {peak}", mib(self.pinned_bytes))?;
        }
        write!(f, "{} phases, {} system calls, {} of them refused", self.phases, self.system_calls, self.refusals)?;
        self.huge_pages.map_or(Ok(()), |huge_pages| write!(f, "; huge pages: {huge_pages}"))?;
        self.settings.map_or(Ok(()), |settings| write!(f, "\nsettings: {settings}"))
    }
}

/// The result of [`Phase::report`](crate::Phase::report): the changes in the process's counters since the phase began. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PhaseReport {
    /// Time since the phase began.
    pub wall: Duration,
    /// The number of allocations served from slabs (up to 32 KiB).
    pub slab_allocations: u64,
    /// Bytes of these allocations, rounded up to their size classes.
    pub slab_bytes: u64,
    /// The number of larger allocations, served as page runs.
    pub run_allocations: u64,
    /// Bytes requested by these allocations.
    pub run_bytes: u64,
    /// The number of requests meant for the arena that the backing allocator served.
    pub overflow_allocations: u64,
    /// Bytes of these requests.
    pub overflow_bytes: u64,
    /// Bytes handed out that were not resident before.
    pub fresh_bytes: u64,
    /// Bytes handed out that were resident before.
    pub reused_bytes: u64,
    /// The peak of the live bytes since a phase last began while no other was open. [`Stats::peak_live_bytes`] says what counts as live.
    pub peak_live_bytes: usize,
    /// The number of minor page faults of the process (those without a disk read).
    pub minor_faults: u64,
    /// The number of system calls that the arena made.
    pub system_calls: u64,
    /// The growth of [`Stats::live_bytes`] since the phase began. At the end of the phase, it is the number of bytes that outlive it.
    pub escaped_bytes: usize,
}

impl PhaseReport {
    /// Returns the share of the phase's bytes that were resident already, from 0 to 1; `None` if the arena served none.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        hit_rate(self.slab_bytes + self.run_bytes, self.fresh_bytes)
    }
}

impl fmt::Display for PhaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wall_s, minor_faults, calls) = (self.wall.as_secs_f64(), self.minor_faults, self.system_calls);
        writeln!(f, "phase of {wall_s:.3} s, {minor_faults} minor faults, {calls} system calls")?;
        writeln!(f, "  slabs      {:>9} allocations {}", self.slab_allocations, Mib(self.slab_bytes))?;
        writeln!(f, "  page runs  {:>9} allocations {}", self.run_allocations, Mib(self.run_bytes))?;
        writeln!(f, "  fallback   {:>9} allocations {}", self.overflow_allocations, Mib(self.overflow_bytes))?;
        let (reused, fresh) = (Mib(self.reused_bytes), Mib(self.fresh_bytes));
        writeln!(f, "  reused {reused}, fresh {fresh}, at most {} live at once", Mib(self.peak_live_bytes as u64))?;
        write!(f, "  outliving the phase: {}", Mib(self.escaped_bytes as u64))
    }
}

/// The resident memory of the arena, broken down by use. Sizes are in bytes. [`resident_bytes`](Self::resident_bytes) is the sum of all
/// parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ResidentParts {
    /// Live blocks of slabs, rounded up to their size classes.
    pub live_block_bytes: usize,
    /// Live page runs, rounded up to whole pages.
    pub live_run_bytes: usize,
    /// Free blocks and page runs in thread caches.
    pub cached_bytes: usize,
    /// Free memory in slabs: free blocks, and the space between blocks.
    pub free_slab_bytes: usize,
    /// Free page runs, retained for the next requests.
    pub free_run_bytes: usize,
    /// Memory that was prefaulted and has not been handed out since.
    pub prefaulted_bytes: usize,
    /// The resident bytes of all these parts as the kernel counts them; `None` if it does not report them. The kernel counts fewer than the
    /// sum if memory was handed out but not touched, and more if huge pages extend beyond the parts.
    pub kernel_bytes: Option<usize>,
}

impl ResidentParts {
    /// Returns the sum of all parts, as in [`Stats::resident_bytes`](crate::Stats::resident_bytes).
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns each part with its name, in the order of the fields.
    fn parts(&self) -> [(&'static str, usize); 6] {
        [
            ("live blocks", self.live_block_bytes),
            ("live page runs", self.live_run_bytes),
            ("thread caches", self.cached_bytes),
            ("free in slabs", self.free_slab_bytes),
            ("free page runs", self.free_run_bytes),
            ("prefaulted", self.prefaulted_bytes),
        ]
    }
}

/// Returns the parts of the arena's resident memory now; all 0 while there is no arena. This reads all slabs and asks the kernel about each
/// page (mincore(2)), which takes milliseconds for gigabytes. Call it to explain memory use, and call [`stats`](crate::stats()) to monitor
/// it. While other threads allocate, the parts are not a consistent snapshot.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator::resident();
/// let trace = vec![1u8; 4 << 20];
/// println!("{}", zk_alloc::resident_parts());
/// assert!(zk_alloc::resident_parts().live_run_bytes >= trace.len());
/// ```
#[must_use]
pub fn resident_parts() -> ResidentParts {
    let Some(arena) = arena::get() else { return ResidentParts::default() };
    let (zones, size_classes) = (arena.region.zones(), &arena.size_classes);
    let live_block_bytes = size_classes.live_bytes();
    let cached_run_bytes = arena::cached_run_bytes();
    let cached_block_bytes = arena::cached_bytes().saturating_sub(cached_run_bytes);
    let live_run_bytes = live_bytes().saturating_sub(live_block_bytes);
    let slab_bytes = size_classes.slabs.resident_bytes(arena.slab_zone());
    let prefaulted_bytes: usize = zones.iter().map(Zone::prefaulted_bytes).sum();
    let elsewhere = slab_bytes + live_run_bytes + cached_run_bytes + prefaulted_bytes;
    ResidentParts {
        live_block_bytes,
        live_run_bytes,
        cached_bytes: cached_block_bytes + cached_run_bytes,
        free_slab_bytes: slab_bytes.saturating_sub(live_block_bytes + cached_block_bytes),
        free_run_bytes: accounts::resident_bytes().saturating_sub(elsewhere),
        prefaulted_bytes,
        kernel_bytes: zones.iter().map(Zone::kernel_bytes).sum(),
    }
}

impl fmt::Display for ResidentParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in self.parts() {
            writeln!(f, "{name:<16} {}", Mib(bytes as u64))?;
        }
        write!(f, "{:<16} {}", "resident", Mib(self.resident_bytes() as u64))?;
        self.kernel_bytes.map_or(Ok(()), |bytes| write!(f, "; {} by the kernel's account", Mib(bytes as u64)))
    }
}

/// Sets the allocator's metrics to the values of [`stats`](crate::stats()), through the facade crate [metrics](https://docs.rs/metrics).
/// Call it after each proof, or every few seconds. It also registers their descriptions, so no other call is needed. It does nothing if the
/// program has no recorder.
///
/// | Metric | Kind | Meaning |
/// |---|---|---|
/// | `zk_alloc_resident_bytes` | gauge | handed out or retained: the arena's part of RSS, if all of it was touched |
/// | `zk_alloc_live_bytes` | gauge | in use now: a leak grows from proof to proof |
/// | `zk_alloc_retained_bytes` | gauge | free and resident, for the next proof |
/// | `zk_alloc_peak_live_bytes` | gauge | the most bytes that were in use |
/// | `zk_alloc_purged_bytes_total` | counter | returned to the kernel |
/// | `zk_alloc_pressure_purges_total` | counter | purges because a control group came near its memory limit |
/// | `zk_alloc_fresh_bytes_total` | counter | handed out without being resident: each page costs a page fault |
/// | `zk_alloc_overflow_bytes_total` | counter | requests meant for the arena that the backing allocator served |
/// | `zk_alloc_refusals_total` | counter | system calls that the kernel refused |
/// | `zk_alloc_phases_total` | counter | phases begun |
/// | `zk_alloc_process_page_faults_total` | counter | page faults of the whole process that needed no disk (0 where unknown) |
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// let proof = zk_alloc::phase(|| vec![1u8; 1 << 20]);
/// zk_alloc::record_metrics();
/// # drop(proof);
/// ```
#[cfg(feature = "metrics")]
pub fn record_metrics() {
    use crate::os;
    use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

    let stats = stats();
    let gauges = [
        (
            "zk_alloc_resident_bytes",
            stats.resident_bytes,
            "Handed out or retained by the arena: resident, or resident once touched",
        ),
        ("zk_alloc_live_bytes", stats.live_bytes, "In use now: a leak grows from proof to proof"),
        ("zk_alloc_retained_bytes", stats.retained_bytes(), "Free and resident, for the next proof"),
        ("zk_alloc_peak_live_bytes", stats.peak_live_bytes, "The most that was in use"),
    ];
    for (name, bytes, meaning) in gauges {
        describe_gauge!(name, Unit::Bytes, meaning);
        gauge!(name).set(bytes as f64);
    }
    let counters = [
        ("zk_alloc_purged_bytes_total", Unit::Bytes, stats.purged_bytes, "Returned to the kernel"),
        ("zk_alloc_pressure_purges_total", Unit::Count, stats.pressure_purges, "Purges under memory pressure"),
        ("zk_alloc_fresh_bytes_total", Unit::Bytes, stats.fresh_bytes, "Handed out without being resident"),
        ("zk_alloc_overflow_bytes_total", Unit::Bytes, stats.overflow_bytes, "Served by the backing allocator instead"),
        ("zk_alloc_refusals_total", Unit::Count, stats.refusals, "System calls that the kernel refused"),
        ("zk_alloc_phases_total", Unit::Count, stats.phases, "Phases begun"),
        ("zk_alloc_process_page_faults_total", Unit::Count, os::minor_faults(), "Page faults that needed no disk"),
    ];
    for (name, unit, value, meaning) in counters {
        describe_counter!(name, unit, meaning);
        counter!(name).absolute(value);
    }
}
