//! Which requests are sampled, and for how many requests each sample stands.
//!
//! The bytes of all requests form a line on which points are drawn, with exponentially distributed distances (a Poisson process). A
//! request that covers a point is sampled. A request for `s` bytes is therefore sampled with the probability `p = 1 - exp(-s / mean)`,
//! and stands for `1 / p` requests of its size. The estimate is unbiased. tcmalloc, jemalloc and Go's runtime sample in this way.
#![allow(unsafe_code, reason = "thread-local memory that is zeroed when its thread begins")]

use std::cell::Cell;
#[cfg(not(thread_blocks))]
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::gate::{self, Observer};
#[cfg(thread_blocks)]
use crate::os;

/// Requests of this size and more are always sampled, whatever the mean is.
const ALWAYS_BYTES: usize = 1 << 20;
/// Counts of requests are fixed-point numbers: one request is this many units.
pub(super) const COUNT_PARTS: u64 = 64;

/// The mean distance of samples in bytes, and its inverse as the bits of a float.
static MEAN_BYTES: AtomicUsize = AtomicUsize::new(0);
static PER_MEAN: AtomicU64 = AtomicU64::new(0);
/// Requests of this size and more are sampled for certain.
static CERTAIN_BYTES: AtomicUsize = AtomicUsize::new(ALWAYS_BYTES);
/// Samples that could not be noted.
static MISSED: AtomicU64 = AtomicU64::new(0);
/// Threads that drew random numbers. Each has a sequence of its own.
static THREADS: AtomicU64 = AtomicU64::new(0);

/// The state of a thread. It has no `Drop`, and is all zeroes when the thread begins.
struct Local {
    /// The distance to the next sample of each [`Stream`], in means.
    until: [Cell<f64>; 2],
    /// The state of the random numbers; 0 before the first.
    random: Cell<u64>,
    state: Cell<SamplerState>,
}

/// The activity of a thread in this module.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(dead_code, reason = "a thread's memory is zeroed when it begins")]
enum SamplerState {
    Outside = 0,
    /// The thread notes a sample. A request of a signal handler that interrupts it can't be sampled.
    Sampling,
    /// The thread reads the samples. Its own requests are not sampled.
    Reading,
}

/// Independent series of samples.
#[derive(Clone, Copy)]
pub(super) enum Stream {
    Requests = 0,
    FreshBytes = 1,
}

/// The estimates that one sample adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) bytes: u64,
    /// In parts of a request ([`COUNT_PARTS`]).
    pub(super) count: u64,
}

impl Noted {
    /// The estimates from a sample that stands for `weight` requests, each served with `served_bytes`.
    pub(super) fn of(weight: f64, served_bytes: usize) -> Self {
        let rounded = |estimate: f64| (estimate + 0.5) as u64;
        Self { bytes: rounded(served_bytes as f64 * weight), count: rounded(weight * COUNT_PARTS as f64) }
    }
}

#[cfg(not(thread_blocks))]
thread_local! {
    // SAFETY: all zeroes is a `Local`.
    static LOCAL: Local = const { unsafe { MaybeUninit::zeroed().assume_init() } };
}

/// Runs `f` with this thread's state.
#[cfg(not(thread_blocks))]
#[inline(always)]
fn with_local<R>(f: impl FnOnce(&Local) -> R) -> R {
    LOCAL.with(f)
}

/// The compiler's own thread locals may call `malloc`, which this library may implement.
#[cfg(thread_blocks)]
#[inline(always)]
fn with_local<R>(f: impl FnOnce(&Local) -> R) -> R {
    const _: () = assert!(size_of::<Local>() <= os::OBSERVE_BLOCK_BYTES && align_of::<Local>() <= 16);
    // SAFETY: this part of the thread's block serves nothing else. It is long enough, lasts as long as the thread, and all zeroes is a
    // `Local`.
    f(unsafe { os::observe_block().cast::<Local>().as_ref() })
}

/// From now on, the mean distance of samples is `bytes`.
pub(crate) fn set_mean(bytes: usize) {
    MEAN_BYTES.store(bytes, Ordering::Relaxed);
    CERTAIN_BYTES.store(if bytes == 1 { 0 } else { ALWAYS_BYTES }, Ordering::Relaxed);
    PER_MEAN.store((1.0 / bytes as f64).to_bits(), Ordering::Relaxed);
}

/// The mean distance of samples, in bytes.
pub(crate) fn mean_bytes() -> usize {
    MEAN_BYTES.load(Ordering::Relaxed)
}

/// Counts a sample that could not be noted.
#[cold]
pub(super) fn miss() {
    MISSED.fetch_add(1, Ordering::Relaxed);
}

/// Samples that could not be noted since [`forget_missed`].
pub(crate) fn missed() -> u64 {
    MISSED.load(Ordering::Relaxed)
}

pub(super) fn forget_missed() {
    MISSED.store(0, Ordering::Relaxed);
}

#[inline(always)]
fn in_means(bytes: usize) -> f64 {
    bytes as f64 * f64::from_bits(PER_MEAN.load(Ordering::Relaxed))
}

/// The number of requests that a sample of a request for `bytes` stands for, if the request is sampled. While escapes are traced, all are.
#[inline]
pub(super) fn sample(stream: Stream, bytes: usize) -> Option<f64> {
    if bytes >= CERTAIN_BYTES.load(Ordering::Relaxed) || gate::is_told(Observer::Escapes) {
        return Some(1.0);
    }
    with_local(|local| {
        let until = &local.until[stream as usize];
        let left = until.get() - in_means(bytes);
        until.set(left);
        if left >= 0.0 { None } else { local.draw(until, in_means(bytes)) }
    })
}

impl Local {
    /// Samples a request that passed the drawn distance, and draws the next one. The first call on a thread draws the first distances.
    #[cold]
    fn draw(&self, until: &Cell<f64>, len: f64) -> Option<f64> {
        let is_first = self.random.get() == 0;
        if is_first {
            let thread = THREADS.fetch_add(1, Ordering::Relaxed) + 1;
            self.random.set(thread.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            self.until.iter().for_each(|until| until.set(self.exponential()));
            until.set(until.get() - len);
        }
        if until.get() >= 0.0 {
            return None;
        }
        until.set(self.exponential());
        Some(1.0 / share_sampled(len))
    }

    /// A number from the exponential distribution with mean 1, by von Neumann's method (1951). It only compares random numbers: the
    /// logarithm is a function of libm, which the preload library must not need. It takes 4.3 random numbers on average.
    fn exponential(&self) -> f64 {
        let mut whole = 0.0;
        loop {
            // Numbers fall below `first` an even number of times with the probability exp(-first). Otherwise it starts over, one further on.
            let first = self.uniform();
            let (mut last, mut is_even) = (first, true);
            loop {
                let next = self.uniform();
                if next >= last {
                    break;
                }
                (last, is_even) = (next, !is_even);
            }
            if is_even {
                return whole + first;
            }
            whole += 1.0;
        }
    }

    /// A uniformly distributed number in [0, 1).
    fn uniform(&self) -> f64 {
        // splitmix64: good numbers from any seed.
        let state = self.random.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.random.set(if state == 0 { 1 } else { state });
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// `1 - exp(-len)`, the share of the requests of `len` means that are sampled. The error is below one part in 10^13. Like
/// [`Local::exponential`], it does not use libm.
fn share_sampled(len: f64) -> f64 {
    // From here on, the result rounds to 1.
    if len >= 40.0 {
        return 1.0;
    }
    let (mut part, mut doublings) = (len, 0);
    while part > 0.125 {
        (part, doublings) = (part / 2.0, doublings + 1);
    }
    // The series of 1 - exp(-part), by Horner's rule.
    let series = (2..=10).rev().fold(1.0, |inner, term| 1.0 - part / f64::from(term) * inner);
    // 1 - exp(-2x) = d (2 - d) for d = 1 - exp(-x): all terms are positive, so nothing cancels.
    (0..doublings).fold(part * series, |share, _| share * (2.0 - share))
}

/// Runs `f`, which notes a sample, unless this thread is already in this module.
pub(super) fn exclusively<R>(f: impl FnOnce() -> R) -> Option<R> {
    with_local(|local| match local.state.get() {
        SamplerState::Outside => {
            local.state.set(SamplerState::Sampling);
            let result = f();
            local.state.set(SamplerState::Outside);
            Some(result)
        }
        SamplerState::Sampling => {
            miss();
            None
        }
        SamplerState::Reading => None,
    })
}

/// Whether this thread reads the samples.
pub(crate) fn is_reading() -> bool {
    with_local(|local| local.state.get() == SamplerState::Reading)
}

/// While this lives, its thread's requests are not sampled.
pub(crate) struct Reading {
    before: SamplerState,
}

impl Reading {
    pub(crate) fn begin() -> Self {
        Self { before: with_local(|local| local.state.replace(SamplerState::Reading)) }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        with_local(|local| local.state.set(self.before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The preload library must not need libm, so the sampler has its own functions.
    #[test]
    fn the_share_of_sampled_requests_is_exact() {
        for step in 0..=4_000 {
            let len = 1e-9 * f64::powi(1.01, step);
            let (share, exact) = (share_sampled(len), -(-len).exp_m1());
            assert!((share / exact - 1.0).abs() < 1e-13, "{share} and {exact} for {len}");
        }
    }

    /// A biased estimate would be wrong by the same share however long the program runs.
    #[test]
    fn estimates_from_samples_are_unbiased() {
        set_mean(64 << 10);
        // 200,000 requests of each size: standard deviations of about 2%, 0.3% and 0.1%.
        for (size, percent) in [(1 << 10, 10.0), (48 << 10, 1.5), (512 << 10, 0.5)] {
            let noted =
                (0..200_000).filter_map(|_| sample(Stream::Requests, size)).map(|weight| Noted::of(weight, size));
            let (bytes, count) = noted.fold((0, 0), |(bytes, count), one| (bytes + one.bytes, count + one.count));
            for (estimate, exact) in [(bytes, 200_000 * size as u64), (count, 200_000 * COUNT_PARTS)] {
                let off = estimate as f64 / exact as f64 * 100.0 - 100.0;
                assert!(off.abs() < percent, "{off}% for requests of {size} bytes");
            }
        }
        let weight = sample(Stream::Requests, ALWAYS_BYTES).unwrap();
        assert_eq!(Noted::of(weight, 5), Noted { bytes: 5, count: COUNT_PARTS });
    }
}
