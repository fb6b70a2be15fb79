//! How much may stay resident: the peak live size during the *window*, as seen at a few ticks.
//!
//! A process that allocates the same memory again and again, as a prover does, keeps its peak of that time, and neither faults nor purges.
//! When it needs less, or idles, the surplus may be purged. `decay` decides which thread ticks, and when.

use crate::tuning;

/// DecayState per window.
pub(super) const TICKS: usize = 8;
/// Windows that count while a process is busy. A proof may take longer than a window, and reach its peak for a moment only.
const WINDOWS: usize = 8;

/// The facts of one tick.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The peak live size since the last tick, as far as it was counted.
    pub(super) live_bytes: usize,
    /// The live size now.
    pub(super) live_now_bytes: usize,
    /// Bytes served since the last tick.
    pub(super) served_bytes: u64,
}

/// Who ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// The background thread, which ticks on time.
    Background,
    /// A thread of the program, which ticks when it asks for memory. After a pause it may be about to use the memory that the pause made
    /// superfluous.
    Program,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Window {
    ticks: [Tick; TICKS],
    next: usize,
    /// The peaks of the windows before.
    before: [usize; WINDOWS],
    next_before: usize,
    /// DecayState that were missed in the pause before the last tick, and are not counted yet.
    missed: usize,
    /// Whether the process allocated little since a pause.
    has_paused: bool,
}

#[derive(Clone, Copy, Debug)]
struct Tick {
    live_bytes: usize,
    served_bytes: u64,
}

impl Window {
    /// A window of a busy process with this live size at each tick.
    pub(super) const fn new(live_bytes: usize) -> Self {
        let tick = Tick { live_bytes, served_bytes: u64::MAX / TICKS as u64 };
        Self { ticks: [tick; TICKS], next: 0, before: [0; WINDOWS], next_before: 0, missed: 0, has_paused: false }
    }

    /// Takes in a tick. Since the last one, the time of `ticks` ticks has passed. Returns how many bytes may stay resident; `None` if this
    /// tick is to purge nothing.
    ///
    /// A thread of the program that comes late ends a pause. If the program was busy before, this request may be the first of its next
    /// proof, so the tick purges nothing. If the program allocated much by the next tick, the pause does not count.
    pub(super) fn take_in(&mut self, seen: Seen, ticks: usize, by: Caller) -> Option<usize> {
        let missed = ticks.saturating_sub(1);
        if by == Caller::Background {
            // The activity came at the end of its sleep.
            self.push_idle(self.missed.max(missed), seen.live_now_bytes);
            self.push(seen);
            self.missed = 0;
            return Some(self.keep_bytes());
        }
        let was_pausing = self.missed > 0;
        if missed > 0 && !was_pausing && !self.has_paused && self.is_busy() {
            self.push(seen);
            self.missed = missed;
            return None;
        }
        if self.is_much(seen) {
            // The pause does not count: the process keeps its peak.
            self.push(seen);
            (self.missed, self.has_paused) = (missed, false);
        } else {
            self.push_idle(self.missed, seen.live_now_bytes);
            self.push(seen);
            self.push_idle(missed, seen.live_now_bytes);
            (self.missed, self.has_paused) = (0, self.has_paused || was_pausing);
        }
        Some(self.keep_bytes())
    }

    /// Takes in ticks of an idle process.
    fn push_idle(&mut self, ticks: usize, live_bytes: usize) {
        let idle = Seen { live_bytes, live_now_bytes: live_bytes, served_bytes: 0 };
        (0..ticks.min(TICKS * WINDOWS)).for_each(|_| self.push(idle));
    }

    fn push(&mut self, seen: Seen) {
        let Seen { live_bytes, served_bytes, .. } = seen;
        self.ticks[self.next] = Tick { live_bytes, served_bytes };
        self.next = (self.next + 1) % TICKS;
        if self.next == 0 {
            self.before[self.next_before] = self.high();
            self.next_before = (self.next_before + 1) % WINDOWS;
        }
    }

    fn high(&self) -> usize {
        self.ticks.iter().map(|tick| tick.live_bytes).max().unwrap_or(0)
    }

    fn last(&self) -> Tick {
        self.ticks[(self.next + TICKS - 1) % TICKS]
    }

    /// The peak that counts while the process is busy.
    fn highest(&self) -> usize {
        self.before.iter().fold(self.high(), |high, &before| high.max(before))
    }

    /// Whether the process allocated a relevant share of its memory in the window. A service that answers a small question while it waits
    /// is not busy.
    pub(super) fn is_busy(&self) -> bool {
        let served = self.ticks.iter().fold(0_u64, |sum, tick| sum.saturating_add(tick.served_bytes));
        self.is_busy_with(served, self.last().live_bytes)
    }

    /// As [`is_busy`](Self::is_busy), by one tick alone.
    fn is_much(&self, seen: Seen) -> bool {
        self.is_busy_with(seen.served_bytes, seen.live_bytes)
    }

    fn is_busy_with(&self, served_bytes: u64, live_bytes: usize) -> bool {
        let spare = self.highest().saturating_sub(live_bytes);
        served_bytes >= (spare.max(live_bytes) / 64).max(tuning::min_busy_bytes()) as u64
    }

    /// How much may stay resident, in bytes.
    fn keep_bytes(&self) -> usize {
        if self.is_busy() {
            let highest = self.highest();
            highest + (highest / 8).max(highest.min(tuning::busy_headroom_bytes()))
        } else {
            self.high() + self.high() / 32
        }
    }

    /// Whether the process is idle, and may keep no more than its live size. Then waiting changes nothing.
    pub(super) fn is_over(&self) -> bool {
        let live = self.last().live_bytes;
        self.missed == 0 && !self.is_busy() && self.high() <= live + live / 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn seen(live_mib: usize, served_kib: u64) -> Seen {
        let live_bytes = live_mib * MIB;
        Seen { live_bytes, live_now_bytes: live_bytes, served_bytes: served_kib << 10 }
    }

    #[test]
    fn a_busy_process_keeps_the_highest_of_some_windows_and_then_comes_down() {
        for by in [Caller::Background, Caller::Program] {
            let mut window = Window::new(0);
            window.take_in(seen(800, 800_000), 1, by);
            for _ in 0..TICKS * WINDOWS - 1 {
                let keep = window.take_in(seen(100, 50_000), 1, by).expect("nobody was late");
                assert!((800 * MIB..=900 * MIB).contains(&keep));
            }
            for _ in 0..2 * TICKS {
                window.take_in(seen(100, 50_000), 1, by);
            }
            assert!((100 * MIB..=113 * MIB).contains(&window.keep_bytes()), "the highest is too long ago");
        }
    }

    #[test]
    fn what_stays_of_an_idle_process_is_within_a_twentieth_of_what_is_alive() {
        // A waiting service allocates a little now and then.
        for trickle_kib in [0, 100] {
            let mut window = Window::new(700 * MIB);
            for _ in 0..TICKS {
                assert!(!window.is_over());
                window.push(seen(200, trickle_kib));
            }
            window.push(seen(200, trickle_kib));
            assert!((200 * MIB..=210 * MIB).contains(&window.keep_bytes()), "{window:?}");
            assert!(window.is_over());
        }
        // A small service allocates a large part of its memory.
        let mut window = Window::new(13 * MIB);
        (0..=TICKS).for_each(|_| window.push(seen(4, 100)));
        assert!((4 * MIB..=5 * MIB).contains(&window.keep_bytes()), "{window:?}");
        let mut window = Window::new(200 * MIB);
        for _ in 0..TICKS {
            window.push(seen(0, 0));
            assert_eq!(
                window.is_over(),
                window.keep_bytes() == 0,
                "freed memory may go only when it is out of the window"
            );
        }
        assert_eq!(window.keep_bytes(), 0);
    }

    /// A window that saw a prover at work with this peak. A tenth of it is alive now.
    fn after_work(live_mib: usize) -> Window {
        let mut window = Window::new(0);
        for _ in 0..3 * TICKS {
            window.take_in(seen(live_mib, 100_000), 1, Caller::Program);
        }
        window.take_in(seen(live_mib / 10, 100_000), 1, Caller::Program);
        window
    }

    /// A pause is seen when it is over. A purge at that moment would take the memory of the next proof.
    #[test]
    fn a_prover_keeps_over_a_pause_what_it_had_before() {
        for pause in [2, TICKS, 1_000 * TICKS] {
            let mut window = after_work(1_000);
            assert_eq!(window.take_in(seen(101, 10), pause, Caller::Program), None, "a pause of {pause} ticks ends");
            let keep = window.take_in(seen(150, 50_000), 1, Caller::Program).expect("it proves");
            assert!(keep >= 1_000 * MIB, "after {pause} ticks {keep} bytes may stay");
            // The next proofs are so short that a pause ends before the next tick.
            assert_eq!(window.take_in(seen(150, 50_000), pause, Caller::Program), None);
            for again in 1..4 {
                let keep = window.take_in(seen(1_000, 50_000), pause, Caller::Program).expect("it proves");
                assert!(keep >= 1_000 * MIB, "after {pause} ticks, {again} times, {keep} bytes may stay");
            }
        }
    }

    /// A service that asks for a little every few ticks pauses between any two. It must shrink even so.
    #[test]
    fn a_process_that_looks_rarely_and_asks_for_little_shrinks() {
        for pause in [1, 2, 3, 5, TICKS, 100 * TICKS] {
            let mut window = after_work(1_000);
            let kept: Vec<_> = (0..3 * TICKS).map(|_| window.take_in(seen(100, 10), pause, Caller::Program)).collect();
            assert!(kept.iter().flatten().last().is_some_and(|&keep| keep <= 105 * MIB), "{pause}: {kept:?}");
        }
    }

    /// With ticks closer together than requests, each tick ends a pause. The surplus must go even then.
    #[test]
    fn a_busy_process_that_is_always_late_shrinks() {
        let mut window = after_work(1_000);
        let kept: Vec<_> =
            (0..2 * TICKS * WINDOWS).map(|_| window.take_in(seen(10, 500), 4, Caller::Program)).collect();
        assert!(kept.last().is_some_and(|keep| keep.is_some_and(|keep| keep <= 20 * MIB)), "{kept:?}");
    }

    /// The background thread sleeps longer at rest. The activity that it sees afterwards is recent, and not from before its sleep.
    #[test]
    fn a_proof_that_began_while_the_background_thread_rested_keeps_its_memory() {
        let mut window = after_work(1_000);
        for _ in 0..2 * TICKS {
            window.take_in(seen(100, 0), 1, Caller::Background);
        }
        assert!(window.is_over());
        let keep = window.take_in(seen(700, 300_000), 20 * TICKS, Caller::Background).expect("it always may");
        assert!(keep >= 700 * MIB, "{keep} bytes may stay");
    }
}
