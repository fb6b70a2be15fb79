//! The parameters of the zones: page sizes, huge pages, prefaulting and clearing.
//!
//! There are zones because the one huge buffer of a proof leaves a huge gap behind. A small allocation in that gap may outlive the proof.
//! The next huge run then goes elsewhere, and the process pays for two (docs/design.md).

use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::config::{Config, HugePagesOutcome};
use crate::os::{self, HUGE_PAGE_BYTES};
use crate::route::{self, RunKind};
use crate::{counters, tuning};

/// The advice on huge pages that the kernel gets. It follows from the [outcome](HugePagesOutcome) of the setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugeAdvice {
    /// `MADV_HUGEPAGE`.
    Ask,
    /// `MADV_NOHUGEPAGE`.
    Forbid,
    /// The host's setting as it is.
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
    /// A power of two, at most a huge page, and at least a page of the running kernel.
    pub(crate) page_bytes: usize,
    pub(crate) huge: HugeAdvice,
    /// The [small-object region](crate::arena::pages::layout) during the first phase, in bytes.
    pub(crate) small_region_bytes: usize,
    /// The bytes at the zone's start that stay in small pages where the rest has huge ones. So small processes do not pay for whole huge
    /// pages.
    pub(crate) small_pages_bytes: usize,
    /// From this many bytes on, dirty memory is zeroed by purging it. The kernel then clears each page on the thread that touches it,
    /// instead of this thread all of them.
    pub(crate) lazy_zero_bytes: usize,
    /// A run that moves to grow begins at a multiple of this many times its length. Then it can grow further where it stands. 1 is no
    /// room.
    pub(crate) growth_room: usize,
    /// Whether thread caches keep its runs. Only one zone has this, so that the zone of a cached run is known.
    pub(crate) is_cached: bool,
}

/// A page is the unit of a zone's bitmaps. It is small against the zone's smallest run, so that little is wasted and the account
/// is exact. It is large enough that the bits of the longest runs are a few hundred words.
pub(crate) const fn page_bytes(runs: RunKind) -> usize {
    match runs {
        RunKind::Aligned | RunKind::Mid => 4 << 10,
        RunKind::Huge => 256 << 10,
    }
}

/// The parameters of the zones, in the order of [`RunKind`]. Slabs come first in their zone.
pub(crate) fn zone_specs(config: &Config) -> [ZoneSpec; 3] {
    let huge = HugeAdvice::of(config.huge_pages);
    // In small pages, a fault for each costs more than clearing them here.
    let lazy_zero_bytes = if huge == HugeAdvice::Ask { config.settings.lazy_zero_bytes.value } else { usize::MAX };
    [RunKind::Aligned, RunKind::Mid, RunKind::Huge].map(|runs| {
        let small_region_bytes = if runs == route::SLABS { first_bytes(config.threads) } else { 0 };
        let small_pages_bytes = match runs {
            _ if config.huge_pages == HugePagesOutcome::Always => 0,
            RunKind::Aligned => usize::MAX,
            RunKind::Mid => small_region_bytes + tuning::small_pages_bytes(),
            RunKind::Huge => 0,
        };
        ZoneSpec {
            page_bytes: page_bytes(runs).max(os::page_bytes()),
            huge,
            small_region_bytes,
            small_pages_bytes,
            lazy_zero_bytes,
            growth_room: if runs == RunKind::Huge { tuning::huge_run_growth_room() } else { 1 },
            // Aligned runs are rare, and a huge run is never hidden from the others.
            is_cached: runs == RunKind::Mid && tuning::caches_runs() != 0,
        }
    })
}

impl ZoneSpec {
    /// The alignment of a run: what was asked for, and a huge page's where huge pages are asked for and the run fills one. In small
    /// pages that would only leave gaps.
    pub(crate) fn run_align(&self, size: usize, align: usize) -> usize {
        if self.huge == HugeAdvice::Ask && size >= HUGE_PAGE_BYTES { align.max(HUGE_PAGE_BYTES) } else { align }
    }
}

/// How often to look whether zeroed memory was used: each time while it is sparse, and ever more rarely once it was dense. Threads that race
/// here look once too often, or too rarely.
#[derive(Debug)]
struct DensityPredictor {
    /// Requests that are taken for dense before the next look.
    left: AtomicU16,
    /// As many as that after the last look.
    granted: AtomicU16,
}

impl DensityPredictor {
    const fn new() -> Self {
        Self { left: AtomicU16::new(0), granted: AtomicU16::new(0) }
    }

    /// Takes one more for dense, without a look; `false` where it is time for one.
    fn predict_dense(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// Learns from a look. No more than `most` are taken for dense without another.
    fn learn(&self, is_dense: bool, most: usize) {
        let next = if is_dense { (8 * self.granted.load(Ordering::Relaxed) + 7).min(most as u16) } else { 0 };
        self.granted.store(next, Ordering::Relaxed);
        self.left.store(next, Ordering::Relaxed);
    }
}

/// The classes of lengths that are told apart, by the binary logarithm.
const KINDS: usize = 48;

/// How densely memory of each length was used so far. The last buffers of a length tell what to expect of the next.
#[derive(Debug)]
pub(crate) struct Density([DensityPredictor; KINDS]);

impl Density {
    pub(crate) const fn new() -> Self {
        Self([const { DensityPredictor::new() }; KINDS])
    }

    /// Whether the next buffer of `bytes` is sparse. `look` looks at it. At most `most` buffers of a length are taken for dense without a
    /// look.
    pub(crate) fn is_sparse(&self, bytes: usize, most: usize, look: impl FnOnce() -> bool) -> bool {
        let predictor = &self.0[(bytes.ilog2() as usize).min(KINDS - 1)];
        if predictor.predict_dense() {
            return false;
        }
        let is_sparse = look();
        predictor.learn(!is_sparse, most);
        is_sparse
    }
}

/// How densely zeroed memory of each length was used so far. Memory that was zeroed and then hardly touched (a table with few entries) is
/// purged when it is zeroed again. Memory that was written whole is cleared here, at once.
#[derive(Debug)]
pub(crate) struct Zeroing {
    lazy_zero_bytes: usize,
    density: Density,
}

impl Zeroing {
    pub(crate) fn new(spec: &ZoneSpec) -> Self {
        Self { lazy_zero_bytes: spec.lazy_zero_bytes, density: Density::new() }
    }

    /// Whether to zero dirty memory by purging it. `in_memory` says how many of its bytes are in memory, if that can be found out.
    pub(crate) fn is_cheaper_in_the_kernel(&self, bytes: usize, in_memory: impl FnOnce() -> Option<usize>) -> bool {
        if bytes >= self.lazy_zero_bytes {
            return true;
        }
        if bytes < tuning::sparse_min_bytes() {
            return false;
        }
        let is_sparse = || in_memory().is_some_and(|in_memory| in_memory < bytes / tuning::sparse_part());
        self.density.is_sparse(bytes, tuning::max_trust(), is_sparse)
    }
}

// The small-object region: the place of slabs and short runs, at the start of their zone. Their survivors stay out of the places of the next proof's long runs.

/// The use of a run.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunUse {
    /// A slab. Its blocks may live long, so it gets the lowest place.
    Slab,
    /// A page run shorter than [`tuning::long_run_bytes`].
    ShortRun,
    /// A page run of that length or more.
    LongRun,
}

impl RunUse {
    pub(crate) fn of_run(bytes: usize) -> Self {
        if route::is_long_run(bytes) { Self::LongRun } else { Self::ShortRun }
    }
}

/// Slabs lie within this many bytes of their zone's start, so that their tables stay small.
pub(crate) const SLAB_SPAN_BYTES: usize = 64 << 30;

/// The bytes of their zone that long runs leave to slabs and short runs, however many long runs there are: the last quarter of the range
/// of slabs. `first_bytes` and `zone_bytes` are the zone's.
pub(crate) fn kept_from_long_runs(first_bytes: usize, zone_bytes: usize) -> Range<usize> {
    let end = zone_bytes.min(SLAB_SPAN_BYTES);
    if first_bytes == 0 { end..end } else { end / 4 * 3..end }
}

/// The small-object region during the first phase, in bytes.
pub(crate) fn first_bytes(threads: usize) -> usize {
    (tuning::small_region_bytes() * threads).min(tuning::max_small_region_bytes())
}

/// The bytes of the small-object region that a run of this use keeps out of. The region has `first_bytes` until the first phase has shown the peak. A
/// region that grew with the peak would keep memory of long runs that lay there before.
pub(crate) fn kept_from(run_use: RunUse, first_bytes: usize) -> usize {
    match run_use {
        RunUse::Slab | RunUse::ShortRun => 0,
        RunUse::LongRun => after(counters::former_peak_live_bytes(), first_bytes),
    }
}

fn after(former_peak: Option<usize>, first_bytes: usize) -> usize {
    former_peak.map_or(first_bytes, |peak| first_bytes.min(peak / tuning::small_region_part().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_room_of_the_first_phase_shrinks_to_a_part_of_its_peak() {
        assert_eq!([1, 2, 64].map(first_bytes), [3 * MIB, 6 * MIB, 24 * MIB]);
        assert_eq!(after(None, 6 * MIB), 6 * MIB);
        assert_eq!(after(Some(400 * MIB), 6 * MIB), 6 * MIB);
        assert_eq!(after(Some(40 * MIB), 6 * MIB), 5 * MIB);
        assert_eq!(after(Some(40 * MIB), 0), 0);
    }

    #[test]
    fn long_runs_leave_a_quarter_of_their_range_to_slabs() {
        assert_eq!(kept_from_long_runs(6 * MIB, 64 * MIB), 48 * MIB..64 * MIB);
        assert_eq!(kept_from_long_runs(6 * MIB, 1 << 40), 48 << 30..64 << 30);
        assert!(kept_from_long_runs(0, 64 * MIB).is_empty(), "other zones have no slabs");
    }

    #[test]
    fn only_long_runs_keep_out() {
        assert_eq!([RunUse::Slab, RunUse::ShortRun].map(|run_use| kept_from(run_use, 6 * MIB)), [0, 0]);
        assert_eq!((RunUse::of_run(MIB), RunUse::of_run(64 << 10)), (RunUse::LongRun, RunUse::ShortRun));
    }
}
