//! Random numbers from a seed: a pattern makes the same requests for each arm and in each round.

use std::ops::RangeInclusive;

/// Sebastiano Vigna's SplitMix64 (<https://prng.di.unimi.it/splitmix64.c>): a few instructions per number, and any seed
/// works.
pub(crate) struct Random(u64);

impl Random {
    /// The stream of one thread of a run.
    pub(crate) fn new(seed: u64, thread: usize) -> Self {
        Self(seed ^ (thread as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The upper half of a product: no division, and no bias that matters here.
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// A uniform random number in the range.
    pub(crate) fn within(&mut self, range: &RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// A random number in the range, with each power of two equally likely, because programs request small sizes more
    /// often than large ones.
    pub(crate) fn log_within(&mut self, range: &RangeInclusive<usize>) -> usize {
        let doublings = (range.end() / range.start()).ilog2() as usize;
        let low = range.start() << self.below(doublings.max(1));
        self.within(&(low..=(2 * low).min(*range.end())))
    }

    /// True with a probability of `chance` in a hundred.
    pub(crate) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
