//! The room of slabs and short runs, at the start of their zone. Their survivors stay out of the places of the next proof's long runs.

use crate::counters;
use crate::route;
use crate::tuning;

/// The use of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenant {
    /// A slab. Its blocks may live long, so it gets the lowest place.
    Slab,
    /// A page run shorter than [`tuning::long_run_bytes`].
    ShortRun,
    /// A page run of that length or more.
    LongRun,
}

impl Tenant {
    pub(super) fn of_run(bytes: usize) -> Self {
        if route::is_long_run(bytes) { Self::LongRun } else { Self::ShortRun }
    }
}

/// The room during the first phase, in bytes.
pub(super) fn first_bytes(threads: usize) -> usize {
    (tuning::small_room_bytes() * threads).min(tuning::most_small_room_bytes())
}

/// The part of the room that a tenant keeps out of, in bytes. The room has `first_bytes` until the first phase has shown the peak. A
/// room that grew with the peak would keep memory of long runs that lay there before.
pub(super) fn kept_from(tenant: Tenant, first_bytes: usize) -> usize {
    match tenant {
        Tenant::Slab | Tenant::ShortRun => 0,
        Tenant::LongRun => after(counters::former_peak_live_bytes(), first_bytes),
    }
}

fn after(former_peak: Option<usize>, first_bytes: usize) -> usize {
    former_peak.map_or(first_bytes, |peak| first_bytes.min(peak / tuning::small_room_part().max(1)))
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
    fn only_long_runs_keep_out() {
        assert_eq!([Tenant::Slab, Tenant::ShortRun].map(|tenant| kept_from(tenant, 6 * MIB)), [0, 0]);
        assert_eq!((Tenant::of_run(MIB), Tenant::of_run(64 << 10)), (Tenant::LongRun, Tenant::ShortRun));
    }
}
