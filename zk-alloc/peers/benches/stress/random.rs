//! Random numbers from a seed: a pattern makes the same requests for each arm and in each round.

use std::ops::RangeInclusive;

use fastrand::Rng;

/// The stream of one thread of a run.
pub(crate) fn stream(seed: u64, thread: usize) -> Rng {
    Rng::with_seed(seed ^ (thread as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

/// A random number in the range, with each power of two equally likely, because programs request small sizes more
/// often than large ones.
pub(crate) fn log_within(random: &mut Rng, range: &RangeInclusive<usize>) -> usize {
    let doublings = (range.end() / range.start()).ilog2() as usize;
    let low = range.start() << random.usize(..doublings.max(1));
    random.usize(low..=(2 * low).min(*range.end()))
}
