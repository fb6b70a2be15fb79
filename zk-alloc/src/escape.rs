//! Diagnosis: which allocations outlive their phase, and where they were made.
//!
//! Off unless asked for. While it is on, every allocation of the arena takes a lock and captures a backtrace: for finding
//! what escapes, not for production.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

static ON: AtomicBool = AtomicBool::new(false);
/// Counts the times that a phase began while none was open.
static WINDOW: AtomicU64 = AtomicU64::new(0);
/// What is alive, by address.
static MADE: Mutex<BTreeMap<usize, Made>> = Mutex::new(BTreeMap::new());

struct Made {
    bytes: usize,
    window: u64,
    backtrace: Backtrace,
}

thread_local! {
    /// Whether this thread is in here: what the diagnosis itself allocates is not traced.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Allocations that were made in one place, in a phase, and are alive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Escaped {
    /// How many.
    pub allocations: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Where they were made. Names and lines are as good as the program's debug information.
    pub backtrace: String,
}

impl fmt::Display for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} allocations, {} bytes, made at\n{}", self.allocations, self.bytes, self.backtrace)
    }
}

/// Begins or ends to trace which allocations of the arena outlive their phase. With `ZK_ALLOC_TRACE_ESCAPED=1` it is on
/// from the first phase, and the end of the last open phase prints what [`escaped`] returns.
///
/// ```
/// zk_alloc::trace_escaped(true);
/// let kept = zk_alloc::phase(|| vec![1u8; 1 << 20]);
/// for place in zk_alloc::escaped() {
///     println!("{place}");
/// }
/// # drop(kept);
/// ```
pub fn trace_escaped(on: bool) {
    ON.store(on, Ordering::Relaxed);
    if !on {
        untraced(|| made().clear());
    }
}

/// What was made since the outermost phase (the one open now, or else the last one) began, and is alive: by place, the
/// most bytes first.
#[must_use]
pub fn escaped() -> Vec<Escaped> {
    let window = WINDOW.load(Ordering::Relaxed);
    let places = untraced(|| {
        let mut places = BTreeMap::<String, (usize, usize)>::new();
        for made in made().values().filter(|made| made.window == window) {
            let (allocations, bytes) = places.entry(made.backtrace.to_string()).or_default();
            *allocations += 1;
            *bytes += made.bytes;
        }
        let mut places: Vec<_> = places
            .into_iter()
            .map(|(backtrace, (allocations, bytes))| Escaped { allocations, bytes, backtrace })
            .collect();
        places.sort_by_key(|place| std::cmp::Reverse(place.bytes));
        places
    });
    places.unwrap_or_default()
}

/// A phase began while none was open.
pub(crate) fn window_begun() {
    WINDOW.fetch_add(1, Ordering::Relaxed);
}

#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

#[cold]
pub(crate) fn allocated(at: usize, bytes: usize) {
    untraced(|| {
        let window = WINDOW.load(Ordering::Relaxed);
        let allocation = Made { bytes, window, backtrace: Backtrace::force_capture() };
        let replaced = made().insert(at, allocation);
        drop(replaced);
    });
}

#[cold]
pub(crate) fn freed(at: usize) {
    untraced(|| {
        let gone = made().remove(&at);
        drop(gone);
    });
}

fn made() -> MutexGuard<'static, BTreeMap<usize, Made>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f`, unless this thread is in here already.
fn untraced<R>(f: impl FnOnce() -> R) -> Option<R> {
    if INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
        return None;
    }
    let result = f();
    INSIDE.set(false);
    Some(result)
}
