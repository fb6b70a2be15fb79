//! Phases: the periods in which the arena serves requests. A phase is a scope, not a lifetime: memory that is allocated in a phase may
//! outlive it.

use std::cell::Cell;
use std::time::Instant;

use crate::stats::PhaseReport;
use crate::{accounts, arena, background, escape, gate, observe, os, retain, stats};

thread_local! {
    /// The number of phases that this thread began and has not ended.
    static OWN: Cell<usize> = const { Cell::new(0) };
    /// Whether this thread is a worker: the arena serves it in every phase.
    static WORKER: Cell<bool> = const { Cell::new(false) };
}

/// The threads that allocate from the arena while a phase is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Participants {
    /// Every thread of the process.
    #[default]
    All,
    /// The threads that opened a phase, and the prover's workers: those of `build_global` in [`pool`](crate::pool), and threads that called
    /// [`pool::register_worker`](crate::pool::register_worker). Other threads, such as those of tokio, a database or the network, never
    /// allocate from the arena.
    Pool,
}

/// Returns whether this thread belongs to [`Participants::Pool`].
#[inline]
pub(crate) fn is_in_pool() -> bool {
    WORKER.get() || OWN.get() > 0
}

/// Returns whether the arena serves requests now: [`ZkAllocator`](struct@crate::ZkAllocator) is the global allocator, and a phase is open
/// or the mode is [`Mode::Resident`](crate::Mode::Resident). Only then does [`stats`](crate::stats()) count the program's allocations.
/// Requests below [`min_arena_bytes`](crate::min_arena_bytes) are never counted; with [`Participants::Pool`], neither are those of threads
/// outside of the pool.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// assert!(!zk_alloc::is_serving());
/// assert!(zk_alloc::phase(zk_alloc::is_serving));
/// ```
#[must_use]
pub fn is_serving() -> bool {
    arena::get().is_some() && (gate::is_any_phase_open() || retain::is_resident())
}

/// Runs `f` in a phase: while it runs, the arena serves all threads of the process, or only those of [`Participants::Pool`].
///
/// Phases are safe. They may nest, they may overlap on any threads, and they end if `f` panics. Values that `f` returns or leaves behind
/// stay valid after the phase.
///
/// ```
/// let squares = zk_alloc::phase(|| (0..1 << 16).map(|n: u64| n * n).collect::<Vec<_>>());
/// assert_eq!(squares[300], 90_000);
/// ```
pub fn phase<F, R>(f: F) -> R
where
    F: FnOnce() -> R,
{
    let _guard = PhaseGuard::new();
    f()
}

/// A phase that lasts until the guard is dropped. A [`Phase`] is such a guard that can also report the changes in the counters.
///
/// ```
/// let guard = zk_alloc::PhaseGuard::new();
/// let buffer = vec![1u8; 1 << 20];
/// drop(guard);
/// assert_eq!(buffer.len(), 1 << 20); // a value may leave its phase
/// ```
#[derive(Debug)]
#[must_use = "the phase ends when the guard is dropped"]
pub struct PhaseGuard {
    #[cfg(feature = "tracing")]
    begun: Begun,
    _private: (),
}

impl PhaseGuard {
    /// Begins a phase. It never fails: if the system refuses memory, the backing allocator serves the requests.
    pub fn new() -> Self {
        begin_phase();
        Self {
            #[cfg(feature = "tracing")]
            begun: Begun::now(),
            _private: (),
        }
    }
}

/// Begins a phase, as in the crate zk-alloc 0.0.9.
impl Default for PhaseGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PhaseGuard {
    fn drop(&mut self) {
        #[cfg(feature = "tracing")]
        let report = self.begun.report();
        end_phase();
        // Report only after the phase has ended: the subscriber's allocations are not the prover's.
        #[cfg(feature = "tracing")]
        tracing::info!(
            target: "zk_alloc",
            wall_s = report.wall.as_secs_f64(),
            peak_live_bytes = report.peak_live_bytes,
            reused_bytes = report.reused_bytes,
            fresh_bytes = report.fresh_bytes,
            overflow_bytes = report.overflow_bytes,
            escaped_bytes = report.escaped_bytes,
            minor_faults = report.minor_faults,
            "phase ended"
        );
    }
}

/// A [`PhaseGuard`] that can also report the changes in the counters since the phase began. Recording the counters at that time takes a few
/// microseconds.
///
/// ```
/// let phase = zk_alloc::Phase::new();
/// drop(vec![1u8; 1 << 20]);
/// println!("{}", phase.report());
/// ```
#[derive(Debug)]
#[must_use = "the phase ends when it is dropped"]
pub struct Phase {
    begun: Begun,
    _guard: PhaseGuard,
}

/// The counters at the beginning of a phase.
#[derive(Debug)]
struct Begun {
    at: Instant,
    before: stats::Stats,
    minor_faults: u64,
}

impl Begun {
    fn now() -> Self {
        Self { at: Instant::now(), before: stats::stats(), minor_faults: os::minor_faults() }
    }

    fn report(&self) -> PhaseReport {
        let (before, after) = (&self.before, stats::stats());
        let fresh_bytes = after.fresh_bytes - before.fresh_bytes;
        PhaseReport {
            wall: self.at.elapsed(),
            slab_allocations: after.slab_allocations - before.slab_allocations,
            slab_bytes: after.slab_bytes - before.slab_bytes,
            run_allocations: after.run_allocations - before.run_allocations,
            run_bytes: after.run_bytes - before.run_bytes,
            // The program may have reset these two counters since the phase began.
            overflow_allocations: after.overflow_allocations.saturating_sub(before.overflow_allocations),
            overflow_bytes: after.overflow_bytes.saturating_sub(before.overflow_bytes),
            fresh_bytes,
            reused_bytes: (after.arena_bytes - before.arena_bytes).saturating_sub(fresh_bytes),
            peak_live_bytes: accounts::window_peak_bytes(),
            minor_faults: os::minor_faults().saturating_sub(self.minor_faults),
            system_calls: after.system_calls - before.system_calls,
            escaped_bytes: after.live_bytes.saturating_sub(before.live_bytes),
        }
    }
}

impl Phase {
    /// Begins a phase.
    #[expect(clippy::new_without_default, reason = "a default value would begin a phase")]
    pub fn new() -> Self {
        let guard = PhaseGuard::new();
        Self { begun: Begun::now(), _guard: guard }
    }

    /// Returns the changes in the process's counters since the phase began. The counters cover the whole process, so overlapping phases
    /// report each other's allocations, too.
    #[must_use]
    pub fn report(&self) -> PhaseReport {
        self.begun.report()
    }
}

/// Begins a phase that lasts until a matching [`end_phase`]. Prefer [`phase`] and [`PhaseGuard`], which end their phase by
/// themselves, even if the code in it panics.
///
/// ```
/// zk_alloc::begin_phase();
/// let proof = vec![1u8; 1 << 20];
/// zk_alloc::end_phase();
/// assert_eq!(proof[7], 1); // outlives its phase
/// ```
pub fn begin_phase() {
    arena::open();
    background::start_if_set();
    accounts::phase_begun();
    OWN.set(OWN.get() + 1);
    if gate::phase_began() {
        retain::first_phase_began();
        accounts::window_begun(stats::live_bytes());
        escape::window_begun();
    }
}

/// Ends a phase that [`begin_phase`] began on this thread or another. Does nothing if no phase is open.
pub fn end_phase() {
    // A phase may end on a different thread than it began on. The thread that began it then counts one open phase too many, and allocates
    // from the arena in phases of other threads. This has an effect only with `Participants::Pool`.
    OWN.set(OWN.get().saturating_sub(1));
    if gate::phase_ended() {
        let is_set = || arena::get().is_some_and(|arena| arena.config().settings.trace_escaped.value);
        if gate::is_told(gate::Observer::Escapes) && is_set() {
            print_escaped();
        }
        retain::last_phase_ended();
    }
}

/// Prints the report of `ZK_ALLOC_TRACE_ESCAPED=1`. Bypasses the standard library's lock on standard error.
#[cold]
fn print_escaped() {
    /// The maximum number of places that are printed. With the lines before and after them, the report has at most 20 lines.
    const MAX_SHOWN: usize = 17;
    let places = escape::by_function();
    let bytes: usize = places.iter().map(|place| place.bytes).sum();
    os::warn(format_args!("{bytes} bytes outlive their phase, from {} places", places.len()));
    let missed = observe::sampler::missed();
    if missed > 0 {
        os::warn(format_args!("{missed} allocations and frees were not traced; this report is incomplete"));
    }
    let (shown, rest) = places.split_at(places.len().min(MAX_SHOWN));
    for escape::Escaped { allocations, bytes, backtrace } in shown {
        os::warn(format_args!("{bytes} bytes in {allocations} allocations: {backtrace}"));
    }
    if !rest.is_empty() {
        let bytes: usize = rest.iter().map(|place| place.bytes).sum();
        os::warn(format_args!("{bytes} bytes more, from {} other places", rest.len()));
    }
}

pub mod pool {
    //! The prover's thread pool: builds the pool outside of phases, and makes its threads workers, which the arena serves in every phase.

    /// Makes the calling thread a worker: the arena serves it in every phase, even under
    /// [`Participants::Pool`](crate::Participants::Pool). Call it in the start handler of your own thread pool. [`build_global`]
    /// registers its workers itself.
    ///
    /// ```
    /// std::thread::spawn(|| {
    ///     zk_alloc::pool::register_worker();
    ///     zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
    /// })
    /// .join()
    /// .unwrap();
    /// ```
    pub fn register_worker() {
        super::WORKER.set(true);
    }

    /// Builds rayon's global thread pool, with rayon's own defaults (`RAYON_NUM_THREADS` included). The arena serves its workers in every
    /// phase, even under [`Participants::Pool`](crate::Participants::Pool).
    ///
    /// Call it first in `main`. Otherwise rayon builds the pool at the first proof, inside that proof's phase. That breaks nothing, but the
    /// pool's own memory then occupies pages of the arena as long as the process lives.
    ///
    /// Returns whether this call built the pool. It returns `false` if the pool already existed (built by an earlier call, by the program
    /// or by rayon itself), and without the feature `rayon`. Calling it again does nothing.
    ///
    /// ```
    /// assert_eq!(zk_alloc::pool::build_global(), cfg!(feature = "rayon"));
    /// assert!(!zk_alloc::pool::build_global(), "there is one now");
    /// ```
    pub fn build_global() -> bool {
        #[cfg(feature = "rayon")]
        {
            crate::background::start_if_set();
            rayon::ThreadPoolBuilder::new().start_handler(|_| register_worker()).build_global().is_ok()
        }
        #[cfg(not(feature = "rayon"))]
        {
            false
        }
    }
}
