//! The decay ticks of the program's threads and of the background thread, which purge free memory by time.

use std::time::Duration;

use super::decay::{self, DecayState, HeapSnapshot, Marks, Policy, Verdict};
use super::window::Caller;
use super::{Arena, Purge, cached_bytes, get, pressure, resident_bytes};
use crate::{counters, open_phases, os};

impl Arena {
    /// The facts of a tick.
    fn snapshot(&self) -> HeapSnapshot {
        HeapSnapshot {
            resident_bytes: resident_bytes(),
            used_bytes: counters::used_bytes(),
            cached_bytes: cached_bytes(),
            peak_bytes: counters::take_seen_peak_bytes(),
            served_bytes: self.served_bytes(),
            is_in_phase: open_phases::is_any(),
        }
    }

    /// DecayState how much memory may be purged. The background thread purges it, and a thread of the program purges a part.
    fn tick(&self, state: &mut DecayState, by: Caller) -> Verdict {
        let now_ns = os::monotonic_ns();
        if let Some(keep_bytes) = state.unfinished(now_ns).filter(|_| by == Caller::Program) {
            if open_phases::is_any() {
                state.stop_purge();
            } else {
                self.purge_part(state, keep_bytes);
            }
            return Verdict::Wait;
        }
        let snapshot = self.snapshot();
        let verdict = state.take_in(snapshot, now_ns, by);
        if let Verdict::Keep(keep_bytes) = verdict {
            match by {
                Caller::Background => state.purged(snapshot.marks(), self.trim(keep_bytes, Purge::Now)),
                Caller::Program => self.purge_part(state, keep_bytes),
            }
        }
        verdict
    }

    /// Does a request's part of a purge down to `keep_bytes`.
    fn purge_part(&self, state: &mut DecayState, keep_bytes: usize) {
        let gone_bytes = self.purge_by_tick(keep_bytes);
        let marks = Marks {
            resident_bytes: resident_bytes(),
            live_bytes: counters::used_bytes().saturating_sub(cached_bytes()),
        };
        state.purged_part(keep_bytes, marks, gone_bytes);
    }
}

/// From now on, free memory is purged by this policy; see `decay`. The call neither waits nor allocates.
pub(crate) fn follow(policy: Policy) {
    decay::follow(policy, || {
        tick(Caller::Program);
    });
}

/// DecayState; `None` without an arena, or while another thread state.
fn tick(by: Caller) -> Option<Verdict> {
    let arena = get()?;
    decay::with_state(|state| arena.tick(state, by))
}

/// DecayState, if a tick is due, and at the memory of the control group. Returns how long the background thread may sleep before the next tick;
/// `None` if there is nothing to look at until the program wakes it.
pub(crate) fn tick_in_background() -> Option<Duration> {
    if decay::time_to_tick().is_some_and(|time| time.is_zero()) {
        let verdict = tick(Caller::Background);
        decay::ticked(verdict == Some(Verdict::Rest));
    }
    if !open_phases::is_any() {
        pressure::relieve();
    }
    [decay::time_to_tick(), pressure::time_to_watch()].into_iter().flatten().min()
}
