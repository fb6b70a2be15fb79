//! Memory that phases touch beyond the first one, without a higher peak live size.
//!
//! Vectors may have room that is never touched, at other places in each phase. The arena counts that room as resident, and retains what any
//! phase touched, so a process could grow to its live size although no phase touches that much. So less is retained each time that a phase has
//! touched more than expected. A phase that found nothing retained needs what it touched, and the next ones may touch as much.

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use crate::tuning;

/// What phases touched so far. All sizes are of the arena's memory at the end of a phase. Threads that end phases at the same moment may lose
/// a growth.
pub(crate) struct Growth {
    /// The bytes that a phase is expected to touch, less the peak live size; [`UNKNOWN`] before the end of the first phase.
    expected_more: AtomicIsize,
    /// How many bytes less than the limit are retained: the sum of all growth beyond it.
    less: AtomicUsize,
}

const UNKNOWN: isize = isize::MAX;

pub(crate) static GROWTH: Growth = Growth::new();

impl Growth {
    const fn new() -> Self {
        Self { expected_more: AtomicIsize::new(UNKNOWN), less: AtomicUsize::new(0) }
    }

    /// Whether less is to be retained than phases touch.
    pub(crate) fn is_less_retained(&self) -> bool {
        self.less.load(Ordering::Relaxed) > 0
    }

    /// Whether phases may have touched more than their limit, as far as the arena's own count of `resident` bytes tells, and the peak live size.
    pub(crate) fn is_possible(&self, resident: usize, peak: usize) -> bool {
        let more = self.expected_more.load(Ordering::Relaxed);
        more == UNKNOWN || resident > with_slack(peak.saturating_add_signed(more))
    }

    /// Notes that the last open phase ended with `touched` bytes in memory, and that the peak live size of all phases is `peak`. Returns how many
    /// of the bytes in memory are not to be retained.
    pub(crate) fn end(&self, touched: usize, peak: usize) -> usize {
        let (more, less) = (self.expected_more.load(Ordering::Relaxed), self.less.load(Ordering::Relaxed));
        let limit = with_slack(peak.saturating_add_signed(more));
        let growth = touched.saturating_sub(limit);
        if more == UNKNOWN || growth > 0 && less >= limit {
            self.expected_more.store(touched.cast_signed().saturating_sub(peak.cast_signed()), Ordering::Relaxed);
            self.less.store(0, Ordering::Relaxed);
            return 0;
        }
        let less = less.saturating_add(growth).min(limit);
        self.less.store(less, Ordering::Relaxed);
        if less > 0 { touched.saturating_sub(limit - less) } else { 0 }
    }
}

/// The limit of what phases may touch, if they are expected to touch `bytes`.
pub(crate) fn with_slack(bytes: usize) -> usize {
    bytes + (bytes / tuning::growth_part()).max(tuning::max_headroom_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    /// The peak live size.
    const PEAK: usize = 400;

    /// How much stays resident after each phase, of which `touched` returns the size, in MiB. It is called with the retained size.
    fn retained(growth: &Growth, phases: usize, mut touched: impl FnMut(usize) -> usize) -> Vec<usize> {
        let mut resident = 0;
        let mut end = || {
            let touched = touched(resident);
            resident = touched - growth.end(touched * MIB, PEAK * MIB).div_ceil(MIB);
            resident
        };
        (0..phases).map(|_| end()).collect()
    }

    #[test]
    fn less_is_retained_if_each_phase_touches_other_memory() {
        // A phase needs 240 MiB, and finds a part of that in what is retained beyond 200.
        let touches = |retained: usize| 240 + retained.saturating_sub(200);
        assert_eq!(retained(&Growth::new(), 6, touches), [240, 230, 215, 215, 215, 215]);
    }

    #[test]
    fn all_is_retained_if_phases_touch_the_same_memory_or_little_more() {
        assert_eq!(retained(&Growth::new(), 3, |_| 300), [300; 3]);
        let mut sizes = [300, 318, 316, 318].into_iter();
        assert_eq!(retained(&Growth::new(), 4, |_| sizes.next().unwrap()), [300, 318, 316, 318]);
    }

    /// The second kind of proof touches more than the first kind, whatever is retained.
    #[test]
    fn all_is_retained_again_if_phases_need_more_than_the_first_one() {
        let growth = Growth::new();
        let mut needs = [200, 300].into_iter().cycle();
        let touches = |retained: usize| retained.max(needs.next().unwrap());
        assert_eq!(retained(&growth, 8, touches), [200, 125, 125, 37, 37, 0, 0, 300]);
    }

    #[test]
    fn phases_may_touch_as_much_more_as_the_live_size_grew() {
        let growth = Growth::new();
        assert_eq!(growth.end(300 * MIB, PEAK * MIB), 0);
        assert_eq!([318, 320].map(|resident| growth.is_possible(resident * MIB, PEAK * MIB)), [false, true]);
        assert_eq!(growth.end(500 * MIB, (PEAK + 200) * MIB), 0);
        // The limit is 500 MiB and a sixteenth.
        assert_eq!(growth.end(600 * MIB, (PEAK + 200) * MIB), 2 * (600 * MIB - 500 * MIB * 17 / 16));
    }
}
