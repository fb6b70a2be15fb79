//! Diagnosis: which allocations outlive their phase, and where they were made.
//!
//! Tracing is off by default. While it is on, every allocation of the arena takes a lock and captures a backtrace. It is meant
//! for finding the allocations that escape, not for production.
//!
//! Yet it never makes the program hang, whatever the program is doing. Frames are captured without the standard library's lock of
//! backtraces: a panic holds that lock while it prints a backtrace, and allocates. The live allocations are noted under a lock of
//! our own, and no symbol is looked up under it. If that lock does not become free in a short time, the allocation is counted as missed. A fork
//! may have copied the lock while it was taken, or a signal handler may have interrupted its owner. Allocations of a thread
//! that blocks signals are missed, too, because the thread may be in a handler.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::frames::Frames;
use crate::gate::{self, Observer};
use crate::os;

/// Counts the phases that began while none was open.
static WINDOW: AtomicU64 = AtomicU64::new(0);
/// Allocations and frees that could not be noted since tracing was last switched on or off.
static MISSED: AtomicU64 = AtomicU64::new(0);
/// The live allocations, by address.
static MADE: Mutex<Table> = Mutex::new(Table::with_hasher(BuildHasherDefault::new()));

type Table = HashMap<usize, Made, BuildHasherDefault<DefaultHasher>>;

/// The longest time that a thread waits for the table, in nanoseconds. The thread that holds it may be waiting for a processor.
/// After one thread has given up, no other thread waits.
const PATIENCE_NS: u64 = 100_000_000;

/// A live allocation. It owns nothing on the heap, so that removing it from the table frees no memory.
struct Made {
    bytes: usize,
    window: u64,
    frames: Frames,
}

thread_local! {
    /// Whether this thread is in this module. Allocations of the module itself are not traced.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Live allocations that were made in one place, in a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Escaped {
    /// The number of allocations.
    pub allocations: usize,
    /// Their bytes.
    pub bytes: usize,
    /// The place where they were made. Names and lines are as good as the program's debug information.
    pub backtrace: String,
}

impl fmt::Display for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} allocations, {} bytes, made at\n{}", self.allocations, self.bytes, self.backtrace)
    }
}

/// Begins or ends the tracing of allocations that outlive their phase. With `ZK_ALLOC_TRACE_ESCAPED=1` it is on from the first
/// phase, and the end of the last open phase prints the result of [`escaped`] by function: 20 lines at most.
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
    gate::switch(Observer::Escapes, on);
    MISSED.store(0, Ordering::Relaxed);
    if !on {
        // Freed after the lock is released.
        drop(untraced(|| made().map(|mut made| std::mem::take(&mut *made))));
    }
}

/// The live allocations that were made since the outermost phase began: the one that is open now, or else the last one. They are
/// grouped by place, the place with the most bytes first.
#[must_use]
pub fn escaped() -> Vec<Escaped> {
    places(Frames::resolved)
}

/// As [`escaped`], but grouped by the program's innermost function. One line describes each place, instead of a backtrace.
pub(crate) fn by_function() -> Vec<Escaped> {
    places(Frames::in_one_line)
}

/// The live allocations of the window, grouped by what `describe` says of their place.
fn places(describe: fn(&Frames) -> String) -> Vec<Escaped> {
    let window = WINDOW.load(Ordering::Relaxed);
    let places = untraced(|| {
        let mut alive: Vec<(Frames, usize)> = Vec::new();
        if let Some(made) = made() {
            let of_window = made.values().filter(|made| made.window == window);
            alive.extend(of_window.map(|made| (made.frames, made.bytes)));
        }
        // The lock is released here, because the rest takes long.
        alive.sort_unstable();
        // Calls on one line of the source are one place.
        let mut places = BTreeMap::<String, (usize, usize)>::new();
        for alike in alive.chunk_by(|(one, _), (other, _)| one == other) {
            let place = places.entry(describe(&alike[0].0)).or_default();
            *place = (place.0 + alike.len(), place.1 + alike.iter().map(|(_, bytes)| bytes).sum::<usize>());
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

/// The number of allocations and frees that could not be noted. The result of [`escaped`] is wrong by this number.
pub(crate) fn missed() -> u64 {
    MISSED.load(Ordering::Relaxed)
}

/// Notes that a phase began while none was open.
pub(crate) fn window_begun() {
    WINDOW.fetch_add(1, Ordering::Relaxed);
}

/// Whether the tracing itself makes this request. The backing allocator serves its large requests, so that they do not count as escaped.
#[inline(always)]
pub(crate) fn is_own_request() -> bool {
    gate::is_told(Observer::Escapes) && INSIDE.try_with(Cell::get).unwrap_or(false)
}

#[cold]
pub(crate) fn allocated(at: usize, bytes: usize) {
    untraced(|| {
        let made = Made { bytes, window: WINDOW.load(Ordering::Relaxed), frames: Frames::capture() };
        // Making room in the table allocates. A handler that may have interrupted `malloc` must not allocate. If there is no
        // memory, this allocation counts as missed.
        if os::may_be_in_signal_handler() || !note(at, made) {
            MISSED.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Notes a live allocation. Returns `false` if the table is locked or can't grow.
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
        // The table never shrinks, so this frees nothing.
        Some(mut made) => drop(made.remove(&at)),
        None => drop(MISSED.fetch_add(1, Ordering::Relaxed)),
    });
}

/// The table; `None` if it does not become free in a short time.
fn made() -> Option<MutexGuard<'static, Table>> {
    /// Whether a thread gave up waiting before, so that no other thread waits.
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

/// Runs `f`, unless this thread is already in this module.
fn untraced<R>(f: impl FnOnce() -> R) -> Option<R> {
    if INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
        return None;
    }
    let result = f();
    INSIDE.set(false);
    Some(result)
}
