//! Decides which requests are sampled, and how many requests each sample stands for.
//!
//! A request for `s` bytes is sampled with the probability `p = s / mean`, and stands for `1 / p` requests of its size. So the estimates
//! are unbiased. A request for at least `mean` bytes is always sampled.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::arena::front;
use crate::gate::{self, Observer};

/// Requests of this many bytes or more are always sampled, regardless of the mean.
const ALWAYS_BYTES: usize = 1 << 20;
/// Counts of requests are fixed-point numbers: one request is this many units.
pub(super) const COUNT_PARTS: u64 = 64;

/// The mean distance between samples, in bytes.
static MEAN_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The number of samples that could not be recorded.
pub(super) static MISSED: AtomicU64 = AtomicU64::new(0);
/// The number of threads that have drawn a random number. It seeds the sequence of the next thread.
static THREADS: AtomicU64 = AtomicU64::new(0);

/// The part of a thread's state that this module uses.
pub(crate) struct Local {
    /// The state of the random number generator; 0 before the first number.
    random: Cell<u64>,
    state: Cell<SamplerState>,
}

/// What a thread is doing in this module.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum SamplerState {
    Outside = 0,
    /// The thread is recording a sample. If a signal handler interrupts it, the handler's requests can't be sampled.
    Sampling,
    /// The thread is reading the samples. Its own requests are not sampled.
    Reading,
}

/// The amounts that one sample adds to the estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) bytes: u64,
    /// The number of requests, in parts of a request ([`COUNT_PARTS`]).
    pub(super) count: u64,
}

impl Noted {
    /// Returns the amounts for a sample that stands for `weight` requests, each served with `served_bytes`.
    pub(super) fn of(weight: f64, served_bytes: usize) -> Self {
        let rounded = |estimate: f64| (estimate + 0.5) as u64;
        Self { bytes: rounded(served_bytes as f64 * weight), count: rounded(weight * COUNT_PARTS as f64) }
    }
}

/// Returns this thread's state.
#[inline(always)]
fn local() -> &'static Local {
    &front::local().sampler
}

/// Sets the mean distance between samples.
pub(crate) fn set_mean(bytes: usize) {
    MEAN_BYTES.store(bytes, Ordering::Relaxed);
}

/// Returns the mean distance between samples, in bytes.
pub(crate) fn mean_bytes() -> usize {
    MEAN_BYTES.load(Ordering::Relaxed)
}

/// Counts a sample that could not be recorded.
#[cold]
pub(super) fn miss() {
    MISSED.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of samples that could not be recorded since the last [`begin`](super::begin).
pub(crate) fn missed() -> u64 {
    MISSED.load(Ordering::Relaxed)
}

/// Decides whether to sample a request for `bytes`. If so, returns the number of requests that the sample stands for. While escapes are
/// traced, every request is sampled.
#[inline]
pub(super) fn sample(bytes: usize) -> Option<f64> {
    let mean = mean_bytes();
    if bytes >= mean.min(ALWAYS_BYTES) || gate::is_told(Observer::Escapes) {
        return Some(1.0);
    }
    // The upper half of the product is uniformly distributed below the mean.
    let drawn = (u128::from(local().random()) * mean as u128) >> u64::BITS;
    (drawn < bytes as u128).then(|| mean as f64 / bytes as f64)
}

impl Local {
    /// Returns a random number of 64 bits. Each thread has a sequence of its own.
    #[inline]
    fn random(&self) -> u64 {
        let last = match self.random.get() {
            0 => THREADS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).wrapping_mul(0xD134_2543_DE82_EF95),
            last => last,
        };
        // splitmix64 gives good numbers from any seed.
        let state = last.wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// Runs `f`, which records a sample, unless this thread is already recording or reading samples.
pub(super) fn exclusively<R>(f: impl FnOnce() -> R) -> Option<R> {
    let state = &local().state;
    let before = state.get();
    if before == SamplerState::Sampling {
        miss();
    }
    if before != SamplerState::Outside {
        return None;
    }
    state.set(SamplerState::Sampling);
    let result = f();
    state.set(SamplerState::Outside);
    Some(result)
}

/// Returns whether this thread is reading the samples.
pub(crate) fn is_reading() -> bool {
    local().state.get() == SamplerState::Reading
}

/// A guard: while it exists, its thread's requests are not sampled.
pub(crate) struct Reading {
    before: SamplerState,
}

impl Reading {
    pub(crate) fn begin() -> Self {
        Self { before: local().state.replace(SamplerState::Reading) }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        local().state.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relative error of a biased estimate would stay the same, no matter how long the program runs.
    #[test]
    fn estimates_from_samples_are_unbiased() {
        set_mean(64 << 10);
        // 200,000 requests of each size: standard deviations of about 2%, 0.1% and 0.
        for (size, percent) in [(1 << 10, 10.0), (48 << 10, 0.7), (512 << 10, 0.001)] {
            let noted = (0..200_000).filter_map(|_| sample(size)).map(|weight| Noted::of(weight, size));
            let (bytes, count) = noted.fold((0, 0), |(bytes, count), one| (bytes + one.bytes, count + one.count));
            for (estimate, exact) in [(bytes, 200_000 * size as u64), (count, 200_000 * COUNT_PARTS)] {
                let off = estimate as f64 / exact as f64 * 100.0 - 100.0;
                assert!(off.abs() < percent, "{off}% for requests of {size} bytes");
            }
        }
        let weight = sample(ALWAYS_BYTES).unwrap();
        assert_eq!(Noted::of(weight, 5), Noted { bytes: 5, count: COUNT_PARTS });
    }
}
