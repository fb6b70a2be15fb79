//! A sampling profiler that shows which call sites hold the memory.
//!
//! [`start`] samples requests at random: with [`MEAN_BYTES`], on average one for each 512 KiB requested, and every request of that size or
//! more. Each sample records the call chain of the request. From the samples, [`snapshot`] estimates for each call site how many bytes were
//! allocated, are live, were live at the peak, and were fresh. The crate `zk-alloc-profile` writes these estimates as pprof profiles and
//! flame graphs, with function names.
//!
//! ```
//! # #[global_allocator]
//! # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
//! use zk_alloc::profile;
//!
//! profile::start(profile::MEAN_BYTES);
//! let proof = zk_alloc::phase(|| vec![1u8; 4 << 20]);
//! let profile = profile::snapshot();
//! profile::stop();
//!
//! let live_bytes: u64 = profile.sites.iter().map(|site| site.live.bytes).sum();
//! assert!(live_bytes >= 4 << 20);
//! # drop(proof);
//! ```
//!
//! # Coverage
//! Requests that reach the [`ZkAllocator`](struct@crate::ZkAllocator) are sampled, whether the arena or the backing allocator serves them.
//! [`Site::source`] tells them apart. [`Scratch`](crate::Scratch) and [`SecretBuf`](crate::SecretBuf) map their own memory, and are not
//! sampled.
//!
//! # Costs
//! While sampling is off, requests that the arena serves cost the same as without the feature. Requests to the backing allocator check one
//! more flag. While sampling is on, each request draws a random number, and each free reads one more byte. Each sample walks the stack,
//! which takes a few microseconds. From the first [`start`] on, the tables take 42 MiB of address space. Samples touch a small part of it.
//!
//! # Signals and forks
//! Sampling allocates nothing and takes no lock, so it is safe in signal handlers and after a fork. A forked child continues with a copy of
//! the samples. [`Snapshot::missed`] counts samples that could not be recorded.
//!
//! The unwinder walks the stack. On glibc before 2.35, it takes the loader's lock. With such a glibc, a child that is forked while another
//! thread takes a sample may deadlock at its own first sample. The walk needs a few KiB of stack, which a coroutine may not have.

use crate::gate::{self, Observer};
pub use crate::observe::sites::{Amount, Site, Source};
use crate::{config, observe, os};

/// The mean distance between two samples, in bytes, that suits most programs: 512 KiB.
pub const MEAN_BYTES: usize = 512 << 10;

/// The largest mean distance between two samples, in bytes. With a larger one, a sample could stand for more requests than its count can
/// hold.
const MAX_MEAN_BYTES: usize = 32 << 20;

/// The estimates from all samples up to one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The call sites that allocated since sampling started, in no particular order.
    pub sites: Vec<Site>,
    /// The mean distance between two samples, in bytes.
    pub mean_bytes: usize,
    /// Samples that could not be recorded. The estimates do not include them.
    pub missed: u64,
}

/// Starts sampling, on average one request for each `mean_bytes` requested. Requests of that size or more, or of 1 MiB or more, are always
/// sampled. With a mean of 1, every request is sampled. Discards earlier samples.
///
/// The largest mean is 32 MiB. With `ZK_ALLOC_PROFILE` in the environment, sampling starts automatically when the arena serves its first
/// request, with `ZK_ALLOC_PROFILE_BYTES` as the mean. If the system grants no memory for the tables, one warning says so, and nothing is
/// sampled.
///
/// Other threads may allocate during this call. A sample that they take at that moment may be counted for the wrong site.
pub fn start(mean_bytes: usize) {
    stop();
    if observe::begin() {
        observe::sampler::set_mean(mean_bytes.clamp(1, MAX_MEAN_BYTES));
        gate::switch(Observer::Profile, true);
    }
}

/// Stops sampling. Later [snapshots](snapshot) still include the samples so far. Memory that is freed afterwards still counts as live in
/// them.
pub fn stop() {
    gate::switch(Observer::Profile, false);
}

/// Returns whether requests are sampled now.
#[must_use]
pub fn is_on() -> bool {
    gate::is_told(Observer::Profile)
}

/// Sets the allocated and the fresh bytes of all sites to 0, and the peak to the live bytes. Call this before a phase, so that the next
/// [`snapshot`] has the estimates for that phase alone.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// # use zk_alloc::profile;
/// profile::start(profile::MEAN_BYTES);
/// drop(vec![1u8; 64 << 20]);
/// profile::mark();
/// zk_alloc::phase(|| drop(vec![1u8; 4 << 20]));
/// let peak_bytes: u64 = profile::snapshot().sites.iter().map(|site| site.peak.bytes).sum();
/// assert!((4 << 20..64 << 20).contains(&peak_bytes));
/// # profile::stop();
/// ```
pub fn mark() {
    observe::sites::mark();
}

/// Returns the current estimates. The [module](self) has an example.
///
/// Requests that this call makes are not sampled.
#[must_use]
pub fn snapshot() -> Snapshot {
    unsampled(|| Snapshot {
        sites: observe::sites::read(),
        mean_bytes: observe::sampler::mean_bytes(),
        missed: observe::sampler::missed(),
    })
}

/// Starts a thread that calls `write` whenever the signal of `ZK_ALLOC_PROFILE_SIGNAL` arrives. Signals that arrive while `write` runs
/// cause one more call. A forked child has no such thread. Must not be called in a signal handler.
#[cfg(feature = "c-api")]
#[doc(hidden)]
pub fn on_signal(write: fn()) {
    /// The function that the thread calls.
    static WRITE: std::sync::OnceLock<fn()> = std::sync::OnceLock::new();
    /// Where the thread waits for the signal.
    static PARKER: os::Parking = os::Parking::new();

    fn write_on_signals() {
        let mut ticket = 0;
        loop {
            PARKER.sleep(ticket, None);
            let now = PARKER.ticket();
            if now != ticket {
                ticket = now;
                WRITE.get().inspect(|write| unsampled(write));
            }
        }
    }

    // A signal handler must not write files, so it only wakes a thread.
    if WRITE.set(write).is_err() || !config::on_signal_of(&config::PROFILE_SIGNAL, || PARKER.wake()) {
        return;
    }
    // Writing a file needs more stack than purging does, so use the C library's default size.
    if let Err(os::Errno(code)) = os::OwnThread::start(write_on_signals, None) {
        os::warn(format_args!("the system refused a thread (errno {code}); ZK_ALLOC_PROFILE_SIGNAL has no effect"));
    }
}

/// Runs `f` without sampling the requests that it makes on this thread.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator::resident();
/// # use zk_alloc::profile;
/// profile::start(profile::MEAN_BYTES);
/// let log = profile::unsampled(|| vec![1u8; 4 << 20]);
/// assert!(profile::snapshot().sites.iter().all(|site| site.live.bytes < 4 << 20));
/// # profile::stop();
/// # drop(log);
/// ```
pub fn unsampled<R>(f: impl FnOnce() -> R) -> R {
    let _reading = observe::sampler::Reading::begin();
    f()
}

/// Starts sampling if `ZK_ALLOC_PROFILE` asks for it.
pub(crate) fn start_if_set() {
    if os::variable("ZK_ALLOC_PROFILE").is_some_and(|value| !matches!(value.text(), Some("" | "0"))) {
        start(config::profile_mean_bytes(|_| false));
    }
}
