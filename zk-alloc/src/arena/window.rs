//! What may stay resident: the most that was alive in the time of the *window*, as seen at a few looks.
//!
//! A process that takes memory again and again, as a prover does, keeps what it needed at most in that time, and gets and gives back
//! nothing. As soon as it needs less, or idles, what is beyond may go. Who looks, and when, is the business of `decay`.

/// How often somebody looks in the time of a window.
pub(super) const LOOKS: usize = 8;
/// What is alive at most in the course of a proof may be so for a moment only, and proofs may take longer than a window: while
/// a process is busy, so many windows count.
const WINDOWS: usize = 8;

/// What may stay beyond what was alive, in bytes, while memory is taken and given: placement needs some room, and a small process
/// as much again as it has.
const SLACK_BYTES: usize = 8 << 20;

/// What is seen at one look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The most bytes that were alive since the last look, as far as is known.
    pub(super) live_bytes: usize,
    /// Bytes that are alive now.
    pub(super) live_now_bytes: usize,
    /// Bytes that were handed out since.
    pub(super) served_bytes: u64,
}

/// Who looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looker {
    /// The background thread, which comes when it is time.
    Background,
    /// A thread of the program's, which comes when it asks for memory: after a pause it may be about to need what the pause made
    /// superfluous.
    Program,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Window {
    looks: [Look; LOOKS],
    next: usize,
    /// The highest of the windows before.
    before: [usize; WINDOWS],
    next_before: usize,
    /// Looks that nobody took in the pause that ended at the last look, and that are not taken in yet.
    missed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    live_bytes: usize,
    served_bytes: u64,
}

impl Window {
    /// A window in which so much was alive at each look, and much was handed out.
    pub(super) const fn new(live_bytes: usize) -> Self {
        let look = Look { live_bytes, served_bytes: u64::MAX / LOOKS as u64 };
        Self { looks: [look; LOOKS], next: 0, before: [0; WINDOWS], next_before: 0, missed: 0 }
    }

    /// Takes in what is seen when the time of so many looks has passed since the last, and returns how many bytes may stay resident;
    /// `None` where nothing is to go at this look.
    ///
    /// A thread of the program's that comes late ends a pause, and what it asks for may be the first of much: nothing goes at that
    /// look. If much was asked for by the next, it is as if there had been no pause.
    pub(super) fn take_in(&mut self, seen: Seen, looks: usize, by: Looker) -> Option<usize> {
        let missed = looks.saturating_sub(1);
        if by == Looker::Background {
            // What happened since happened last.
            self.push_idle(self.missed.max(missed), seen.live_now_bytes);
            self.push(seen);
            self.missed = 0;
            return Some(self.keep_bytes());
        }
        if self.missed == 0 && missed > 0 {
            self.push(seen);
            self.missed = missed;
            return None;
        }
        if self.missed > 0 && self.is_much(seen) {
            // Busy, so that all that it ever needed in the time that counts may stay.
            self.push(seen);
            self.missed = missed;
        } else {
            self.push_idle(self.missed, seen.live_now_bytes);
            self.push(seen);
            self.push_idle(missed, seen.live_now_bytes);
            self.missed = 0;
        }
        Some(self.keep_bytes())
    }

    /// Takes in looks at which nothing had happened.
    fn push_idle(&mut self, looks: usize, live_bytes: usize) {
        let idle = Seen { live_bytes, live_now_bytes: live_bytes, served_bytes: 0 };
        (0..looks.min(LOOKS * WINDOWS)).for_each(|_| self.push(idle));
    }

    fn push(&mut self, seen: Seen) {
        let Seen { live_bytes, served_bytes, .. } = seen;
        self.looks[self.next] = Look { live_bytes, served_bytes };
        self.next = (self.next + 1) % LOOKS;
        if self.next == 0 {
            self.before[self.next_before] = self.high();
            self.next_before = (self.next_before + 1) % WINDOWS;
        }
    }

    fn high(&self) -> usize {
        self.looks.iter().map(|look| look.live_bytes).max().unwrap_or(0)
    }

    fn last(&self) -> Look {
        self.looks[(self.next + LOOKS - 1) % LOOKS]
    }

    /// The highest of all that counts while the process is busy.
    fn highest(&self) -> usize {
        self.before.iter().fold(self.high(), |high, &before| high.max(before))
    }

    /// Whether what is kept is needed: in the time of the window a part of it was handed out. The little that a service asks for
    /// while it waits is no reason to keep what its next proof needs.
    pub(super) fn is_busy(&self) -> bool {
        let served = self.looks.iter().fold(0_u64, |sum, look| sum.saturating_add(look.served_bytes));
        self.is_busy_with(served, self.last().live_bytes)
    }

    /// As [`is_busy`](Self::is_busy), by what was seen at one look.
    fn is_much(&self, seen: Seen) -> bool {
        self.is_busy_with(seen.served_bytes, seen.live_bytes)
    }

    fn is_busy_with(&self, served_bytes: u64, live_bytes: usize) -> bool {
        let spare = self.highest().saturating_sub(live_bytes);
        served_bytes > 0 && served_bytes >= (spare.max(live_bytes) / 64) as u64
    }

    /// What may stay resident, in bytes.
    fn keep_bytes(&self) -> usize {
        if self.is_busy() {
            let highest = self.highest();
            highest + (highest / 8).max(highest.min(SLACK_BYTES))
        } else {
            self.high() + self.high() / 32
        }
    }

    /// Whether there is nothing to wait for: the process is idle, and what may stay is no more than what is alive.
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
        for by in [Looker::Background, Looker::Program] {
            let mut window = Window::new(0);
            window.take_in(seen(800, 800_000), 1, by);
            for _ in 0..LOOKS * WINDOWS - 1 {
                let keep = window.take_in(seen(100, 50_000), 1, by).expect("nobody was late");
                assert!((800 * MIB..=900 * MIB).contains(&keep));
            }
            for _ in 0..2 * LOOKS {
                window.take_in(seen(100, 50_000), 1, by);
            }
            assert!((100 * MIB..=113 * MIB).contains(&window.keep_bytes()), "the highest is too long ago");
        }
    }

    #[test]
    fn what_stays_of_an_idle_process_is_within_a_twentieth_of_what_is_alive() {
        // A service that waits asks for a little now and then.
        for trickle_kib in [0, 100] {
            let mut window = Window::new(700 * MIB);
            for _ in 0..LOOKS {
                assert!(!window.is_over());
                window.push(seen(200, trickle_kib));
            }
            window.push(seen(200, trickle_kib));
            assert!((200 * MIB..=210 * MIB).contains(&window.keep_bytes()), "{window:?}");
            assert!(window.is_over());
        }
        let mut window = Window::new(200 * MIB);
        for _ in 0..LOOKS {
            window.push(seen(0, 0));
            assert_eq!(
                window.is_over(),
                window.keep_bytes() == 0,
                "what was freed may go only when it is out of the window"
            );
        }
        assert_eq!(window.keep_bytes(), 0);
    }

    /// A window that saw a prover at work, which had so much alive at most and has a tenth of it now.
    fn after_work(live_mib: usize) -> Window {
        let mut window = Window::new(0);
        for _ in 0..3 * LOOKS {
            window.take_in(seen(live_mib, 100_000), 1, Looker::Program);
        }
        window.take_in(seen(live_mib / 10, 100_000), 1, Looker::Program);
        window
    }

    /// A pause is seen when it is over. Purging then, or as soon as the next proof has begun, would take what that proof needs.
    #[test]
    fn what_a_prover_had_before_a_pause_is_not_taken_from_it_after() {
        for pause in [2, LOOKS, 1_000 * LOOKS] {
            let mut window = after_work(1_000);
            assert_eq!(window.take_in(seen(101, 10), pause, Looker::Program), None, "a pause of {pause} looks ends");
            let keep = window.take_in(seen(150, 50_000), 1, Looker::Program).expect("it proves");
            assert!(keep >= 1_000 * MIB, "after {pause} looks {keep} bytes may stay");
            // Proofs so short that the next pause is over before anybody looks again.
            assert_eq!(window.take_in(seen(150, 50_000), pause, Looker::Program), None);
            for again in 1..4 {
                let keep = window.take_in(seen(1_000, 50_000), pause, Looker::Program).expect("it proves");
                assert!(keep >= 1_000 * MIB, "after {pause} looks, {again} times, {keep} bytes may stay");
            }
        }
    }

    /// A service that asks for a little every few looks pauses between any two: it comes down all the same.
    #[test]
    fn a_process_that_looks_rarely_and_asks_for_little_comes_down() {
        for pause in [1, 2, 3, 5, LOOKS, 100 * LOOKS] {
            let mut window = after_work(1_000);
            let kept: Vec<_> = (0..3 * LOOKS).map(|_| window.take_in(seen(100, 10), pause, Looker::Program)).collect();
            assert!(kept.iter().flatten().last().is_some_and(|&keep| keep <= 105 * MIB), "{pause}: {kept:?}");
        }
    }

    /// Where looks are closer together than requests, each look ends a pause. What is beyond all that counts may go all the same.
    #[test]
    fn a_busy_process_that_is_always_late_comes_down() {
        let mut window = after_work(1_000);
        let kept: Vec<_> =
            (0..2 * LOOKS * WINDOWS).map(|_| window.take_in(seen(10, 500), 4, Looker::Program)).collect();
        assert!(kept.last().is_some_and(|keep| keep.is_some_and(|keep| keep <= 20 * MIB)), "{kept:?}");
    }

    /// The background thread sleeps longer while there is nothing to do: what it sees then is the latest, not the earliest.
    #[test]
    fn what_began_while_the_background_thread_rested_is_not_taken() {
        let mut window = after_work(1_000);
        for _ in 0..2 * LOOKS {
            window.take_in(seen(100, 0), 1, Looker::Background);
        }
        assert!(window.is_over());
        let keep = window.take_in(seen(700, 300_000), 20 * LOOKS, Looker::Background).expect("it always may");
        assert!(keep >= 700 * MIB, "{keep} bytes may stay");
    }
}
