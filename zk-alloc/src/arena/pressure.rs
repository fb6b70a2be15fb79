//! Memory pressure: free memory is purged while a control group of the process comes near to its memory limit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{Purge, get, resident_bytes};
use crate::counters;
use crate::os;
use crate::tuning;

/// When the control group's files may be read again, by [`os::monotonic_ns`].
static NEXT_NS: AtomicU64 = AtomicU64::new(0);
static PURGES: AtomicU64 = AtomicU64::new(0);
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// Whether to read the control group's files: only if the group had a limit when the process started, and not in a sandbox, which may end
/// the process for it.
fn is_watching() -> bool {
    !os::is_in_sandbox() && os::host().limits.is_memory_grouped
}

/// Purges free memory if a control group is short of memory. Call it while no phase is open. Waits for nobody.
pub(crate) fn relieve() {
    if !is_watching() {
        return;
    }
    let Some(arena) = get() else { return };
    let free_bytes = resident_bytes().saturating_sub(counters::used_bytes());
    let (now, next) = (os::monotonic_ns(), NEXT_NS.load(Ordering::Relaxed));
    if free_bytes == 0 || now < next {
        return;
    }
    let after = now + tuning::watch_ms() as u64 * 1_000_000;
    if NEXT_NS.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let missing_bytes = os::missing_memory(tuning::spare_part(), tuning::stall_percent());
    if missing_bytes == 0 {
        return;
    }
    let gone_bytes = arena.trim(resident_bytes().saturating_sub(missing_bytes), Purge::Now);
    if gone_bytes == 0 {
        return;
    }
    PURGES.fetch_add(1, Ordering::Relaxed);
    if !IS_TOLD.swap(true, Ordering::Relaxed) {
        os::warn(format_args!(
            "the control group is short of memory: purged {gone_bytes} bytes of free memory; from now on this is only counted in stats()"
        ));
    }
}

/// How often free memory was purged because a control group was short of memory.
pub(crate) fn purges() -> u64 {
    PURGES.load(Ordering::Relaxed)
}

/// How long the background thread may sleep before it looks again; `None` if it need not look.
pub(super) fn time_to_watch() -> Option<Duration> {
    is_watching().then(|| Duration::from_millis(tuning::rest_ms() as u64))
}
