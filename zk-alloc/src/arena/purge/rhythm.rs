//! Decides, from the lengths of earlier phases and pauses, whether free memory stays resident when the last open phase ends.
//!
//! The arena purges free memory if each of the last two pauses was longer than the phase that just ended, and longer than
//! [`tuning::min_pause_ms`]. A program that proves without pauses, or in batches, keeps its memory. A program whose pauses are longer than
//! its proofs keeps little memory during a pause. One long pause changes nothing: its length is known only when it is over.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::tuning;

/// The pauses between phases so far. Times are those of [`coarse_ns`](crate::os::coarse_ns), or 0 before the first. If threads begin and
/// end phases at the same moment, two pauses may be mixed up. Then memory is purged, or stays resident, in one pause in which it should
/// not.
pub(crate) struct Rhythm {
    /// The time at which the last open phase ended.
    ended_ns: AtomicU64,
    /// The time at which a phase last began while no other was open.
    began_ns: AtomicU64,
    /// The lengths of the last two pauses.
    pauses_ns: [AtomicU64; 2],
}

pub(crate) static RHYTHM: Rhythm = Rhythm::new();

impl Rhythm {
    const fn new() -> Self {
        Self { ended_ns: AtomicU64::new(0), began_ns: AtomicU64::new(0), pauses_ns: [const { AtomicU64::new(0) }; 2] }
    }

    /// Records that a phase begins while no other is open.
    pub(crate) fn begin(&self, now_ns: u64) {
        let ended_ns = self.ended_ns.load(Ordering::Relaxed);
        if ended_ns > 0 {
            let last_ns = self.pauses_ns[0].swap(now_ns.saturating_sub(ended_ns), Ordering::Relaxed);
            self.pauses_ns[1].store(last_ns, Ordering::Relaxed);
        }
        self.began_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Records that the last open phase ends. Returns whether free memory may stay resident.
    pub(crate) fn end(&self, now_ns: u64) -> bool {
        self.ended_ns.store(now_ns, Ordering::Relaxed);
        let open_ns = now_ns.saturating_sub(self.began_ns.load(Ordering::Relaxed));
        let short_ns = open_ns.max(tuning::min_pause_ms() as u64 * 1_000_000);
        self.pauses_ns.iter().any(|pause_ns| pause_ns.load(Ordering::Relaxed) <= short_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether free memory stays resident after each phase. For each phase, `phases` gives its length and the length of the pause
    /// before it, in milliseconds.
    fn stays(phases: &[(u64, u64)]) -> Vec<bool> {
        let (rhythm, mut now_ns) = (Rhythm::new(), 1);
        let mut ended = |&(open_ms, pause_ms): &(u64, u64)| {
            now_ns += pause_ms * 1_000_000;
            rhythm.begin(now_ns);
            now_ns += open_ms * 1_000_000;
            rhythm.end(now_ns)
        };
        phases.iter().map(&mut ended).collect()
    }

    #[test]
    fn free_memory_is_purged_from_the_third_proof_on_if_pauses_are_longer_than_proofs() {
        assert_eq!(stays(&[(1_000, 3_000); 5]), [true, true, false, false, false]);
        for (phases, program) in [
            (vec![(1_000, 0); 8], "no pauses"),
            (vec![(10_000, 9_000); 8], "pauses shorter than a proof"),
            (vec![(1, 900); 8], "pauses of less than a second, however short the phases are"),
            ([(1_000, 60_000), (1_000, 0)].repeat(4), "batches of two proofs"),
        ] {
            assert_eq!(stays(&phases), [true; 8], "{program}");
        }
    }

    #[test]
    fn a_program_that_stops_pausing_keeps_its_memory_again() {
        let phases = [[(1_000, 3_000); 4], [(1_000, 0); 4]].concat();
        assert_eq!(stays(&phases), [true, true, false, false, true, true, true, true]);
    }
}
