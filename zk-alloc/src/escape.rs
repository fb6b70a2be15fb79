//! Diagnosis: which allocations outlive their phase, and where they were made.
//!
//! Off unless asked for. While it is on, every allocation of the arena takes a lock and captures a backtrace: for finding
//! what escapes, not for production. But nothing waits for it, whatever the program is at. Frames are captured without the
//! standard library's lock of backtraces, which a panic holds while it prints one, and allocates. What is alive is noted
//! under a lock of our own, under which no symbol is looked up; where it is not to be had in a short time (a fork copied it
//! taken, a signal handler interrupted who holds it), the allocation is counted as missed. So is what a thread allocates that
//! blocks signals, as it may be in a handler.

mod frames;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::os;
use frames::Frames;

static ON: AtomicBool = AtomicBool::new(false);
/// Counts the times that a phase began while none was open.
static WINDOW: AtomicU64 = AtomicU64::new(0);
/// Allocations and frees that could not be noted, since tracing was last switched on or off.
static MISSED: AtomicU64 = AtomicU64::new(0);
/// What is alive, by address.
static MADE: Mutex<Table> = Mutex::new(Table::with_hasher(BuildHasherDefault::new()));

type Table = HashMap<usize, Made, BuildHasherDefault<DefaultHasher>>;

/// The longest that the first allocation waits which does so in vain, in nanoseconds: who has the table may be waiting for a
/// processor.
const PATIENCE_NS: u64 = 100_000_000;

/// Nothing of its own is on the heap: who takes one out of the table frees no memory.
struct Made {
    bytes: usize,
    window: u64,
    frames: Frames,
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
    MISSED.store(0, Ordering::Relaxed);
    if !on {
        // Freed after the lock is released.
        drop(untraced(|| made().map(|mut made| std::mem::take(&mut *made))));
    }
}

/// What was made since the outermost phase (the one open now, or else the last one) began, and is alive: by place, the
/// most bytes first.
#[must_use]
pub fn escaped() -> Vec<Escaped> {
    let window = WINDOW.load(Ordering::Relaxed);
    let places = untraced(|| {
        let mut alive: Vec<(Frames, usize)> = Vec::new();
        if let Some(made) = made() {
            let of_window = made.values().filter(|made| made.window == window);
            alive.extend(of_window.map(|made| (made.frames, made.bytes)));
        }
        // The lock is released: what follows takes its time.
        let mut by_frames = BTreeMap::<Frames, (usize, usize)>::new();
        for (frames, bytes) in alive {
            let place = by_frames.entry(frames).or_default();
            *place = (place.0 + 1, place.1 + bytes);
        }
        // Calls on one line are one place.
        let mut places = BTreeMap::<String, (usize, usize)>::new();
        for (frames, (allocations, bytes)) in by_frames {
            let place = places.entry(frames.resolved()).or_default();
            *place = (place.0 + allocations, place.1 + bytes);
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

/// How many allocations and frees could not be noted: what [`escaped`] returns is wrong by as many.
pub(crate) fn missed() -> u64 {
    MISSED.load(Ordering::Relaxed)
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
        let made = Made { bytes, window: WINDOW.load(Ordering::Relaxed), frames: Frames::capture() };
        // To make room for it means to allocate, which a handler that may have interrupted `malloc` must not; and where there
        // is no memory, the diagnosis is what goes without.
        if os::may_be_in_signal_handler() || !note(at, made) {
            MISSED.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Notes what is alive; `false` where that can't be.
fn note(at: usize, allocation: Made) -> bool {
    made().is_some_and(|mut made| {
        let has_room = made.try_reserve(1).is_ok();
        if has_room {
            made.insert(at, allocation);
        }
        has_room
    })
}

#[cold]
pub(crate) fn freed(at: usize) {
    untraced(|| match made() {
        // The table never shrinks, so that this frees nothing.
        Some(mut made) => drop(made.remove(&at)),
        None => drop(MISSED.fetch_add(1, Ordering::Relaxed)),
    });
}

/// The table, unless it is not to be had in a short time.
fn made() -> Option<MutexGuard<'static, Table>> {
    /// Whether somebody waited in vain before, so that nobody else should.
    static IS_STUCK: AtomicBool = AtomicBool::new(false);
    let began = os::monotonic_ns();
    loop {
        match MADE.try_lock() {
            Ok(made) => {
                IS_STUCK.store(false, Ordering::Relaxed);
                return Some(made);
            }
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        if IS_STUCK.load(Ordering::Relaxed) || os::monotonic_ns() - began > PATIENCE_NS {
            IS_STUCK.store(true, Ordering::Relaxed);
            return None;
        }
        std::thread::yield_now();
    }
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
