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

/// The part of a room of `room_bytes` that a tenant keeps out of, in bytes.
///
/// During the first phase, the peak is not known yet. A room that grew with it would keep memory of long runs that lay there before.
pub(super) fn kept_from(tenant: Tenant, room_bytes: usize) -> usize {
    if tenant != Tenant::LongRun {
        return 0;
    }
    let former = counters::former_peak_live_bytes();
    let is_first = former == 0 || counters::phases() < 2;
    let most = if is_first { usize::MAX } else { former / tuning::small_room_part() };
    room_bytes.min(most)
}
