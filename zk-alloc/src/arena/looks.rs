//! The looks of the program's threads and of the background thread, which purge free memory by time.

use std::time::Duration;

use super::decay::{self, Looks, Marks, Policy, Sight, Verdict};
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

    /// Looks how much memory may be purged. The background thread purges it, and a thread of the program purges a part.
    fn look(&self, looks: &mut Looks, by: Looker) -> Verdict {
        let now_ns = os::monotonic_ns();
        if let Some(keep_bytes) = looks.unfinished(now_ns).filter(|_| by == Looker::Program) {
            if open_phases::is_any() {
                looks.stop_purge();
            } else {
                self.purge_part(looks, keep_bytes);
            }
            return Verdict::Wait;
        }
        let sight = self.sight();
        let verdict = looks.take_in(sight, now_ns, by);
        if let Verdict::Keep(keep_bytes) = verdict {
            match by {
                Looker::Background => looks.purged(sight.marks(), self.trim(keep_bytes, Purge::Now)),
                Looker::Program => self.purge_part(looks, keep_bytes),
            }
        }
        verdict
    }

    /// Does a request's part of a purge down to `keep_bytes`.
    fn purge_part(&self, looks: &mut Looks, keep_bytes: usize) {
        let gone_bytes = self.purge_by_tick(keep_bytes);
        let marks = Marks {
            resident_bytes: resident_bytes(),
            live_bytes: counters::used_bytes().saturating_sub(cached_bytes()),
        };
        looks.purged_part(keep_bytes, marks, gone_bytes);
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
