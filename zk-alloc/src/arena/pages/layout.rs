//! The layout of the arena: which part serves a request, and the parameters of the zones. This file is pure arithmetic: its results affect
//! speed and memory use, but never safety.
//!
//! There are several zones because a proof's huge buffer leaves a huge gap when it is freed. A small allocation in that gap may outlive the
//! proof. The next huge run then goes elsewhere, and the process pays for both places (docs/design.md).

use std::ops::Range;

use crate::classes::{self, Class};
use crate::config::{Config, HugePagesOutcome};
use crate::os::{self, HUGE_PAGE_BYTES};
use crate::{accounts, tuning};

/// The path of a request through the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// A block of a size class, from the thread's cache or a slab.
    Block(Class),
    /// A run of pages, in the zone of its kind. This keeps small allocations out of the free runs that huge runs leave.
    Run(RunKind),
}

/// The kinds of runs. Each kind has a zone of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RunKind {
    /// Runs below [`tuning::huge_run_bytes`].
    Mid,
    /// Runs of [`tuning::huge_run_bytes`] and more.
    Huge,
}

/// The kind of runs that share their zone with the slabs. So slabs and runs can reuse each other's memory.
pub(crate) const SLABS: RunKind = RunKind::Mid;
/// The kind of runs that thread caches keep. A cached huge run would be lost to the other threads.
pub(crate) const CACHED: RunKind = RunKind::Mid;

/// Returns the path of a request that the arena serves.
#[inline(always)]
pub(crate) fn path(size: usize, align: usize) -> Path {
    if size <= classes::MAX_BYTES && align <= classes::MAX_ALIGN {
        Path::Block(Class::of(size, align))
    } else {
        Path::Run(run_kind(size))
    }
}

/// Returns the kind of the run that serves a request.
pub(crate) fn run_kind(size: usize) -> RunKind {
    if size >= tuning::huge_run_bytes() { RunKind::Huge } else { RunKind::Mid }
}

/// Returns the length in bytes of the shortest run that may stay in the zone of this kind after it shrinks.
pub(crate) fn min_bytes(runs: RunKind) -> usize {
    if runs == RunKind::Huge { tuning::crosses_min_bytes() } else { classes::MAX_BYTES / 2 }
}

/// Whether a run of this many bytes counts as long.
#[inline(always)]
pub(crate) fn is_long_run(bytes: usize) -> bool {
    bytes >= tuning::long_run_bytes()
}

// The parameters of the zones: page sizes, huge pages, prefaulting and clearing.

/// The advice on huge pages that the arena gives the kernel. It follows from the [outcome](HugePagesOutcome) of the setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugeAdvice {
    /// `MADV_HUGEPAGE`.
    Ask,
    /// `MADV_NOHUGEPAGE`.
    Forbid,
    /// None: the host's setting applies.
    Leave,
}

impl HugeAdvice {
    pub(crate) fn of(outcome: HugePagesOutcome) -> Self {
        match outcome {
            HugePagesOutcome::Auto | HugePagesOutcome::Always => Self::Ask,
            HugePagesOutcome::Avoided | HugePagesOutcome::Never => Self::Forbid,
            HugePagesOutcome::Unavailable => Self::Leave,
        }
    }
}

/// The parameters of a zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZoneSpec {
    /// The page size in bytes: a power of two, at least the running kernel's page size, and at most a huge page. A page is the unit of a
    /// zone's bitmaps. It is small compared to the zone's smallest run, so little is wasted, and resident memory is counted exactly. It is
    /// large enough that the bits of the longest runs fill only a few hundred words.
    pub(crate) page_bytes: usize,
    pub(crate) huge: HugeAdvice,
    /// The length of the [small-object region](crate::arena::pages::layout) during the first phase, in bytes.
    pub(crate) small_region_bytes: usize,
    /// The length in bytes of the first part of a zone, which stays in small pages although the rest uses huge pages, so that small
    /// processes do not pay for whole huge pages.
    pub(crate) small_pages_bytes: usize,
    /// Dirty memory of at least this many bytes is zeroed by purging it. The kernel then clears each page on the thread that first touches
    /// it, instead of the requesting thread clearing them all.
    pub(crate) lazy_zero_bytes: usize,
    /// A run that moves to grow begins at a multiple of this factor times its length, so it can grow further in place. With a factor of 1,
    /// no addresses are left free for that.
    pub(crate) growth_room: usize,
    /// Whether thread caches keep the zone's runs. This is set for only one zone, so the zone of a cached run is known.
    pub(crate) is_cached: bool,
}

/// Returns the parameters of the zones, in the order of [`RunKind`].
pub(crate) fn zone_specs(config: &Config) -> [ZoneSpec; 2] {
    let huge = HugeAdvice::of(config.huge_pages);
    // In small pages, a fault for each page costs more than clearing the pages here.
    let lazy_zero_bytes = if huge == HugeAdvice::Ask { config.settings.lazy_zero_bytes.value } else { usize::MAX };
    [RunKind::Mid, RunKind::Huge].map(|runs| {
        let small_region_bytes = if runs == SLABS { first_bytes(config.threads) } else { 0 };
        let small_pages_bytes = match runs {
            _ if config.huge_pages == HugePagesOutcome::Always => 0,
            RunKind::Mid => small_region_bytes + tuning::small_pages_bytes(),
            RunKind::Huge => 0,
        };
        ZoneSpec {
            page_bytes: os::page_bytes().max(if runs == RunKind::Huge { 256 << 10 } else { 4 << 10 }),
            huge,
            small_region_bytes,
            small_pages_bytes,
            lazy_zero_bytes,
            growth_room: if runs == RunKind::Huge { tuning::huge_run_growth_room() } else { 1 },
            is_cached: runs == CACHED && tuning::caches_runs() != 0,
        }
    })
}

impl ZoneSpec {
    /// Returns the alignment of a run: at least the requested one. A run that fills a huge page is aligned to one if the arena asks for
    /// huge pages. With small pages, this alignment would only leave gaps.
    pub(crate) fn run_align(&self, size: usize, align: usize) -> usize {
        if self.huge == HugeAdvice::Ask && size >= HUGE_PAGE_BYTES { align.max(HUGE_PAGE_BYTES) } else { align }
    }
}

// The small-object region: the start of the mid zone, for slabs and short runs. Long runs stay out of it, so small allocations that survive
// a proof do not split the free memory that the next proof's long runs need.

/// What a run is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunUse {
    /// A slab. Its blocks may live long, so it gets the lowest address.
    Slab,
    /// A page run shorter than [`tuning::long_run_bytes`].
    ShortRun,
    /// A page run of [`tuning::long_run_bytes`] or more.
    LongRun,
}

impl RunUse {
    pub(crate) fn of_run(bytes: usize) -> Self {
        if is_long_run(bytes) { Self::LongRun } else { Self::ShortRun }
    }
}

/// The length in bytes of the first part of a zone, the only part that may contain slabs. The limit keeps the tables of slabs small.
pub(crate) const SLAB_SPAN_BYTES: usize = 64 << 30;

/// Returns the part of a zone that long runs always leave to slabs and short runs: the last quarter of the range of slabs. The zone is
/// `zone_bytes` long; `first_bytes` is the length of its small-object region, or 0 if it has no slabs.
pub(crate) fn kept_from_long_runs(first_bytes: usize, zone_bytes: usize) -> Range<usize> {
    let end = zone_bytes.min(SLAB_SPAN_BYTES);
    if first_bytes == 0 { end..end } else { end / 4 * 3..end }
}

/// Returns the length of the small-object region during the first phase, in bytes.
pub(crate) fn first_bytes(threads: usize) -> usize {
    (tuning::small_region_bytes() * threads).min(tuning::max_small_region_bytes())
}

/// Returns the length in bytes of the small-object region that a run of this use must stay out of, or 0 if the run may be there. The region
/// is `first_bytes` long until the first phase has shown the peak. Then it may shrink, but it never grows: a larger region could overlap
/// long runs that are already there.
pub(crate) fn kept_from(run_use: RunUse, first_bytes: usize) -> usize {
    if run_use == RunUse::LongRun { after(accounts::former_peak_live_bytes(), first_bytes) } else { 0 }
}

fn after(former_peak: Option<usize>, first_bytes: usize) -> usize {
    former_peak.map_or(first_bytes, |peak| first_bytes.min(peak / tuning::small_region_part().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_small_object_region_shrinks_to_a_part_of_the_first_peak() {
        assert_eq!([1, 2, 64].map(first_bytes), [3 * MIB, 6 * MIB, 24 * MIB]);
        assert_eq!(after(None, 6 * MIB), 6 * MIB);
        assert_eq!(after(Some(400 * MIB), 6 * MIB), 6 * MIB);
        assert_eq!(after(Some(40 * MIB), 6 * MIB), 5 * MIB);
        assert_eq!(after(Some(40 * MIB), 0), 0);
        assert_eq!([RunUse::Slab, RunUse::ShortRun].map(|run_use| kept_from(run_use, 6 * MIB)), [0, 0]);
    }

    #[test]
    fn long_runs_leave_a_quarter_of_their_range_to_slabs() {
        assert_eq!((RunUse::of_run(MIB), RunUse::of_run(64 << 10)), (RunUse::LongRun, RunUse::ShortRun));
        assert_eq!(kept_from_long_runs(6 * MIB, 64 * MIB), 48 * MIB..64 * MIB);
        assert_eq!(kept_from_long_runs(6 * MIB, 1 << 40), 48 << 30..64 << 30);
        assert!(kept_from_long_runs(0, 64 * MIB).is_empty(), "other zones have no slabs");
    }

    #[test]
    fn sizes_at_a_limit_take_the_path_that_the_constant_says() {
        let is_block = |size, align| matches!(path(size, align), Path::Block(_));
        assert!(is_block(1, 1) && is_block(classes::MAX_BYTES, classes::MAX_ALIGN));
        assert_eq!(path(classes::MAX_BYTES + 1, classes::MAX_ALIGN), Path::Run(RunKind::Mid));
        assert_eq!(path(64, classes::MAX_ALIGN * 2), Path::Run(RunKind::Mid));
        assert_eq!(path(tuning::huge_run_bytes() - 1, 1), Path::Run(RunKind::Mid));
        assert_eq!(path(tuning::huge_run_bytes(), 1), Path::Run(RunKind::Huge));
        assert_eq!(path(isize::MAX as usize, 1), Path::Run(RunKind::Huge));
    }
}
