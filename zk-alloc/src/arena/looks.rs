//! The looks of the program's threads and of the background thread, which purge free memory by time.

use std::time::Duration;

use super::decay::{self, Looks, Policy, Sight, Verdict};
use super::window::Looker;
use super::{Arena, Purge, cached_bytes, get, pressure, resident_bytes};
use crate::{counters, open_phases, os};

impl Arena {
    /// The facts of a look.
    fn sight(&self) -> Sight {
        Sight {
            resident_bytes: resident_bytes(),
            used_bytes: counters::used_bytes(),
            cached_bytes: cached_bytes(),
            peak_bytes: counters::take_seen_peak_bytes(),
            served_bytes: self.served_bytes(),
            is_in_phase: open_phases::is_any(),
        }
    }

    /// Looks how much memory may be purged, and purges it.
    fn look(&self, looks: &mut Looks, by: Looker) -> Verdict {
        let sight = self.sight();
        let verdict = looks.take_in(sight, os::monotonic_ns(), by);
        if let Verdict::Keep(keep_bytes) = verdict {
            looks.purged(sight, self.trim(keep_bytes, Purge::Now));
        }
        verdict
    }
}

/// From now on, free memory is purged by this policy; see `decay`. The call neither waits nor allocates.
pub(crate) fn follow(policy: Policy) {
    decay::follow(policy, || {
        look(Looker::Program);
    });
}

/// Looks; `None` without an arena, or while another thread looks.
fn look(by: Looker) -> Option<Verdict> {
    let arena = get()?;
    decay::with_looks(|looks| arena.look(looks, by))
}

/// Looks, if a look is due, and at the memory of the control group. Returns how long the background thread may sleep before the next look;
/// `None` if there is nothing to look at until the program wakes it.
pub(crate) fn look_in_background() -> Option<Duration> {
    if decay::time_to_look().is_some_and(|time| time.is_zero()) {
        let verdict = look(Looker::Background);
        decay::looked(verdict == Some(Verdict::Rest));
    }
    if !open_phases::is_any() {
        pressure::relieve();
    }
    [decay::time_to_look(), pressure::time_to_watch()].into_iter().flatten().min()
}
