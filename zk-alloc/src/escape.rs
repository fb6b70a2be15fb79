//! Diagnostics: finds the allocations that outlive their phase, and where they were made.
//!
//! Tracing is off by default. While it is on, every allocation of the arena is recorded with its call chain, as a profile records its
//! samples ([`observe`]). So tracing allocates nothing and takes no lock. It is meant for finding the allocations that escape, not for
//! production.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::frames;
use crate::gate::{self, Observer};
use crate::observe::{self, sites::Source};

/// The number of the current window. A window begins whenever a phase begins while none is open. Allocations before the first phase belong
/// to window 1.
static WINDOW: AtomicU64 = AtomicU64::new(1);

/// The live allocations that one place in the program made during a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Escaped {
    /// The number of allocations.
    pub allocations: usize,
    /// Their bytes, with the arena's rounding.
    pub bytes: usize,
    /// The place where they were made. Function names and line numbers are as good as the program's debug information.
    pub backtrace: String,
}

impl fmt::Display for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} allocations, {} bytes, made at\n{}", self.allocations, self.bytes, self.backtrace)
    }
}

/// Switches the tracing of allocations that outlive their phase on or off. With `ZK_ALLOC_TRACE_ESCAPED=1`, tracing is on from the first
/// phase. Whenever the last open phase ends, the allocations of [`escaped`] are then printed, grouped by function, in at most 20 lines.
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
    // If a profile is on, do not call `begin`: the tables are mapped already, and the profile must keep its samples.
    gate::switch(Observer::Escapes, on && (gate::is_observed() || observe::begin()));
}

/// Returns the live allocations that were made since the outermost phase began: the one that is open now, or else the latest one. They are
/// grouped by place, the place with the most bytes first.
#[must_use]
pub fn escaped() -> Vec<Escaped> {
    places(frames::resolved)
}

/// Returns the same as [`escaped`], but grouped by the program's innermost function. One line describes each place, instead of a backtrace.
pub(crate) fn by_function() -> Vec<Escaped> {
    places(frames::in_one_line)
}

/// Returns the live allocations of the window, grouped by the description of their place.
fn places(describe: fn(&[usize]) -> String) -> Vec<Escaped> {
    let window = window();
    if window == 0 {
        return Vec::new();
    }
    let _reading = observe::sampler::Reading::begin();
    let mut alive: Vec<_> = observe::live::of_window(window).collect();
    alive.sort_unstable();
    // Calls on the same source line count as one place.
    let mut places = BTreeMap::<String, (usize, usize)>::new();
    for alike in alive.chunk_by(|(one, _), (other, _)| one == other) {
        let site = observe::sites::read_one(alike[0].0);
        if let Some(site) = site.filter(|site| site.source == Source::Arena) {
            let place = places.entry(describe(&site.addresses)).or_default();
            *place = (place.0 + alike.len(), place.1 + alike.iter().map(|&(_, bytes)| bytes as usize).sum::<usize>());
        }
    }
    let mut places: Vec<_> =
        places.into_iter().map(|(backtrace, (allocations, bytes))| Escaped { allocations, bytes, backtrace }).collect();
    places.sort_by_key(|place| std::cmp::Reverse(place.bytes));
    places
}

/// Returns the number of the current window; 0 while nothing is traced.
pub(crate) fn window() -> u64 {
    if gate::is_told(Observer::Escapes) { WINDOW.load(Ordering::Relaxed) } else { 0 }
}

/// Begins a window. Called when a phase begins while none is open.
pub(crate) fn window_begun() {
    WINDOW.fetch_add(1, Ordering::Relaxed);
}

/// Returns whether this thread makes the request while it compiles the report. The backing allocator serves it, so that it does not count
/// as escaped.
#[inline(always)]
pub(crate) fn is_own_request() -> bool {
    gate::is_told(Observer::Escapes) && observe::sampler::is_reading()
}
