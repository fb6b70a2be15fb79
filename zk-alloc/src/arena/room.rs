//! The small-object region: the place of slabs and short runs, at the start of their zone. Their survivors stay out of the places of the next proof's long runs.

use std::ops::Range;

use crate::counters;
use crate::route;
use crate::tuning;

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
    pub(super) fn of_run(bytes: usize) -> Self {
        if route::is_long_run(bytes) { Self::LongRun } else { Self::ShortRun }
    }
}

/// Slabs lie within this many bytes of their zone's start, so that their tables stay small.
pub(super) const SLAB_SPAN_BYTES: usize = 64 << 30;

/// The bytes of their zone that long runs leave to slabs and short runs, however many long runs there are: the last quarter of the range
/// of slabs. `first_bytes` and `zone_bytes` are the zone's.
pub(super) fn kept_from_long_runs(first_bytes: usize, zone_bytes: usize) -> Range<usize> {
    let end = zone_bytes.min(SLAB_SPAN_BYTES);
    if first_bytes == 0 { end..end } else { end / 4 * 3..end }
}

/// The small-object region during the first phase, in bytes.
pub(super) fn first_bytes(threads: usize) -> usize {
    (tuning::small_region_bytes() * threads).min(tuning::max_small_region_bytes())
}

/// The bytes of the small-object region that a run of this use keeps out of. The region has `first_bytes` until the first phase has shown the peak. A
/// region that grew with the peak would keep memory of long runs that lay there before.
pub(super) fn kept_from(run_use: RunUse, first_bytes: usize) -> usize {
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
