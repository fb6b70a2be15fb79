//! Looks at what may be purged, by the program's threads or the background thread.

use std::time::Duration;

use super::decay::{self, Looks, Policy, Sight, Verdict};
use super::window::Looker;
use super::{Arena, Purge, cached_bytes, get, resident_bytes};
use crate::{counters, open_phases, os};

impl Arena {
    /// The figures that a look decides by.
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

    /// Looks what may go, and purges it.
    fn look(&self, looks: &mut Looks, by: Looker) -> Verdict {
        let sight = self.sight();
        let verdict = looks.take_in(sight, os::monotonic_ns(), by);
        if by == Looker::Background && looks.is_busy() {
            self.ask_for_huge_pages();
        }
        if let Verdict::Keep(keep_bytes) = verdict {
            looks.purged(sight, self.trim(keep_bytes, Purge::Now));
        }
        verdict
    }
}

/// Free memory goes by this policy from now on; see `decay`. Waits for nobody, and allocates nothing.
pub(crate) fn follow(policy: Policy) {
    decay::follow(policy, || {
        look(Looker::Program);
    });
}

/// `None` where another thread looks.
fn look(by: Looker) -> Option<Verdict> {
    let arena = get()?;
    decay::with_looks(|looks| arena.look(looks, by))
}

/// Looks, if it is time, and returns how long the background thread may sleep before the next look; `None` where nothing is purged by
/// time.
pub(crate) fn look_in_background() -> Option<Duration> {
    if decay::time_to_look()?.is_zero() {
        let verdict = look(Looker::Background);
        decay::looked(verdict == Some(Verdict::Rest));
    }
    decay::time_to_look()
}
